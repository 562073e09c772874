"""Files that appear whole or not at all."""

from __future__ import annotations

import os

from fedpca_flwr.state.files import written_whole


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
