"""Kept moments are those of the pooled rows, whatever is selected, merged or taken out, and only who may keeps them."""

import stat
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.state import files
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import context_of, finish, own, server_of
from tests.refusals import refused

X = rows(90, 4) + np.arange(4)
PARTIES = cut(X, 50, 25, 15)
NAMES = ("age", "height", "weight", "pulse")
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
    assert not model.moments_.parties
    assert (model.moments_.error_bound.max() > 0) == bool(secured)
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


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("p-cov", "em")])
def test_no_other_method_keeps_them(method):
    """Above all dp-pca, which releases noisy sums and nothing else."""
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


COUNTS = {
    "no rows": [0, 50, 25, 15],
    "more rows than can be": [2**53 + 90, 2**53, 75, 15],
    "a text": ["90", 50, 25, 15],
    "half a row": [90, 50, 25.5, 14.5],
    "true": [90, 50, 39, True],
    "one row that varies": [51, 49, 1, 1],
    "others than the parties'": [10**9, 50, 25, 15],
}
ABOUT = {name: {"rows": rows} for name, rows in COUNTS.items()}
ABOUT |= {"format": {"format": 7}, "names": {"features": ["a", "a", "b", "c"]}}
ARRAYS = {"NaN": {"mean": np.full(4, np.nan)}, "negative": {"scatter": -np.ones(10)}, "missed": {"missed": np.zeros(3)}}
ARRAYS |= {"narrow party": {f"party-1-{name}": np.ones(1) for name in ("mean", "remainder", "scatter")}}


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
    for features, named in (*absent, *((no, [str(no)]) for no in (["age", 0], [], [True], [[1]]))):
        with refused(ConfigError, *named):
            whole.select(features)
    constant = np.full(len(X), 3.0)
    moments = SecondMoments.of(np.column_stack([X, constant])).scaled()
    same(moments, SecondMoments.of(np.column_stack([X / X.std(axis=0), constant])))


def test_moments_merge_and_foreign_ones_stay(whole):
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


def test_a_party_taken_out_leaves_the_others_to_the_last_digit(whole):
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
