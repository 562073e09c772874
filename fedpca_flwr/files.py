"""Files that appear whole or not at all, in folders that are known to take them."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from fedpca_flwr.errors import ConfigError


def writable(folder: Path, mode: int = 0o777) -> Path:
    """The folder, made where there is none, so that what cannot be written to is known before anything is computed.

    ``mode`` is what the permissions of a new one are at most.

    Raises
    ------
    ConfigError
    """
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"the folder {folder} cannot be used ({reason}): name one that may be written to") from None


@contextmanager
def written_whole(target: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A stream to write ``target`` through: a temporary file beside it, renamed when all went well, else removed.

    ``mode`` is what the file's permissions are at most.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that must not be there yet: a key is never overwritten.

    Raises
    ------
    ConfigError
    """
    try:
        with open(path, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as stream:
            stream.write(content)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and was left as it is: others may know this site by it; name another file"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name a file in a folder that can") from None


def text_in(file: Path, errors: str = "strict") -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark: so Windows' shell writes what a command prints.

    Raises
    ------
    OSError, UnicodeDecodeError
    """
    content = file.read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig", errors)


@contextmanager
def site_file(key: str, target: Path) -> Iterator[BinaryIO]:
    """`written_whole` for the file that ``key`` of a site's node-config names, which only its owner may read.

    Errors are by that key.

    Raises
    ------
    ConfigError
        The path stays in the site's own log.
    """
    try:
        with written_whole(target, 0o600) as stream:
            yield stream
    except OSError as error:
        raise _not_written(key, target, error) from None


def require_site_file(key: str, target: Path) -> None:
    """Refuse a file of a site that `site_file` could not write, before anything is computed; one that is there is kept.

    Raises
    ------
    ConfigError
        As of `site_file`.
    """
    try:
        if target.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=target.parent):
                pass
    except OSError as error:
        raise _not_written(key, target, error) from None


def _not_written(key: str, target: Path, error: OSError) -> ConfigError:
    text = f"node-config: the file of '{key}' cannot be written ({error.strerror}): name one that can"
    return ConfigError(text, local=str(target))
