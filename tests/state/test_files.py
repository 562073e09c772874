"""Files that appear whole or not at all."""

import os
import zipfile

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state import files
from fedpca_flwr.state.files import TooLargeError, archive_path, atomic_file, read, require_site_file, write
from tests.refusals import refused


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Otherwise a machine that stops may leave a name without the content."""
    target, synced = tmp_path / "model.npz", []
    target.write_bytes(b"before")

    def fsync(descriptor):
        status = os.fstat(descriptor)
        synced.append((status.st_ino, status.st_size, target.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_file(target) as stream:
        stream.write(b"and after")
    assert target.read_bytes() == b"and after"
    assert synced == [(target.stat().st_ino, 9, b"before")]
    assert list(tmp_path.iterdir()) == [target]


def test_all_members_of_a_file_together_unpack_to_so_many_bytes(tmp_path):
    target = tmp_path / "two.npz"
    write(target, {"a": np.zeros(10), "b": np.zeros(10)}, {"about": 1}, text="about.json")
    with zipfile.ZipFile(target) as archive:
        size = sum(member.file_size for member in archive.infolist())
    assert read(target, text="about.json", max_bytes=size)[1] == {"about": 1}
    with refused(TooLargeError, size, size - 1):
        read(target, text="about.json", max_bytes=size - 1)


def test_highly_compressed_files_must_be_small(tmp_path, monkeypatch):
    target = tmp_path / "zeros.npz"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", "{}" + " " * 5000)
    assert read(target, text="about.json") == ({}, {})
    monkeypatch.setattr(files, "SMALL_ARCHIVE_BYTES", 5001)
    with refused(TooLargeError, "5,002", "5,001"):
        read(target, text="about.json")
    monkeypatch.setattr(files, "SMALL_ARCHIVE_BYTES", 0)
    with refused(TooLargeError, "5,002", f"{4 * target.stat().st_size:,}"):
        read(target, text="about.json")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_takes_no_mode_of_what_another_process_has_left(tmp_path):
    """A process of the same number has died: whoever opened its file would read on."""
    left = tmp_path / f".scores.csv.{os.getpid()}.tmp"
    left.touch(0o666)
    left.chmod(0o666)
    with atomic_file(tmp_path / "scores.csv") as stream:
        stream.write(b"1")
    assert (tmp_path / "scores.csv").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "model.npz"
    target.write_bytes(b"before")
    with pytest.raises(ValueError, match="JSON"):
        write(target, {}, {"value": np.nan}, text="about.json")
    with pytest.raises(ZeroDivisionError), atomic_file(target) as stream:
        stream.write(bytes([1 // 0]))
    assert (target.read_bytes(), list(tmp_path.iterdir())) == (b"before", [target])
    require_site_file("scores", target)
    for path in (tmp_path, target / "deeper"):
        with refused(ConfigError, "'scores'") as caught:
            require_site_file("scores", path)
        assert caught.value.local == str(path)


@pytest.mark.parametrize(
    ("name", "file"), [("a", "a.npz"), ("a.npz", "a.npz"), ("a.txt", "a.txt.npz"), ("v1.2", "v1.2.npz")]
)
def test_a_file_of_arrays_has_its_suffix(name, file, tmp_path):
    assert archive_path(tmp_path / name, "a model") == tmp_path / file
    with refused(ConfigError, tmp_path):
        archive_path(tmp_path, "a model")
