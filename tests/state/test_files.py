"""Files that appear whole or not at all."""

import os
import tempfile
import zipfile
from datetime import UTC, datetime, timedelta

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


def test_an_archive_has_its_suffix_and_the_named_arrays_and_unpacks_to_so_many_bytes_in_all(tmp_path):
    for name, file in {"a": "a.npz", "a.npz": "a.npz", "a.txt": "a.txt.npz", "v1.2": "v1.2.npz"}.items():
        assert archive_path(tmp_path / name, "a model") == tmp_path / file
    with refused(ConfigError, tmp_path):
        archive_path(tmp_path, "a model")
    target = tmp_path / "two.npz"
    write(target, {"a": np.arange(3.0), "b": np.array(1)}, {"about": 1}, text="about.json")
    with zipfile.ZipFile(target) as archive:
        size = sum(member.file_size for member in archive.infolist())
    for names in (None, ("a", "b"), ("a", "b", "c")):
        loaded, about = read(target, text="about.json", names=names, max_bytes=size)
        np.testing.assert_equal((loaded, about), ({"a": np.arange(3.0), "b": np.array(1)}, {"about": 1}))
    with refused(TooLargeError, size, size - 1):
        read(target, text="about.json", max_bytes=size - 1)
    with pytest.raises(ValueError, match="none of its own"):
        read(target, text="about.json", names=("a", "c"))


def test_json_has_only_numbers_that_float_and_int_hold_and_is_small_if_highly_compressed(tmp_path, monkeypatch):
    assert files.parse_json("[1.5, " + "1" * 300 + "]") == [1.5, int("1" * 300)]
    for text in ("NaN", "-Infinity", "1e999", "1" * 301, "[" * 100_000, "'"):
        with pytest.raises(ValueError, match="JSON|Expecting value"):
            files.parse_json(text)
    target = tmp_path / "zeros.npz"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", "{}" + " " * 5000)
    assert read(target, text="about.json") == ({}, {})
    for small, limit in ((5001, "5,001"), (0, f"{4 * target.stat().st_size:,}")):
        monkeypatch.setattr(files, "SMALL_ARCHIVE_BYTES", small)
        with refused(TooLargeError, "5,002", limit):
            read(target, text="about.json")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_takes_no_mode_of_what_another_process_has_left(tmp_path):
    """A process of the same number has died: whoever opened its file would read on."""
    (left := tmp_path / f".scores.csv.{os.getpid()}.tmp").touch()
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
        with refused(ConfigError, "'scores'"), files.open_site_file("scores", path):
            pass


def test_new_files_texts_folders_and_times(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # in which nothing is tried
    file = tmp_path / "file"
    files.write_new(file, b"before")
    for path in (file, file / "deeper"):
        with refused(ConfigError, path):
            files.write_new(path, b"after")
    assert file.read_bytes() == b"before"
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        file.write_bytes("\ufeffä".encode(encoding))
        assert files.read_text(file) == "ä"
    file.write_bytes(b"a\xff")
    assert files.read_text(file, "ignore") == "a"
    with pytest.raises(UnicodeDecodeError):
        files.read_text(file)
    assert files.require_writable_folder(tmp_path / "a" / "b").is_dir()
    require_site_file("scores", tmp_path / "c" / "d")
    with refused(ConfigError, "ValueError"):
        files.require_writable_folder(tmp_path / "\0")
    began, time = datetime.now(UTC).replace(microsecond=0), datetime.fromisoformat(files.utc_time(timedelta(hours=1)))
    assert began <= time + timedelta(hours=1) <= datetime.now(UTC)
