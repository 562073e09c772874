"""One SQLite file: whose it is, who may read it, and what is noticed."""

import sqlite3
import stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.state import store
from fedpca_flwr.state.store import Schema, Store, StoreError
from tests.refusals import refused

SCHEMA = Schema(
    "shelf", "shelf.sqlite", b"TEST", 3, "CREATE TABLE book (title TEXT);", ("book",), old_patterns=("*.shelf",)
)


def add(folder, title, error=None):
    with (shelf := Store(folder, SCHEMA)).transaction() as database:
        shelf.verified_digest(database)
        database.execute("INSERT INTO book VALUES (?)", (title,))
        if error:
            raise error
        shelf.seal(database)


def titles(folder, schema=SCHEMA):
    with (shelf := Store(folder, schema)).transaction() as database:
        shelf.verified_digest(database)
        return [title for (title,) in database.execute("SELECT title FROM book ORDER BY rowid")]


def test_committed_data_are_on_disk_and_deleted_data_are_not(tmp_path, monkeypatch):
    """SQLite's level 3, EXTRA: also the folder is synchronised, so that no power cut brings a transaction back."""
    folder = tmp_path / "shelf"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # which may be another file system
    with Store(folder, SCHEMA).transaction() as database:
        database.execute("INSERT INTO book VALUES ('one')")
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}  # SQLite's own too
        assert database.execute("PRAGMA synchronous").fetchall() == [(3,)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["shelf.sqlite"]
    shelf, secret = Store(folder, SCHEMA), b"\x17\x2b" * 5000
    with shelf.transaction() as database:
        shelf.put(database, secret)
    assert secret[:1000] in shelf.file.read_bytes()
    with shelf.transaction() as database:
        database.execute("DELETE FROM piece")
    assert secret[:10] not in shelf.file.read_bytes()


def test_a_transaction_excludes_others_and_one_that_fails_leaves_nothing_and_tells_why(tmp_path):
    add(tmp_path, "one")
    waiting = threading.Thread(target=add, args=(tmp_path, "two"))
    with closing(sqlite3.connect(tmp_path / "shelf.sqlite", timeout=0)) as other, Store(tmp_path, SCHEMA).transaction():
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join()
    for error in (DataError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            add(tmp_path, "three", error)
        assert caught.value is error
    assert titles(tmp_path) == ["one", "two"]
    folder = tmp_path / "2"  # the very first transactions may meet
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: add(folder, str(i)), range(8)))
    assert sorted(titles(folder)) == [str(i) for i in range(8)]
    assert [file.name for file in folder.iterdir()] == ["shelf.sqlite"]


def test_leftovers_of_sqlite_stand_alone(tmp_path, monkeypatch):
    """The fault: between two looks the other made the file and began; its journal then seemed to stand alone."""
    add(tmp_path, "one")
    shelf, looks, exists = Store(tmp_path, SCHEMA), iter([False]), Path.exists
    (tmp_path / "shelf.sqlite-journal").touch()
    monkeypatch.setattr(Path, "exists", lambda path: next(looks, True) and exists(path))
    assert shelf.exists()
    (tmp_path / "shelf.sqlite").unlink()
    with refused(StoreError, tmp_path / "shelf.sqlite-journal"):
        titles(tmp_path)


def test_what_changed_after_it_was_read_is_not_overwritten_and_other_kinds_of_values_are_damage(tmp_path):
    with (shelf := Store(tmp_path, SCHEMA)).transaction() as database:
        digest = shelf.verified_digest(database)
    assert digest == shelf.empty_digest
    add(tmp_path, "one")
    with shelf.transaction() as database:
        with refused(ContractError, tmp_path):
            shelf.require_digest(database, digest)
        assert shelf.rows(database, f"SELECT 'a', {2**53} UNION SELECT 'b', 0", str, int) == [("a", 2**53), ("b", 0)]
        for values in ("'a', -1", f"'a', {2**53 + 1}", "'a', 1.0", "1, 1", "'a', NULL"):
            with refused(StoreError, "shelf.sqlite"):
                shelf.rows(database, f"SELECT {values}", str, int)


@pytest.mark.parametrize("size", [1, 9, 10, 11, 1000])
def test_large_values_are_kept_in_pieces(tmp_path, size, monkeypatch):
    monkeypatch.setattr(store, "PIECE_BYTES", 10)
    shelf, value = Store(tmp_path, SCHEMA), bytes(i % 251 for i in range(size))
    with shelf.transaction() as database:
        name = shelf.put(database, value)
        assert shelf.put(database, value) == name
    with shelf.transaction() as database:
        assert shelf.get(database, name, size) == value
        assert database.execute("SELECT count(*) FROM piece").fetchone() == (-(-size // 10),)
        for change, digest, length, match in (
            *(("value", name, other, None) for other in (size - 1, size + 1)),
            ("CAST(value || 'x' AS BLOB)", name, size, "damaged"),
            ("zeroblob(length(value))", name, size + 1, "damaged"),
            ("value", "a" * 64, size, "change"),
        ):
            database.execute(f"UPDATE piece SET value = {change} WHERE number = 0")
            with refused(StoreError, "shelf.sqlite", match=match):
                shelf.get(database, digest, length)


def test_a_file_that_is_no_database_is_named_and_stays_and_tells_nothing(tmp_path):
    add(tmp_path, "secret title")
    file = tmp_path / "shelf.sqlite"
    other = file.read_bytes().replace(b"secret title", b"secret titl\xff")
    for content in (other, b"", b"x", b"SQLite format 3\0", b"not a database at all" * 500):
        file.write_bytes(content)
        with refused(StoreError, "shelf.sqlite", match="damaged") as caught:
            titles(tmp_path)
        assert "secret" not in str(caught.value)
        assert file.read_bytes() == content


def test_a_store_of_another_kind_is_named_and_one_of_an_older_format_changed_once(tmp_path):
    """The other stores have the same file name and tables."""
    add(tmp_path, "one")
    kinds = ("application", b"abcd"), ("application", b""), ("format", 2, 3, 2), ("format", 4, 3, 4)
    for key, value, *named in kinds:
        with refused(StoreError, tmp_path / "shelf.sqlite", *named):
            titles(tmp_path, replace(SCHEMA, **{key: value}))
    newer = replace(SCHEMA, format=4, upgrades=((3, ("UPDATE book SET title = title || '!'",)),))
    assert titles(tmp_path, newer) == titles(tmp_path, newer) == ["one!"]
    with refused(StoreError, 4, 3):
        titles(tmp_path)


def test_earlier_files_without_a_store_and_folders_that_take_no_file_are_refused(tmp_path):
    old, file = tmp_path / "my.shelf", tmp_path / "file"
    old.touch()
    for ask in (Store(tmp_path, SCHEMA).exists, lambda: titles(tmp_path)):
        with refused(StoreError, old):
            ask()
    old.rename(file)
    with refused(ConfigError, file):
        Store(file, SCHEMA)
    (tmp_path / "shelf.sqlite").mkdir()
    for folder, named in ((file / "deeper", []), (tmp_path, ["SQLITE_CANTOPEN"])):
        with refused(StoreError, "shelf.sqlite", *named, match="cannot be used"):
            titles(folder)
    (tmp_path / "shelf.sqlite").rmdir()
    add(tmp_path, "one")
    old.touch()
    assert titles(tmp_path) == ["one"]
