"""Files that appear complete or not at all, and archives of arrays; for their owner alone unless they are `SHARED`.

An archive is a zip of ``.npy`` files, as `numpy.load` opens, with JSON that says what they are, and no pickle.
"""

import codecs
import io
import json
import math
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from errno import EISDIR
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, ContractError


def utc_time(before: timedelta = timedelta(0)) -> str:
    """Return the time in UTC, to seconds, as ISO 8601; `before` is the span by which it is earlier than now."""
    return (datetime.now(UTC) - before).isoformat(timespec="seconds")


class Access(NamedTuple):
    """Permissions of a new file, and of the folders that are made for a file; the umask may take some away."""

    file: int
    folder: int

    def open(self, path: str, flags: int) -> int:
        """Open a file with these permissions, as the `opener` of Python's `open`, and return its descriptor."""
        return os.open(path, flags, self.file)


PRIVATE = Access(0o600, 0o700)  # for the owner alone
SHARED = Access(0o644, 0o777)  # for all whom the umask lets read, such as a server's models; only the owner writes


def make_folder(folder: Path, access: Access = PRIVATE) -> None:
    """Make a folder and the folders above if missing, all with the same permissions; existing folders keep theirs."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            path.mkdir(mode=access.folder, exist_ok=True)


def require_writable_folder(folder: Path, access: Access = PRIVATE) -> Path:
    """Return a folder, created if missing; raise ConfigError if no file can be written to it."""
    try:
        make_folder(folder, access)
        with TemporaryFile(dir=folder):
            return folder
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"the folder {folder} cannot be used ({reason}): name one that may be written to") from None


@contextmanager
def atomic_file(target: Path, access: Access = PRIVATE) -> Iterator[BinaryIO]:
    """Open a binary stream to a file that appears only when complete; raise OSError if it cannot be written."""
    make_folder(target.parent, access)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    partial.unlink(missing_ok=True)  # what a process of this number has left would keep its permissions
    try:
        with open(partial, "xb", opener=access.open) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_new(path: Path, content: bytes, access: Access = PRIVATE) -> None:
    """Write a new file; raise ConfigError if it exists already, such as a key, or cannot be written."""
    try:
        with open(path, "xb", opener=access.open) as stream:
            stream.write(content)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and was left as it is: others may know this site by it; name another file"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name a file in a folder that can") from None


def read_text(file: Path, errors: str = "strict") -> str:
    """Return a file's text in UTF-8, or UTF-16 after a byte order mark; raise OSError or UnicodeDecodeError."""
    content = file.read_bytes()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig", errors)


@contextmanager
def open_site_file(key: str, target: Path) -> Iterator[BinaryIO]:
    """Open an atomic stream to a key's file, for its owner only; raise ConfigError, whose text lacks the path."""
    try:
        with atomic_file(target) as stream:
            yield stream
    except OSError as error:
        raise _unwritable_error(key, target, error) from None


def require_site_file(key: str, target: Path) -> None:
    """Make the folder of a key's file; raise ConfigError if it cannot be written. An existing file stays unchanged."""
    try:
        if target.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not target.exists():
            make_folder(target.parent)
            with TemporaryFile(dir=target.parent):
                pass
    except OSError as error:
        raise _unwritable_error(key, target, error) from None


def unreadable_error(key: str, path: str, error: OSError) -> ConfigError:
    """Return the error for a node-config key's file that cannot be read; only the site's own log shows the path."""
    return ConfigError(f"node-config: the file of '{key}' cannot be read", local=f"{path}: {error.strerror}")


def _unwritable_error(key: str, target: Path, error: OSError) -> ConfigError:
    """Return the error for a node-config key's file that cannot be written; only the site's own log shows the path."""
    text = f"node-config: the file of '{key}' cannot be written ({error.strerror}): name one that can"
    return ConfigError(text, local=str(target))


def archive_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path with suffix ``.npz`` (appended if missing); raise ConfigError, naming `what`, for a folder."""
    path = Path(path).expanduser()
    if path.is_dir() or not path.name:
        raise ConfigError(f"{what} is kept in a file, and {path} is a folder; give a name in it")
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


MAX_UNPACK_RATIO = 4  # times that a file may grow when it is unpacked; files of `write`, not compressed, do not
SMALL_ARCHIVE_BYTES = 2**30  # bytes that any file may unpack to: one that somebody has compressed may be far smaller


class TooLargeError(ContractError):
    """Error for an archive whose unpacked size exceeds the limit."""


def write(
    target: Path,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
    *,
    text: str,
    access: Access = PRIVATE,
) -> None:
    """Write arrays, and finite metadata as JSON in the member `text`, to a complete zip archive (.npz), or none."""
    description = json.dumps(metadata, indent=2, allow_nan=False)
    with atomic_file(target, access) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())
        archive.writestr(text, description)


def read(
    target: Path, *, text: str, names: Collection[str] | None = None, max_bytes: int | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the JSON metadata (member `text`) of an archive that `write` wrote.

    Raise ValueError for arrays of other names than `names` (default: any), and TooLargeError, before anything is read,
    for more unpacked bytes than `max_bytes` (default: `MAX_UNPACK_RATIO` times the file, or `SMALL_ARCHIVE_BYTES` if
    more). A damaged or foreign file can make its readers fail in any way.
    """
    arrays = {}
    with zipfile.ZipFile(target) as archive:
        if names is not None and not {*archive.namelist()} <= {text, *(f"{name}.npy" for name in names)}:
            raise ValueError("members that are none of its own")
        size, packed = sum(member.file_size for member in archive.infolist()), target.stat().st_size
        limit = max(MAX_UNPACK_RATIO * packed, SMALL_ARCHIVE_BYTES) if max_bytes is None else max_bytes
        if size > limit:
            raise TooLargeError(
                f"{target} has {packed:,} bytes and says that it unpacks to {size:,}, at most {limit:,} are read: if "
                f"you know who made it, allow more, as in PCAModel.load(path, most_bytes={size})"
            )
        metadata = parse_json(archive.read(text))
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as stream:  # so an array is in memory once, and not beside its file's bytes
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays, metadata


MAX_INTEGER_DIGITS = 300  # of a whole number in JSON; one of more digits has no float


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError for no JSON, deep nesting, and numbers that are not finite or too long."""
    try:
        return json.loads(text, parse_constant=_finite_float, parse_float=_finite_float, parse_int=_bounded_integer)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _finite_float(text: str) -> float:
    """Parse a float of a JSON text; raise ValueError if the value is not finite."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("the JSON holds a number that is not finite")
    return value


def _bounded_integer(text: str) -> int:
    """Parse an integer of a JSON text; raise ValueError for more than `MAX_INTEGER_DIGITS` characters."""
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"the JSON holds a whole number of more than {MAX_INTEGER_DIGITS} digits")
    return int(text)
