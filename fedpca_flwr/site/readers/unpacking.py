"""Limits on the size to which a compressed file of rows unpacks: a few megabytes can unpack to terabytes."""

import gzip
import io
import zipfile
from pathlib import Path
from typing import BinaryIO, cast

from typing_extensions import override

from fedpca_flwr.errors import DataError

SMALL_BYTES = 2**26  # to which any file may unpack
MAX_RATIO = 200  # of a larger file: ten times that of compressed tables of counts. Deflate's is at most 1,032
MAX_COLUMN_RATIO = 1000  # of files that store the equal values of a column once: tables of rare events
UNPACKED_ADVICE = "unpack the file, and name the unpacked one"


def require_unpacked_size(
    file: Path, nbytes: int, advice: str, *, packed_bytes: int = 0, max_ratio: int = MAX_RATIO
) -> None:
    """Raise DataError if `nbytes` exceed `SMALL_BYTES` and `max_ratio` times the packed ones (0: the file's size)."""
    if nbytes <= SMALL_BYTES:
        return
    packed_bytes = packed_bytes or file.stat().st_size
    if nbytes > max_ratio * packed_bytes:
        raise DataError(
            f"it unpacks to more than {SMALL_BYTES:,} bytes and to more than "
            f"{max_ratio:,} times its size: is the file damaged? If it is right, {advice}",
            local=f"{packed_bytes:,} bytes of {file} unpack to {nbytes:,}",
        )


def require_archive_size(file: Path, advice: str) -> int:
    """Return to how many bytes a zip archive unpacks by its table of contents; raise DataError for too many."""
    with zipfile.ZipFile(file) as archive:
        nbytes = sum(member.file_size for member in archive.infolist())
    require_unpacked_size(file, nbytes, advice)
    return nbytes


class _UnpackedStream(io.RawIOBase):
    """Bytes of a file compressed by gzip, which end in an error where they are too many for those unpacked so far."""

    def __init__(self, file: Path) -> None:
        self._file, self._nbytes = file, 0
        self._packed = open(file, "rb")  # noqa: SIM115 (`close` closes it)
        self._stream = gzip.GzipFile(fileobj=self._packed)

    @override
    def readable(self) -> bool:
        """Return True, as Python's interface of raw streams demands."""
        return True

    @override
    def readinto(self, buffer: object) -> int:
        """Fill the buffer with the next bytes, and return their number; 0 at the end."""
        nbytes = self._stream.readinto(cast(bytearray, buffer))
        self._nbytes += nbytes
        require_unpacked_size(self._file, self._nbytes, UNPACKED_ADVICE, packed_bytes=self._packed.tell())
        return nbytes

    @override
    def close(self) -> None:
        """Close the file and this stream."""
        self._stream.close()
        self._packed.close()
        super().close()


def open_gzip(file: Path) -> BinaryIO:
    """Open a file compressed by gzip for reading, which raises DataError once it has unpacked to too many bytes."""
    return io.BufferedReader(_UnpackedStream(file))
