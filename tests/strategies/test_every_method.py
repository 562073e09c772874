"""The battery that every method meets: families of data, invariances, scikit-learn's own results, faults, policy."""

from functools import cache
from itertools import cycle
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, PartyError, QuorumError
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.protocol import quorum
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import FAMILIES, cut, rows
from tests.harness import Clock, differences, exits, finish, fit, late, server_of
from tests.pairwise import pairwise_by_day
from tests.refusals import refused

CARDS = {name: method.strategy.card for name, method in METHODS.items()}
FITTING = [name for name, card in CARDS.items() if not card.loadings_source]
BY_ROWS = [name for name in FITTING if CARDS[name].split == "rows"]
BY_COLUMNS = [name for name in FITTING if name not in BY_ROWS]
EXACT = [name for name in BY_ROWS if CARDS[name].exact]
PRIVATE = [name for name in FITTING if CARDS[name].differentially_private]
DETERMINED = [name for name in FITTING if name not in PRIVATE]  # whose model the data alone decide
every_method = pytest.mark.parametrize("method", FITTING)
OF_OPTIONS = ["means shifted by ten deviations", "wide", "constant columns", "offset 1e6"]
"""Families in which scaling, and no centre, make a difference."""
HARD = ["fewer rows than components at a client", "constant and duplicate columns, fewer rows than features"]
"""Families that every method meets; of the others every second."""
# by day every method and every family meets every way and every option; methods meet families in clear, above
BY_DAY = ((0, 1), (0, 3), (1, 2), (1, 3), (2, 3))
ITERATIONS = [
    ("sub-it", {"block_size": 2, "max_rounds": 3}, ("start", "product")),
    ("sub-it", {"block_size": 2, "max_rounds": 3, "acceleration": "none"}, ("start", "product")),
    ("sub-it", {"block_size": 2, "max_rounds": 3, "warm_start": "svd", "warm_rank": 2}, ("sketch", "refine")),
    ("vertical", {"block_size": 2, "max_rounds": 3, "solver": "krylov"}, ("product",)),
    ("em", {"max_rounds": 3}, ("expected",)),
    ("em", {"max_rounds": 3, "model": "factors", "factors": 2}, ("products",)),
    ("personalised", {"iterations": 3, "mu": 1.0}, ("share",)),
    ("dsa", {"iterations": 3}, ("start", "step")),
    ("fast-pca", {"iterations": 3}, ("start", "step")),
    ("robust", {"max_rounds": 3}, ("median",)),
]
UNUSABLE = {
    "infinite": (lambda part: with_cell(part, np.inf), ["infinite"]),
    "minus infinite": (lambda part: with_cell(part, -np.inf), ["infinite"]),
    "no rows": (lambda part: part[:0], ["(0"]),
    "no columns": (lambda part: part[:, :0], ["0)"]),
    "one axis": (lambda part: part[0], [1, 2]),
    "text": (lambda part: np.full(part.shape, "a"), ["<U1"]),
    "complex": (lambda part: part.astype(complex), ["complex128"]),
}


def three(method, n=300):
    return cut(rows(n), n - 120, 100, 20) if method in BY_ROWS else np.split(rows(60), [6, 10], axis=1)


@cache
def clear(method, name, **options):
    return fit(method, FAMILIES[name].parties, n_components=FAMILIES[name].k, **options)


def scalings(method):
    options = [{"scale": True}, {"center": False}, {"scale": True, "center": False}]
    return [chosen for chosen in options if chosen.keys() <= CARDS[method].options.model_fields.keys()]


def exact_runs():
    for method in EXACT:
        yield from ((method, name, {}) for name in FAMILIES)
        for options in scalings(method):  # about zero, components beside such an offset are too small to be resolved
            offset_families = {"offset 1e6"} if "center" in options else {}
            yield from ((method, name, options) for name in OF_OPTIONS if name not in offset_families)
    yield from (("spca", name, {"tracked": 200, "topology": way}) for name in FAMILIES for way in ("star", "tree"))


