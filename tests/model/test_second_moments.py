"""Kept moments are those of the pooled rows, whatever is selected, merged or taken out, and only who may keeps them.

A federation lasts: it is exact after any history, and whole on disk after any accident.
"""

import shutil
import stat
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.state import files
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import context_of, finish, own, server_of
from tests.killed import STEPS, dies
from tests.refusals import refused

X = rows(90, 4) + np.arange(4)
PARTIES = cut(X, 50, 25, 15)
NAMES = ("age", "height", "weight", "pulse")
FILE = "federation.sqlite"
NORTH, SOUTH, EAST = cut(rows(300), 180, 100, 20)
MOMENTS = Moments.from_rows(EAST)
NO_MOMENTS = [{"count": -5}, {"mean": np.full(12, np.nan)}, {"scatter": -np.ones(78)}, {"scatter": np.ones(77)}]
COUNTS = {"no rows": [0, 50, 25, 15], "more rows than can be": [2**53 + 90, 2**53, 75, 15]}
COUNTS |= {"a text": ["90", 50, 25, 15], "half a row": [90, 50, 25.5, 14.5], "true": [90, 50, 39, True]}
COUNTS |= {"one row that varies": [51, 49, 1, 1], "others than the parties'": [10**9, 50, 25, 15]}
ABOUT = {name: {"rows": rows} for name, rows in COUNTS.items()}
ABOUT |= {"format": {"format": 7}, "names": {"features": ["a", "a", "b", "c"]}}
ARRAYS = {"NaN": {"mean": np.full(4, np.nan)}, "negative": {"scatter": -np.ones(10)}, "missed": {"missed": np.zeros(3)}}
ARRAYS |= {"narrow party": {f"party-1-{name}": np.ones(1) for name in ("mean", "remainder", "scatter")}}
MASKED = {"secure_aggregation": True, "bound": 10.0}


def frame(data):
    return pa.table(dict(zip(NAMES, np.asarray(data).T, strict=True)))


def fit(parties, keep="moments", **options):
    return run("p-cov", parties, n_components=2, keep=keep, **options)


@pytest.fixture(scope="module")
def whole():
    return fit(list(map(frame, PARTIES)), keep="parties").moments_


def same(one, other, rtol=1e-12):
    assert one.n_samples == other.n_samples
    np.testing.assert_allclose(one.mean, other.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=rtol, atol=rtol * other.covariance.max())


@pytest.mark.parametrize("secured", [{}, MASKED, {**MASKED, "survivors": 3}], ids=["clear", "masked", "surviving"])
def test_a_run_keeps_the_moments_of_the_pooled_rows(secured):
    model = fit(PARTIES, **secured)
    same(model.moments_, SecondMoments.of(X), 1e-9 if secured else 1e-12)
    assert (model.moments_.parties, model.moments_.error_bound.max() > 0) == ({}, bool(secured))
    assert "the moments of all rows were kept" in model.summary(full=True)
    assert fit(PARTIES, keep="nothing").moments_ is None


def test_which_moments_a_run_keeps(whole):
    for kind in (METHODS[method].strategy.card.options for method in ("p-cov", "em")):
        counts = [kind.parse({"keep": keep}).stored_moments_count(3) for keep in ("nothing", "moments", "parties")]
        assert counts == [0, 1, 4]
    assert list(whole.parties) == ["partition 0", "partition 1", "partition 2"]
    for own_moments, part in zip(whole.parties.values(), PARTIES, strict=True):
        same(SecondMoments(own_moments), SecondMoments.of(part))
    assert not whole.pooled().parties
    server = server_of("p-cov keep=parties", cut(X, 50, 40), n_components=2)
    for party in (0, 1):
        context_of(server, party).node_config["name"] = "ward"
    assert list(finish(server).moments_.parties) == ["client 0 (ward)", "client 1 (ward)"]
    with refused(ConfigError, "'keep'", "'parties'", "secure_aggregation"):
        fit(PARTIES, keep="parties", **MASKED)
    assert run("dp-pca epsilon=infinity", PARTIES, n_components=2).moments_ is None
    for method in set(METHODS) - {"p-cov", "em"}:  # above all dp-pca, which releases noisy sums and nothing else
        with refused(ConfigError, method, "'keep'"):
            run(method, PARTIES, n_components=2, keep="moments", **own(method))


def test_saved_and_loaded_is_the_same(whole, tmp_path):
    assert stat.S_IMODE(whole.save(tmp_path / "moments").stat().st_mode) == 0o600
    again = SecondMoments.load(tmp_path / "moments")
    assert (again.features, list(again.parties)) == (NAMES, list(whole.parties))
    pairs = zip([again.moments, *again.parties.values()], [whole.moments, *whole.parties.values()], strict=True)
    for (one, other), name in product(pairs, ("count", "mean", "remainder", "scatter")):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    # The file of the model does not hold them.
    with pytest.warns(UserWarning, match=r"leaves out the model's 'moments_'.* model.moments_.save\(path\)") as told:
        written = fit(PARTIES).save(tmp_path / "model")
    assert [warning.filename for warning in told] == [__file__]  # where it is saved, not where it is warned
    arrays, _ = files.read(written, text="model.json")
    assert max(array.size for array in arrays.values()) == 2 * 4
    assert PCAModel.load(written).moments_ is None


