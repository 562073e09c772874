"""Secure aggregation of rows or columns: the same result, nothing in clear at the server, and every misuse an error."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, QuorumError
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.protocol.journal import StateJournal
from fedpca_flwr.questions import row_limits
from fedpca_flwr.questions.row_limits import MAX_ROWS
from tests.families import cut, rows
from tests.harness import differences, exits, finish, fit, messages_of, on_request, server_of, tamper_arrays
from tests.refusals import refused

ROWS = ["p-cov", "ap-cov", "sub-it"]
COLUMNS = ["vertical", "vertical solver=gram"]
SECURE = {"secure_aggregation": True, "bound": 10.0}
PAGE = (Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text()
TABLE = re.findall(r"^\| (masked|survivors|both) \| `(\w+)` \| `(.+?)` \| `(.+?)` \|$", PAGE, re.M)
every_method = pytest.mark.parametrize("method", [*ROWS, *COLUMNS])
COUNT_UNIT = 2 ** (63 - int(np.frexp(float(MAX_ROWS))[1]))
WAYS = [
    *((method, {}) for method in (*ROWS, "vertical", "vertical-scores")),
    pytest.param("vertical solver=gram", {}, marks=pytest.mark.engine),
    *((method, {"survivors": 4}) for method in ("p-cov", "ap-cov")),
    ("dp-pca", {"survivors": 4, "release": "joint", "clip": 5.0, "epsilon": 100.0}),
]


def three(method):
    return np.split(rows(60), [6, 10], axis=1) if method.startswith("vertical") else cut(rows(300), 180, 100, 20)


def secure(method, parties=None, **options):
    return fit(method, parties or three(method), **{"n_components": 3, **SECURE, **options})


def secure_server(method="p-cov", **options):
    return server_of(method, three(method), **{"n_components": 2, **SECURE, **options})


@pytest.mark.parametrize("factor", [1.0, 1e12])
@every_method
def test_a_generous_bound_costs_offset_rows_nothing(method, factor):
    parties = [part + 1e6 for part in three(method)]
    plain, model = fit(method, parties, n_components=3), secure(method, parties, bound=1.1e6 * factor)
    assert principal_angles(model, plain).max <= 1e-8
    if method in ROWS:
        np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)


@pytest.mark.parametrize("bits", [10, 30])
def test_a_scatter_that_needs_its_spare_bits_has_all_digits(bits, monkeypatch):
    """Rows near the bound: with a few bits more for the last digits, products would be read modulo 2^64."""
    monkeypatch.setattr(row_limits, "SPARE_BITS", bits)
    parties = cut(np.random.default_rng(0).standard_normal((400, 256)) + 9, 200, 150, 50)
    model = secure("p-cov", parties, bound=20.0 + bits)
    assert ("digits" in [entry["phase"] for entry in model.log["rounds"]]) == (bits == 30)
    assert principal_angles(model, fit("p-cov", parties, n_components=3)).max <= 1e-8


@every_method
def test_the_order_of_parties_changes_no_bit(method):
    model, other = (secure(method, parties, secure_only=True) for parties in (three(method), three(method)[::-1]))
    assert not differences(model, other)
    measured, phases = model.log["measured"], [entry["phase"] for entry in model.log["rounds"]][:3]
    assert measured["pairwise_masked_parties"] == 3
    assert "squared_error_per_row" in measured
    if method in ROWS:
        assert [party["rows"] for party in model.log["parties"]] == [None] * 3
        assert 0 < measured["fixed_point_variance_share"] < 1e-21
        assert phases == (["keys", "sums", "product"] if method == "sub-it" else ["keys", "moments", "project"])
    else:
        assert [party["features"] for party in model.log["parties"]] == [6, 4, 2]
        assert 0 < measured["fixed_point_size_share"] < 1e-21
        assert phases == ["rows", "keys", "energy"]
        assert "the sums have a value for every row" in model.log["notes"][-1] or "gram" in method


def test_what_secure_sums_cannot_be_is_refused():
    for method, options, named in (
        ("qr-pca", {}, ["qr-pca", "p-cov", "ap-cov", "sub-it", "em", "streaming"]),
        ("sub-it", {"warm_start": "svd"}, ["warm_start='random'", "'sub-it'"]),
        ("vertical", {"solver": "merge"}, ["'merge'", "'krylov'", "'gram'"]),
        *((name, {"bound": 0.0}, ["secure_aggregation", "'bound'", 0, "1e-100"]) for name in ["p-cov", *COLUMNS]),
        *((method, {"bound": 1e60}, ["'bound'", "1e+60"]) for method in COLUMNS),
        *((method, {"bound": 1e40}, ["'bound'", "1e+40"]) for method in ROWS),
    ):
        with refused(ConfigError, *named):
            secure(method, **options)
    for method in ("p-cov", *COLUMNS):
        parties = three(method)
        parties[1][5, 3] = -12.75  # beyond the bound
        with refused(DataError, "party 1", "'bound'", 10) as caught:
            secure(method, parties)
        assert "12.75" not in str(caught.value)


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_three_parties_are_the_default_minimum(method):
    two = cut(rows(90), 60, 30) if method == "p-cov" else np.hsplit(rows(60), 2)
    for given, named in (({}, (2, 3, "min_parties")), ({"min_parties": 4}, ("party 0", 2, 4))):
        with refused(DisclosureError, *named):
            secure(method, two, **given)
    server = secure_server(method)
    exits(server, 2)
    with refused(QuorumError, 1, 3, "client 2"):
        finish(server)


@pytest.mark.parametrize(("method", "phase"), [("sub-it", "product"), ("p-cov", "project"), ("vertical", "product")])
def test_a_party_that_is_asked_something_else_leaves_noise(method, phase):
    """Otherwise a server could send zeros to all other parties and read the reply of the first."""
    server = secure_server(method)
    on_request(server, 1, phase, lambda arrays: [array[::-1].copy() for array in arrays])
    with refused(ContractError, 3, match="masks"):
        finish(server)


def test_what_a_party_or_the_server_changes_is_noticed():
    """A lying party can set the total count at will: 0 once passed for keys that came twice."""
    for place, number, named, match in (
        (1 - 12 * 13, 2 ** (20 + row_limits.SPARE_BITS), [], "fit"),
        *((1, count * COUNT_UNIT, [3, "4,294,967,296"], None) for count in (-300, -301, 2**32)),
    ):
        server, word = secure_server(), np.array([number % 2**64], np.uint64)

        def shift(sent, place=place, word=word):
            return [sent[0] + word * (np.arange(sent[0].size) == place % sent[0].size)]

        tamper_arrays(server, 1, shift, "moments")
        with refused(ContractError, *named, match=match):
            finish(server)
    for change, words in (
        (lambda arrays: arrays[:2], [2, 3, "(components, mean, scale)"]),
        (lambda arrays: [*arrays[:2], -np.ones(12)], ["'scale'", 0]),
        (lambda arrays: [2 * arrays[0], *arrays[1:]], ["'components'"]),
        (lambda arrays: [arrays[0], arrays[1][:5], arrays[2]], ["'mean'", "(5,)", "(12,)"]),
        (lambda arrays: [arrays[0][0], *arrays[1:]], ["'components'", 1, 2]),
    ):
        server = secure_server()
        on_request(server, 1, "project", change)
        with refused(ContractError, "client 1", *words):
            finish(server)


def test_rows_that_are_alike_and_features_too_small_to_be_scaled_are_told_or_refused():
    """The scale is then 1, as that of a constant feature. The sum of a run with survivors resolves less."""
    equal_rows, few = [np.full((n, 2), [3.0, 4.0]) for n in (3, 2)], {"n_components": 1, "bound": 4.0, "min_parties": 2}
    for method in (*ROWS, "personalised"):  # with center=false they have components about zero
        np.testing.assert_allclose(secure(method, equal_rows, center=False, **few).components_, [[0.6, 0.8]])
        with refused(ConfigError, "'bound'", match="identical"):
            secure(method, equal_rows, **few)
    less = {"bound": 1e10, "survivors": 3}
    for method, other_size, options in (*((method, 1.0, {"bound": 1e14}) for method in ROWS), ("p-cov", 1e9, less)):
        X = rows(60) * np.insert(np.ones(10), [3, 4], [1e-30, other_size])
        model = secure(method, cut(X, 30, 20, 10), n_components=2, scale=True, **options)
        assert model.scale_[3] == 1
        assert "1 features were taken for constant and not scaled" in " ".join(model.log["notes"])
    two = np.isin(np.arange(12), [3, 4])
    tiny, constant = (cut(rows(60) * np.where(two, size, 1), 30, 10, 10, 10) for size in (1e-24, 0))
    options = {"scale": True, "bound": 2 * float(np.abs(rows(60)[:, ~two]).max()), "survivors": 4}
    with refused(ConfigError, "'bound'", 2):
        secure("p-cov", tiny, **options)
    plain, model = fit("p-cov", constant, n_components=3, scale=True), secure("p-cov", constant, **options)
    assert principal_angles(plain, model).max < 1e-9
    assert "2 features were taken for constant" in " ".join(model.log["notes"])
    z = np.random.default_rng(3).standard_normal((90, 3))
    z[:, 2] += z[:, 0]
    parts, options = cut(z * [1, 1, 1e-11], 30, 30, 30), {"n_components": 1, "scale": True}
    exact = fit("p-cov", parts, **options)
    for bound in (1e1, 1e8):
        assert principal_angles(secure("p-cov", parts, **options, bound=bound), exact).max <= 1e-6
    for bound in (1e20, 1e24):
        with refused(ConfigError, "'bound'"):
            secure("p-cov", parts, **options, bound=bound)


def test_scaled_columns_need_no_bound_and_extreme_values_stay_within_float64():
    """Scaled columns have no unit; sums of such columns resolve their values beside a bound of any size."""
    parties, options = three("vertical"), {"n_components": 2, "scale": True, "center": True}
    plain, model = fit("vertical", parties, **options), secure("vertical", parties, bound=1e90, **options)
    assert principal_angles(plain, model).max < 1e-9
    # With their means a nearer bound does not help where the columns are as large; another unit does.
    options["center"] = False
    with refused(ConfigError, "'bound'", "1e+90", "center=True"):
        secure("vertical", [1e89 * part for part in parties], bound=1e90, **options)
    assert secure("vertical", parties, **options).n_components_ == 2
    # A norm of variances must not square them: beyond float64 the certificate would be infinite.
    model = secure("personalised", cut(1e90 * rows(60), 30, 20, 10), n_components=2, mu=0.5, iterations=5, bound=3e92)
    assert np.isfinite(model.explained_variance_).all()
    # What varies is scaled, and what varies by a last digit counts as constant: unscaled it would hide the others.
    for digits, constant in ((np.arange(60), False), (np.arange(60) % 2, True)):
        X = rows(60)
        X[:, 2] = 1e20 + np.spacing(1e20) * digits
        model = secure("vertical", np.split(X, 3, axis=1), n_components=2, scale=True, bound=1e25)
        X[:, 2] = 0.0 if constant else digits
        assert principal_angles(model, fit("vertical", np.split(X, 3, axis=1), n_components=2, scale=True)).max < 1e-6


def test_new_rows_have_scores_in_secure_sums(tmp_path):
    """The fault: rounding of loadings without variance, divided by nearly nothing, made scores beyond public limits."""
    binary = np.random.default_rng(0).integers(0, 2, (20, 40)) * np.where(np.arange(40) == 30, 1e17, 1.0)
    small = [1e-70 * part for part in three("vertical")]
    for parties, k, bound in ((np.split(binary, 2, axis=1), 20, 1e18), (small, 2, 1e-68)):
        loadings = [tmp_path / f"{k} {party}.npz" for party in range(len(parties))]
        options = {"n_components": k, "loadings": loadings}
        first = fit("vertical", parties, **options)
        for path in loadings:
            assert np.linalg.norm(Loadings.load(path).components, axis=1).max() <= 1 + 1e-6
        projected = secure("vertical-scores", parties, bound=bound, min_parties=2, **options)
        assert projected.scores_ is not None
        assert k == 20 or principal_angles(first, projected).max < 1e-6


@pytest.mark.parametrize(("method", "options"), WAYS, ids=str)
def test_nothing_in_clear_reaches_the_server(method, options, monkeypatch, tmp_path):
    parties = cut(rows(400) + 1, 150, 100, 80, 50, 20) if "survivors" in options else three(method)
    options = {"n_components": 2, **SECURE, **options}
    if method == "vertical-scores":
        options["site"] = {"loadings": [str(tmp_path / f"{party}.npz") for party in range(3)]}
        fit("vertical", parties, n_components=3, **options["site"])
    plain, secrets, encode, keep = set[bytes](), list[tuple[str, bytes]](), Layout.encode, StateJournal.store_secret

    def noting(self, *parts):
        vector = encode(self, *parts)
        numbers = [value for values in parts for array in values.values() for value in np.ravel(array)]
        plain.update(np.float64(value).tobytes() for value in numbers if value)
        # small words are numbers such as those of rows and columns, which are told
        plain.update(word.tobytes() for word in vector if abs(int(word.view(np.int64))) > 2**16)
        return vector

    monkeypatch.setattr(Layout, "encode", noting)
    monkeypatch.setattr(StateJournal, "store_secret", lambda *given: secrets.append(given[1:]) or keep(*given))
    server = server_of(method, parties, **options)
    messages = messages_of(server)
    finish(server)
    if method == "dp-pca":  # its last round tells a constant, here of each party at the end
        constants, messages = messages[-len(parties) :], messages[: -len(parties)]
        assert len(set(constants)) == 1
    everything = b"|".join(messages)
    assert len(messages) >= len(parties) * 3
    assert len(plain) > 100
    keys = [value for name, value in secrets if name in {"private", "masking", "seed"}]
    assert len(keys) >= len(parties)
    assert not [value for value in [*plain, *keys] if value in everything]


@pytest.mark.parametrize(
    ("kind", "method", "features", "parties"),
    [
        ("masked", "p-cov", 7, 4),
        pytest.param("masked", "p-cov", 5, 52, marks=pytest.mark.engine),
        ("masked", "sub-it block-size=3 max-rounds=2", 9, 6),  # later blocks may have fewer columns
        ("survivors", "p-cov", 7, 4),
        ("survivors", "p-cov", 9, 6),
    ],
)
def test_a_round_has_the_bytes_up_and_down_that_the_page_says(kind, method, features, parties):
    symbols = {"d": features, "P": parties, "k": 2, "b": 3}
    formulas = {phase: (up, down) for of, phase, up, down in TABLE if of in (kind, "both")}
    secure = {"secure_aggregation": True, "bound": 1e3, "survivors": parties - 1 if kind == "survivors" else 0}
    data = [rows(30 + party, features, seed=party) for party in range(parties)]
    entries = fit(method, data, n_components=2, **secure).log["rounds"]
    assert ("openings" in [entry["phase"] for entry in entries]) == (parties > 50)
    for entry in entries:
        up, down = (eval(formula, symbols.copy()) for formula in formulas[entry["phase"]])
        if entry["phase"] == "product" and "product" not in [one["phase"] for one in entries[: entry["round"] - 1]]:
            down += 4 * features * 3  # the first one is in float64
        assert [set(entry["up"]), set(entry["down"])] == [{up}, {down}], entry["phase"]


def test_in_all_a_run_costs_what_the_page_says():
    assert len(TABLE) == 12
    model = fit("p-cov", [rows(30, 7, seed=seed) for seed in range(3)], n_components=2)
    assert set(model.bytes_up_by_party) == {520 + 8 * 7 + 4 * 7 * 8}
    excluded = ("product", "openings", "sums", "digits")
    masked = [eval(up, {"d": 7}) for of, phase, up, _ in TABLE if of == "masked" and phase not in excluded]
    assert sum(masked) == 520 + 64 * 7 + 8 * 7 * 8