@pytest.mark.parametrize(("method", "name", "options"), list(exact_runs()), ids=str)
def test_exact_methods_give_the_pooled_components(method, name, options):
    family, model = FAMILIES[name], clear(method, name, **options)
    scaling = {key: value for key, value in options.items() if key in {"scale", "center"}}
    truth = pooled_pca(family.pooled, family.k, **scaling)
    assert model.log["exact"]
    require_well_formed(model, family, family.k)
    assert principal_angles(model, truth).max <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.singular_values_, truth.singular_values_, rtol=1e-9)
    total = truth.explained_variance_.sum()
    np.testing.assert_allclose(model.noise_variance_, truth.noise_variance_, rtol=1e-6, atol=1e-13 * total)
    np.testing.assert_allclose(model.mean_, truth.mean_, rtol=1e-12, atol=1e-14 * np.sqrt(total))


def half(method, families):
    """Every family meets half of the methods, and the hard ones all; methods that iterate long meet few parties."""
    turn, slow = FITTING.index(method) % 2, method in {"robust", "personalised", "dsa", "fast-pca"}
    return [
        name
        for i, (name, family) in enumerate(families.items())
        if name in HARD or (i % 2 == turn and not (slow and len(family.parties) > 7))
    ]


@pytest.mark.parametrize(
    ("method", "name"),
    [(name, family) for name in BY_ROWS if name in DETERMINED and name not in EXACT for family in half(name, FAMILIES)],
)
def test_every_model_is_well_formed(method, name):
    family, model = FAMILIES[name], clear(method, name)
    require_well_formed(model, family, model.n_components_ if CARDS[method].adapts_rank else family.k)
    require_shares(method, model, family.pooled, 1e-9)


@pytest.mark.parametrize(("name", "epsilon"), list(zip(FAMILIES, cycle([1.0, 100.0, "infinity"]), strict=False)))
@pytest.mark.parametrize("method", PRIVATE)
def test_every_private_model_is_well_formed(method, epsilon, name):
    family = FAMILIES[name]
    model = fit(method, family.parties, n_components=family.k, epsilon=epsilon)
    require_directions(model, family.k)
    if model.log["measured"].get("components_above_noise") != 0:
        require_variances(model)
        return
    assert epsilon != "infinity"
    numbers = [model.explained_variance_, model.explained_variance_ratio_, model.singular_values_]
    assert np.isnan([*np.concatenate(numbers), model.noise_variance_]).all()


def require_directions(model, k):
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-10)
    largest = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(k), largest] > 0).all()


def require_variances(model):
    assert (np.diff(model.explained_variance_) <= 0).all()
    assert 0 < model.explained_variance_ratio_.sum() <= 1 + 1e-12


def require_shares(method, model, pooled, rtol):
    """Shares are of the variance of all rows, and no more than the best components have."""
    if CARDS[method].variance_base:
        return
    share, best = model.explained_variance_ratio_.sum(), pooled_pca(pooled, model.n_components_)
    np.testing.assert_allclose(model.explained_variance_.sum() / share, pooled.var(axis=0, ddof=1).sum(), rtol=rtol)
    rounding = 1e-5 if method in BY_ROWS else 1e-12  # of the compressed covariance
    assert share <= best.explained_variance_ratio_.sum() * (1 + rounding)


def require_well_formed(model, family, k):
    require_directions(model, k)
    require_variances(model)
    assert model.n_samples_ == len(family.pooled)


@pytest.mark.parametrize("method", BY_COLUMNS)
def test_models_of_columns_are_saved_and_well_formed(method, tmp_path):
    model = fit(method, three(method), n_components=3)
    assert model.components_ is None
    assert (model.n_samples_, model.n_features_in_, model.n_components_) == (60, 12, 3)
    directions = model.scores_ / model.singular_values_
    np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-10)
    require_variances(model)
    require_shares(method, model, rows(60), 1e-12)
    assert (model.scores_[np.abs(model.scores_).argmax(axis=0), np.arange(3)] > 0).all()
    loaded = type(model).load(model.save(tmp_path / "model"))
    assert (loaded.components_, loaded.scores_.tobytes()) == (None, model.scores_.tobytes())
    assert loaded.summary(full=True) == model.summary(full=True)
    for use, given in ((model.transform, [rows(5)]), (model.to_sklearn, []), (model.inverse_transform, [rows(5)])):
        with refused(ContractError, method, "scores_"):
            use(*given)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"solver": "gram"}, {"solver": "merge", "rank": 80}], ids=str)