@pytest.mark.parametrize("spoil", ["torn", "a model", *ABOUT, *ARRAYS])
def test_a_file_that_holds_something_else_is_named(whole, spoil, tmp_path):
    file = whole.save(tmp_path / "moments")
    arrays, about = files.read(file, text="second-moments.json")
    if spoil == "torn":
        file.write_bytes(file.read_bytes()[:500])
    elif spoil == "a model":
        replace(fit(PARTIES), moments_=None).save(file)
    else:
        changed = arrays | ARRAYS.get(spoil, {}), about | ABOUT.get(spoil, {})
        files.write(file, *changed, text="second-moments.json")
    with refused((ContractError, ConfigError), *{"format": [file, 7, 1], "names": [3, 4]}.get(spoil, [file])):
        SecondMoments.load(file)
    with refused(DataError, "nowhere.npz"):
        SecondMoments.load(tmp_path / "nowhere")


def test_some_features_and_scaled_ones_are_those_of_their_rows(whole):
    for features in (["pulse", "age"], [3, 0], np.array([3, 0])):
        same(whole.select(features), SecondMoments.of(X[:, [3, 0]]))
    some = whole.select(["pulse", "age"])
    same(SecondMoments(some.parties["partition 1"]), SecondMoments.of(X[50:75][:, [3, 0]]))
    assert some.features == ("pulse", "age")
    absent = (["age", "colour", 9], ["'colour'", 9, 4, "age", "height", "weight"]), ("age", ["'age'"])
    for wrong, named in (*absent, *((no, [str(no)]) for no in (["age", 0], [], [True], [[1]]))):
        with refused(ConfigError, *named):
            whole.select(wrong)
    constant = np.full(len(X), 3.0)
    moments = SecondMoments.of(np.column_stack([X, constant])).scaled()
    same(moments, SecondMoments.of(np.column_stack([X / X.std(axis=0), constant])))


def test_moments_merge_and_are_taken_out_and_foreign_ones_stay(whole):
    late = rows(30, 4, seed=9) * 3 + 100
    merged = SecondMoments.of(late).merge(whole)
    same(merged, SecondMoments.of(np.vstack([X, late])))
    assert (merged.features, merged.parties) == (NAMES, {})  # of the late rows nobody knows whose they are
    alone = SecondMoments(whole.moments, parties={"only": whole.moments})
    for change, other, error, named in [
        (whole.merge, whole, ConfigError, ["partition 0", "partition 1", "partition 2"]),
        (whole.merge, whole.select([0, 1, 2]), ContractError, [4, 3]),
        (whole.merge, whole.pooled().select([1, 0, 2, 3]), ConfigError, []),
        (whole.subtract, SecondMoments.of(rows(15, 4) * 100), ContractError, []),
        (whole.subtract, whole, ContractError, [90]),
        (whole.without, "north", ConfigError, ["'north'", "partition 0"]),
        (whole.pooled().without, "partition 0", ConfigError, ["'partition 0'", "keep='parties'"]),
        (alone.without, "only", ConfigError, ["'only'", "keep='parties'"]),
    ]:
        with refused(error, *named):
            change(other)
    # A party taken out leaves the others to the last digit.
    same(whole.subtract(SecondMoments.of(frame(X[75:]))), SecondMoments.of(X[:75]), 1e-11)
    assert whole.subtract(SecondMoments.of(X[75:])).features == NAMES
    same(whole.without("partition 2"), SecondMoments.of(X[:75]))
    assert list(whole.without("partition 2").parties) == ["partition 0", "partition 1"]
    # At an offset of 1e8 a rounded mean would turn what is left.
    far = np.round(rows(300, 3) * 2**10) + 1e8
    left = SecondMoments.of(far).subtract(SecondMoments.of(far[200:])).covariance
    np.testing.assert_allclose(left, np.cov(far[:200] - 1e8, rowvar=False), rtol=1e-9, atol=1e-9 * left.max())
    with refused(DataError, 1, 2):
        SecondMoments(Moments.from_rows(X[:1])).covariance  # noqa: B018


def test_what_rounding_misses_is_kept_in_its_unit_and_adds_up():
    """Features of deviations 2 and 1 in two rows; the bound for the second feature is all of its variance."""
    moments = Moments.from_rows(np.array([[-2.0, 1.0], [2.0, 3.0]]))
    one, other = (SecondMoments(moments, error_bound=np.array(missed)) for missed in ([0.5, 2.0], [0.25, 1.0]))
    assert [one.is_constant.tolist(), other.is_constant.tolist()] == [[False, True], [False, False]]
    np.testing.assert_allclose(other.scaled().error_bound, [0.0625, 1.0], rtol=1e-15)  # no deviation that varies is 1
    assert "1.414" in repr(SecondMoments.of(np.array([[2.0], [4.0]])))  # a deviation, divisor n - 1
    # Parts that vary more than the whole are within what is missed of the two: 0.22 is.
    rest, part = SecondMoments.of(np.array([[0.0], [2.0], [1.0]])), SecondMoments.of(np.array([[0.0], [2.1]]))

    def subtracted(of_rest, of_part):
        replace(rest, error_bound=np.array([of_rest])).subtract(replace(part, error_bound=np.array([of_part])))

    subtracted(0.12, 0.12)
    for missed in ((0.12, 0.0), (0.0, 0.12)):
        with refused(ContractError):
            subtracted(*missed)
    both = one.merge(other)
    np.testing.assert_array_equal([both.error_bound, both.subtract(other).error_bound], [[0.75, 3.0], [1.0, 4.0]])
    with pytest.deprecated_call(match="error_bound"):  # by its former name
        assert both.missed is both.error_bound


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
