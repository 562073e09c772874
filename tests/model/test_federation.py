"""A federation that lasts: exact after any history, whole on disk after any accident."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from tests.families import cut, rows
from tests.killed import STEPS, dies
from tests.refusals import refused

FILE = "federation.sqlite"

NORTH, SOUTH, EAST = cut(rows(300), 180, 100, 20)
MOMENTS = Moments.from_rows(EAST)
NO_MOMENTS = [{"count": -5}, {"mean": np.full(12, np.nan)}, {"scatter": -np.ones(78)}, {"scatter": np.ones(77)}]


@pytest.fixture
def folder(tmp_path):
    federation = Federation.open(tmp_path / "state")
    federation.join("north", NORTH)
    federation.join("south", SOUTH)
    federation.save()
    return tmp_path / "state"


def bits(moments):
    return [part.tobytes() for part in (moments.mean, moments.remainder, moments.scatter)]


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_history_leaves_no_trace_in_the_bits(folder):
    federation = Federation.open(folder)
    assert (federation.members, federation.revision, federation.features) == ({"north": 180, "south": 100}, 1, 12)
    assert [entry["member"] for entry in federation.journal] == ["north", "south"]
    federation.join("east", EAST + 1e8)
    federation.append("east", EAST)
    federation.replace("north", SOUTH * 3)
    federation.append("north", NORTH)  # replaced moments may come again
    assert federation.members == {"north": 280, "south": 100, "east": 40}
    federation.save()
    again = Federation.open(folder)
    again.leave("east")
    again.replace("north", NORTH)
    assert bits(again.moments()) == bits(pool([Moments.from_rows(NORTH), Moments.from_rows(SOUTH)]))


@pytest.mark.parametrize("options", [{}, {"center": False}, {"scale": True}], ids=str)
def test_appended_rows_are_as_good_as_rows_that_came_at_once(folder, options):
    federation = Federation.open(folder)
    federation.append("south", EAST)
    model, truth = federation.model(5, **options), pooled_pca(rows(300), 5, **options)
    assert principal_angles(model, truth).max <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-12)
    assert federation.model(0.9).explained_variance_ratio_.sum() > 0.9
    text, made_of = model.summary(full=True), "2 (north, south), with 120 to 180 rows"
    for part in ("streaming (exact)", made_of, "300 of 12 features", "revision              1"):
        assert part in text
    assert "bytes" not in text


def test_of_a_member_that_has_left_no_value_stays(folder):
    (folder / "notes.txt").write_text("keep")
    values = Moments.from_rows(NORTH).scatter[:8].tobytes()
    assert values in (folder / FILE).read_bytes()
    federation = Federation.open(folder)
    federation.join("e" * 64, EAST)
    federation.leave("e" * 64)
    federation.leave("north")
    federation.save()
    for gone in (values, MOMENTS.scatter[:8].tobytes()):
        assert gone not in (folder / FILE).read_bytes()
    assert sorted(contents(folder)) == [FILE, "notes.txt"]


def test_members_of_equal_rows_share_moments_until_all_have_left(folder):
    federation, late = Federation.open(folder), Federation.open(folder)
    federation.join("east", SOUTH, columns="one")
    federation.leave("south")
    federation.save()
    assert Federation.open(folder).moments().count == 280
    for member in ("east", "north"):
        federation.leave(member)
        federation.save()
    with refused(ContractError, folder / FILE, match="change"):  # another run took them away
        late.moments()
    with refused(DataError, folder):
        federation.model(2)
    federation.join("south", rows(30, 5), columns="another")
    with refused(ConfigError, "'west'"):
        federation.join("west", rows(30, 5), columns="one")
    federation.save()
    again = Federation.open(folder)
    assert (again.features, again.journal) == (5, federation.journal)


@pytest.mark.parametrize(
    ("change", "given", "error", "named"),
    [
        ("join", ("north", EAST), ConfigError, ["'north'"]),
        ("leave", ("nort",), ConfigError, ["'nort'", "'north'"]),
        ("leave", ("west coast",), ConfigError, ["west coast", "north", "south"]),
        ("replace", ("east", EAST), ConfigError, ["'east'"]),
        ("append", ("east", EAST), ConfigError, ["'east'"]),
        ("join", ("a;b", EAST), ConfigError, ["a;b", 1, 64]),
        ("append", ("south", SOUTH), ConfigError, ["'south'", 100]),
        ("join", ("east", EAST[:, :11]), ContractError, ["'east'", 11, 12]),
        ("join", ("east", EAST * np.nan), DataError, ["NaN"]),
        *(("join", (key, EAST), ConfigError, [1, 64]) for key in (" east", "east ", "e" * 65, 3, None)),
        *(("join", ("east", replace(MOMENTS, **own)), ContractError, ["'east'"]) for own in NO_MOMENTS),
        *(("model", (k,), ConfigError, ["n-components"]) for k in (2.5, 1.0, 0, -1, np.nan, True, "x", None)),
    ],
)
def test_what_cannot_be_done_is_named_and_changes_nothing(folder, change, given, error, named):
    federation, before = Federation.open(folder), contents(folder)
    with refused(error, *named):
        getattr(federation, change)(*given)
    assert (federation.members, federation.changed) == ({"north": 180, "south": 100}, False)
    federation.save()
    assert contents(folder) == before


def told(folder):
    federation = Federation.open(folder)
    return federation.members, federation.revision, federation.columns, federation.journal, bits(federation.moments())


@pytest.mark.engine
def test_no_damage_gives_another_federation(folder):
    """Flip single bits everywhere, and cut the file; bytes where SQLite keeps nothing change nothing."""
    file, before = folder / FILE, told(folder)
    whole, noticed = file.read_bytes(), 0
    damaged = [whole[:n] for n in range(0, len(whole), 1021)]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), 101)]
    for content in damaged:
        file.write_bytes(content)
        try:
            assert told(folder) == before
        except ContractError:
            noticed += 1
    assert noticed > 50
    for was in (b"north", Moments.from_rows(SOUTH).scatter[5].tobytes()):
        assert was in whole
        file.write_bytes(whole.replace(was, was[:-1] + b"x"))
        with refused(ContractError, file, match="damaged"):
            told(folder)


def test_a_folder_of_an_earlier_version_or_an_impossible_one_is_refused(tmp_path):
    for name in ("federation.json", f"{'a' * 64}.moments"):
        (tmp_path / name).write_text("old")
        with refused(ContractError, tmp_path / name, "0.1.0"):
            Federation.open(tmp_path)
        assert contents(tmp_path) == {name: b"old"}
        with refused(ConfigError, name):
            Federation.open(tmp_path / name)
        (tmp_path / name).unlink()
    for path in ("/dev/null/x", "/proc/nope/x", "x" * 5000, "nul\0byte"):
        with refused(ConfigError, path.replace("\0", "?")):
            Federation.open(path).prepare()


@pytest.mark.engine
@pytest.mark.parametrize("first", [False, True], ids=["a later save", "the very first"])
def test_a_kill_leaves_the_old_state_or_the_new_one(first, folder, tmp_path):
    killed, before = 0, told(folder)
    while True:
        copy = tmp_path / f"copy{killed}"
        if not first:
            shutil.copytree(folder, copy)
        federation = Federation.open(copy)
        federation.join("east", EAST)
        if not first:
            federation.replace("south", SOUTH * 2)
        if not dies(STEPS * killed, federation.save):
            break
        assert Federation.open(copy).members == {} if first else told(copy) == before
        federation.save()  # the one that was killed can be saved again
        saved = [EAST] if first else [EAST, NORTH, SOUTH * 2]
        assert bits(Federation.open(copy).moments()) == bits(pool([Moments.from_rows(own) for own in saved]))
        killed += 1
    assert killed > 2
