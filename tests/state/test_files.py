"""Files that appear whole or not at all."""

import os
import zipfile

import numpy as np

from fedpca_flwr.state.files import TooLargeError, read, write, written_whole
from tests.refusals import refused


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Else a machine that stops may leave a name without what it stands for."""
    target, synced = tmp_path / "model.npz", []
    target.write_bytes(b"before")

    def fsync(descriptor):
        known = os.fstat(descriptor)
        synced.append((known.st_ino, known.st_size, target.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    with written_whole(target) as stream:
        stream.write(b"and after")
    assert target.read_bytes() == b"and after"
    assert synced == [(target.stat().st_ino, 9, b"before")]
    assert list(tmp_path.iterdir()) == [target]


def test_all_members_of_a_file_together_unpack_to_so_many_bytes(tmp_path):
    target = tmp_path / "two.npz"
    write(target, {"a": np.zeros(10), "b": np.zeros(10)}, {"about": 1}, text="about.json")
    with zipfile.ZipFile(target) as archive:
        size = sum(member.file_size for member in archive.infolist())
    assert read(target, text="about.json", most_bytes=size)[1] == {"about": 1}
    with refused(TooLargeError, size, size - 1):
        read(target, text="about.json", most_bytes=size - 1)