def test_exact_methods_give_the_scores_of_the_pooled_columns(options, name):
    X, k = FAMILIES[name].pooled, FAMILIES[name].k
    wide = X.shape[1]
    parties = np.split(X, [wide // 2, wide // 2 + wide // 4], axis=1)
    model, truth = fit("vertical", parties, n_components=k, **options), pooled_pca(X, k)
    assert angles_between(model.scores_, truth.transform(X)).max() <= 1e-5
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", [name for name in DETERMINED if name not in {"ap-stack", "dsa", "fast-pca"}])
def test_first_components_do_not_depend_on_k(method):
    """Variances so near that medians and sums order them otherwise; `ap-stack` truncates, and graphs' methods stop."""
    parties = three(method)
    if method in BY_ROWS:
        near = np.random.default_rng(0).standard_normal((300, 12)) * np.sqrt(np.linspace(4, 1, 12))
        parties = cut(near, 180, 100, 20)
    few, many = (fit(method, parties, n_components=k) for k in (2, 5 if method in BY_ROWS else 3))
    leading, expected = (model.components_.T if method in BY_ROWS else model.scores_ for model in (few, many))
    assert angles_between(leading[:, :2], expected[:, :2]).max() <= 1e-6
    np.testing.assert_allclose(many.explained_variance_[:2], few.explained_variance_[:2], rtol=1e-9)


@pytest.mark.parametrize(("method", "options", "phases"), ITERATIONS, ids=str)
def test_what_does_not_converge_goes_on_to_its_limit(method, options, phases):
    rng = np.random.default_rng(0)
    near = rng.standard_normal((300, 12)) ** 3 * np.sqrt(np.linspace(4, 1, 12))
    near[rng.random(near.shape) < 0.1 * CARDS[method].incomplete] = np.nan
    parties = cut(near, 180, 100, 20) if method in BY_ROWS else np.split(near[:60], [6, 10], axis=1)
    assert sum(entry["phase"] in phases for entry in fit(method, parties, n_components=2, **options).log["rounds"]) == 3


@pytest.mark.parametrize("method", [*DETERMINED, "vertical solver=gram", "vertical solver=merge"])
def test_orders_change_no_bit(method):
    name = method.split()[0]
    parties = FAMILIES["means shifted by ten deviations"].parties if name in BY_ROWS else three(name)
    model = fit(method, parties, n_components=3)
    for order in (parties[::-1], parties[1:] + parties[:1]):
        assert not differences(model, fit(method, order, n_components=3))
    same = (20, 10) if name in BY_ROWS else (20, 20)
    with pytest.raises(DataError, match="variance"):
        fit(method, [np.full((n, 4), 0.1) for n in same], n_components=2)


@pytest.mark.parametrize("method", BY_ROWS)
def test_shuffled_rows_change_nothing(method):
    rng, parties = np.random.default_rng(3), three(method)
    shuffled = [rng.permutation(part) for part in parties]
    model, other = (fit(method, some, n_components=5) for some in (parties, shuffled))
    np.testing.assert_allclose(model.components_, other.components_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=1e-9)


@every_method
def test_the_log_counts_what_travelled(method):
    model = fit(method, three(method), n_components=3)
    what, numbers = ("rows", [180, 100, 20]) if method in BY_ROWS else ("features", [6, 4, 2])
    assert [party[what] for party in model.log["parties"]] == ([None] * 3 if method in PRIVATE else numbers)
    assert ("3, with 2 to 6 features of the same rows" in model.summary(full=True)) == (method in BY_COLUMNS)
    assert model.log["rounds"][-1]["phase"] == "project"
    for entry in model.log["rounds"]:
        assert len(entry["up"]) == len(entry["down"]) == 3
        assert min(entry["up"]) > 0


def with_cell(part, value):
    return np.where(np.arange(part.size).reshape(part.shape) == 7 * part.shape[1], value, part)


@every_method
@pytest.mark.parametrize(("change", "named"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_party_with_unusable_data_is_named(method, change, named):
    parties = three(method)
    parties[1] = change(parties[1])
    with refused(DataError, "party 1", *named):
        fit(method, parties, n_components=2)


@every_method
def test_parties_that_do_not_fit_or_lack_values_are_named(method):
    by_rows, mismatched = method in BY_ROWS, [*three(method), rows(40, 11)]
    numbers = [11, 12] if by_rows else [40, 60, "p-cov"]
    with refused(DataError if by_rows else ContractError, "party 3", "party 0", *numbers):
        fit(method, mismatched, n_components=2)
    with refused(QuorumError, 3, 2):
        finish(server_of(method, three(method), n_components=2, clients=2))
    cases = [(three(method), 13, ConfigError, ["n_components", 13, 12])]
    if method in DETERMINED:  # a private method does not know that there is only one
        cases.append(([rows(1)], 2, DataError, [1, 2]))
        cases += [(cut(rows(9), 3, 3, 3), 10, ConfigError, ["n_components", 10, 9])] * by_rows
    cases += [(three(method), 0.5, ConfigError, ["n_components", "0.5"])] * (not by_rows)
    for parties, k, error, named in cases:
        with refused(error, *named):
            fit(method, parties, n_components=k)
    parties = three(method)
    parties[1] = with_cell(parties[1], np.nan)
    if CARDS[method].incomplete:
        assert fit(method, parties, n_components=2).n_samples_ == 300
        return
    takers = ", ".join(name for name in BY_ROWS if CARDS[name].incomplete)
    with refused(DataError, "party 1", f"method='{takers}'" if method in BY_ROWS else "NaN"):
        fit(method, parties, n_components=2)


SECURE = {"secure_aggregation": True, "bound": 100.0}
SUMS = SECURE, {**SECURE, "survivors": 3}
INSTEAD = {"center": "analyses.pca", "adjust_for": "analyses.adjusted", "harmonise": "keep='parties'"}
INSTEAD |= {"outliers": "analyses.outliers", "fourth_moments": "resample", "genotypes": "qr-pca"}  # needless with gaps
FEW_ROUNDS = [(method, rounds, size) for method in ("vertical", "sub-it") for rounds, size in ((1, 2), (2, 1))]
REFUSED = [
    *(("p-cov", {"n_components": value}, ["n_components", repr(value)]) for value in (1.5, "3", True)),
    *(("p-cov", {key: value}, [key, repr(value)]) for key, value in (("alpha", np.nan), ("partition", "even"))),
    ("qr-pca", {"rank": 1}, ["'rank'", 1, "n_components", 2]),
    ("qr-pca", {"rank": 8, "scale": True}, ["'rank'", "center=True", "scale=False"]),
    ("qr-pca", {"rank": 8, "n_components": 0.9}, ["'rank'"]),
    ("qr-pca wire=float32", {"rank": 10}, ["'wire'", "float32", "rank=0", "scale=False"]),
    ("qr-pca wire=float32", {"scale": True}, ["'wire'", "float32", "rank=0", "scale=False"]),
    *(("ap-cov party-weights=none", option, ["party_weights='rows'"]) for option in ({"center": False}, SECURE)),
    *(("sub-it warm-start=svd", option, ["warm_start", "'svd'"]) for option in ({"scale": True}, {"center": False})),
    ("sub-it warm-start=svd", {"acceleration": "none"}, ["warm_start", "'svd'"]),
    ("sub-it", {"n_components": 0.9}, ["n_components", "0.9"]),
    ("sub-it acceleration=none", {"block_size": 1}, ["block_size", 1, "acceleration='none'", 2]),
    *(
        (method, {"n_components": 3, "block_size": size, "max_rounds": n, **secure}, ["max_rounds", n, size, 2, 3])
        for method, n, size in FEW_ROUNDS
        for secure in ({}, SECURE)
    ),
    *(("compressed", {"codec": codec}, ["'codec'", f"'{codec}'", "'shared-step'"]) for codec in ("combined", "top-k")),
    ("compressed encoded=true codec=low-rank", SECURE, ["'encoded'", "'codec'"]),
    ("adaptive rule=divergences", SECURE, ["p-cov", "divergences"]),
    ("adaptive rule=divergences", {"target": 1.0}, ["target", "forecast"]),
    ("spca", {"n_components": 0.99, "tracked": 4}, ["'tracked'", 4, "n_components"]),
    ("spca", {"n_components": 5, "tracked": 4}, ["'tracked'", 4, "n_components", 5]),
    ("spca", {"n_components": 0.9, "tracked": "rank"}, ["'tracked'", "n_components"]),
    ("spca", {"old_weight": 0.5}, ["old_weight", "new_weight"]),
    *(("spca", {key: value}, [f"'{key}'", repr(value)]) for key, value in (("topology", "ring"), ("forgetting", 0.0))),
    ("sapca", {"share_low": 0.1}, ["share_low", "0.1", "share_high"]),
    ("sapca", {"rank_rule": "paper"}, ["rank_rule", "spca"]),
    *(("personalised", {"mu": mu}, ["'mu'", mu]) for mu in (-1.0, "global", float("inf"))),
    ("dsa", {"graph": "erdos-renyi", "edge_probability": 1e-6}, ["edge_probability", "1e-06", 1000, 3]),
    *((name, {"max_share": 0.5}, ["max_share", "0.5", name]) for name in FITTING if not CARDS[name].pools_moments),
    *(("p-cov", {"max_share": 0.5, **way}, ["max_share", "0.5", "secure_aggregation=True"]) for way in SUMS),
    ("robust robust-parties=true", SECURE, ["'secure_aggregation'"]),
    *(("em", {key: True}, [f"'{key}'", instead]) for key, instead in INSTEAD.items()),
    ("em", {"weights": "0"}, ["'weights'", "'em'", "run p-cov"]),
    ("em", {"keep": "parties", **SECURE}, ["'keep'", "'parties'", "keep='moments'"]),
    ("em factors=3", {}, ["'factors'", 3, "'model'", "'gaussian'"]),
    *(("em model=factors", {"n_components": k}, ["n_components", k, "model='factors'"]) for k in (0.5, "auto")),
    ("em model=factors", {"factors": 1}, ["'factors'", 1, "n_components", 2]),
    *(("em model=factors", {name: 12}, [11, "model='factors'"]) for name in ("n_components", "factors")),
    ("em model=factors", {"keep": "moments"}, ["'keep'", "'moments'", "model='factors'"]),
    ("em model=factors", {"keep": "parties"}, ["'keep'", "model='gaussian'"]),
    ("em model=factors", {"max_share": 0.5}, ["'max_share'", 0.5, "model='gaussian'"]),
    ("dp-pca release=joint", {}, ["'clip'"]),
    ("dp-pca clip=5.0", {"release": "directions"}, ["'clip'", "release='directions'"]),
    ("dp-pca clip=5.0", {"release": "two-stage"}, ["'release'", "'two-stage'", "'centre-clip'", "release='joint'"]),
    ("dp-pca", {"trust": "distributed"}, ["honest_parties"]),
    ("dp-pca", {"relation": "replace-one", "count": "noised"}, ["count='noised'"]),
    *(("dp-pca", {"epsilon": value}, ["'epsilon'", value]) for value in (0.0, float("inf"))),
    ("dp-pca", {"delta": 1.0}, ["'delta'", "1.0"]),
    ("dp-pca release=joint", {"clip": -1.0}, ["'clip'", "-1.0"]),
]
"""Options that a method does not take, or that do not go together, and what the refusal names."""


@pytest.mark.parametrize(("method", "options", "named"), REFUSED, ids=str)
def test_options_that_a_method_does_not_take_are_named(method, options, named):
    with refused(ConfigError, *named):
        fit(method, three(method.split()[0]), **{"n_components": 2, **options})


@every_method
@pytest.mark.parametrize(("play", "named"), [(exits, [1, 3, "client 1"]), (late, ["client 1", "round-deadline"])])
def test_a_party_that_dies_or_is_late_is_named(method, play, named, monkeypatch):
    monkeypatch.setattr(quorum, "time", Clock())
    server = server_of(method, three(method), n_components=2, round_deadline=70.0)
    deadlines = play(server, 1)
    with refused(QuorumError, *named):
        finish(server)
    assert deadlines == ([70.0] if play is late else None)


@every_method
def test_a_party_that_raises_ends_the_run_without_its_text(method, monkeypatch):
    monkeypatch.setattr(METHODS[method].client, "statistics", Mock(side_effect=ValueError("patient 4711 has 98.6")))
    with refused(PartyError, "party 0", "ValueError") as caught:
        fit(method, three(method), n_components=2)
    assert "4711" not in str(caught.value)


@every_method
def test_the_policy_of_a_site_holds_and_what_it_allows_is_answered(method):
    smallest, small_party = (20, "party 2") if method in BY_ROWS else (60, "party 0")
    with refused(DisclosureError, small_party, "min_rows", 61):
        fit(method, three(method), n_components=2, min_rows=61)
    with refused(DisclosureError, "party 0", "allowed_methods", method):
        fit(method, three(method), n_components=2, allowed_methods="other, another")
    with refused(DisclosureError, "party 0", "secure_only"):
        fit(method, three(method), n_components=2, secure_only=True)
    allowed = {"min_rows": smallest, "allowed_methods": f"other, {', '.join(METHODS)}"}  # adaptive goes on with others
    if method in BY_COLUMNS:
        allowed["may_show"] = "inner products"
        with refused(DisclosureError, "party 0", "may_show"):
            fit(method, three(method), n_components=2, may_show="nothing")
    assert fit(method, three(method), n_components=2, **allowed).n_components_ == 2 or CARDS[method].adapts_rank


def sums():
    """Every method that sums with its families, which take turns in how the sums travel."""
    together = {name: family for name, family in FAMILIES.items() if len(family.parties) > 1}
    for method in BY_ROWS:
        ways = [way for way in transports_of(METHODS[method]) if way in {"masked", "surviving"}]
        if method in PRIVATE or method == "compressed" or not ways:  # the codes of the latter do not add up in clear
            continue
        of_options = zip(OF_OPTIONS, cycle(scalings(method)[:2]), strict=False)
        for i, (name, options) in enumerate([*((name, {}) for name in half(method, together)), *of_options]):
            if method == "personalised" and "offset" in name and "center" in options:
                continue  # float64 does not resolve the variances beside such a mean, which the model says
            few = 3 <= len(FAMILIES[name].parties) <= 10
            yield method, ways[i % len(ways)] if few else "masked", name, options


@pytest.mark.parametrize(("method", "way", "name", "options"), pairwise_by_day(sums(), BY_DAY), ids=str)
def test_sums_only_give_the_model_that_clear_answers_give(method, way, name, options):
    family, plain = FAMILIES[name], clear(method, name, **options)
    parties, bound = len(family.parties), 2 * float(np.abs(family.pooled).max())
    secure = {"secure_aggregation": True, "bound": bound, "min_parties": 2}
    secure |= {"survivors": parties} if way == "surviving" else {}
    model = fit(method, family.parties, n_components=family.k, **options, **secure)
    assert principal_angles(model, plain).max <= 1e-8
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, plain.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, plain.mean_, rtol=1e-12, atol=1e-16 * bound)
    assert model.n_samples_ == plain.n_samples_
    assert [party["rows"] for party in model.log["parties"]] == [None] * parties
