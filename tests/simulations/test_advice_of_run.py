"""Each advice of a refusal of `run`, `FederatedPCA` or `compare`, applied, changes the error or gives the right rows.

A refusal names the columns of frames, and has the words of a caller in Python: no config, no client and no site.
"""

import re

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import FederatedPCA, compare, read, run
from fedpca_flwr.errors import DataError, FedPCAError

X = np.random.default_rng(0).standard_normal((60, 4)) * [4, 3, 2, 1]
A, B, XA = X[:40], X[40:], np.vstack([X, X[:40]])
F = [pd.DataFrame(A, columns=[*"abcd"]), pd.DataFrame(B, columns=[*"abcd"])]
G = pd.concat(F, ignore_index=True).assign(site=np.repeat(["north", "south"], [40, 20]))
H, C = [G[::2], G[1::2]], [rows.astype({"site": "category"}) for rows in (G[::2], G[1::2])]
T = np.array([["x", 1.0], ["y", 2.0], ["y", 0.0]] * 10, dtype=object)
NAN, INFINITE = ([F[0].assign(c=[value, *A[1:, 2]]), F[1]] for value in (np.nan, np.inf))


def fit(parties, groups=None, **options):
    return FederatedPCA(**{"n_components": 2, **options}).fit(parties, groups=groups).model_


def judge(parties, **options):
    (record,) = compare(parties, **{"methods": "p-cov", "n_components": 2, **options})
    assert record["max angle"] < 1e-6


def case(parties, *advice, right=X, call=run, method="p-cov", **options):
    """Return a refusal with its advice: code, or "part of its text -> parties (* of each party f) => options"."""
    return call, parties, advice, right, {"method": method, "progress": False, **options} if call is run else options


GROUP = "{str(name): rows.drop(columns='site') for name, rows in parties}"
DROP, NUMBERS = "drop -> * f[(abs(f) < 99).all(axis=1)]", "leave them out -> * f.iloc[:, :4]"
SUMS, COV = {"secure_aggregation": True, "bound": 20}, "do: p-cov => method='p-cov', min_parties=2"
CASES = {
    **{f"groups to {do.__name__}": case(G.groupby("site"), GROUP, call=do) for do in (run, fit, judge)},
    **{f"NaN to {do.__name__}": case(NAN, DROP, right=X[1:], call=do) for do in (run, fit, judge)},
    **{f"words to {do.__name__}": case(H, NUMBERS, call=do) for do in (run, fit, judge)},
    **{f"a slip to {do.__name__}": case(F, "'scale'? => scal=..., scale=True", scal=1, call=do) for do in (run, fit)},
    "groups of c": case(G.groupby("c"), GROUP.replace("site", "c")),
    "one array": case(X, "[X]"),
    "one frame": case(G, "[X]", GROUP.replace("parties", "X.groupby('site')")),
    "names and frames": case([*G.groupby("site")], "dict(parties)"),
    "numbers as names": case({0: A, 1: B}, "{str(key): rows for key, rows in parties.items()}"),
    "signs in names": case({"a/b": A, "c": B}, "leave out '/' -> {'ab': A, 'c': B}"),
    "series": case([f.a for f in F], "df[['name']] -> * f.to_frame()", right=X[:, :1], n_components=1),
    "images": case([A.reshape(40, 2, 2)], "X.reshape(len(X), -1) -> * f.reshape(len(f), -1)", right=A),
    "numbers in words": case([f.astype({"d": str}) for f in F], "pandas.to_numeric -> * f.apply(pd.to_numeric)"),
    "categories": case(C, "pandas.get_dummies -> H", "'levels' => levels='a'"),
    "words": case(G, "'levels' => levels='site', scale=True", right=None, call=fit, groups=G.site),
    "levels": case(H, right=None, levels="site"),
    "levels of arrays": case([T, T], "pandas.DataFrame(X -> * pd.DataFrame(f, columns=[*'ab'])", levels=["a"]),
    "levels of numbers": case(H, "lower 'min_rows' => min_rows=1", levels=["a"]),
    "another name": case([F[0], F[1].set_axis([*"abce"], axis=1)], "Rename -> F"),
    "a column less": case([F[0], F[1][[*"abc"]]], "NaN and run 'em' -> F => method='em'"),
    "a name twice": case([f.set_axis([*"abca"], axis=1) for f in F], "a name of its own -> F"),
    "NaN in groups": case(pd.concat(NAN), right=X[1:], call=fit, groups=G.site),
    "NaN in columns": case([A[:, :2], np.where(A > 2, np.nan, A)[:, 2:]], method="vertical"),
    "no value": case([f.assign(d=np.nan) for f in F], "leave -> * f[[*'abc']]", right=X[:, :3], method="em"),
    "infinity": case(INFINITE, DROP, right=X[1:]),
    "few rows": case([A, B[:3]], "lower 'min_rows': 1 => min_rows=1", right=X[:43]),
    "many components": case(F, "from 1 to 4 => n_components=4", n_components=9),
    "a slip in a method": case(F, "did you mean 'p-cov'? => method='p-cov'", method="pcov"),
    "an option of others": case(F, method="dsa", center=False),
    "no bound": case([*F, A], "'bound' => bound=20", right=XA, secure_aggregation=True),
    "small bound": case([*F, F[0]], "larger 'bound' => bound=20", right=XA, secure_aggregation=True, bound=8),
    "two in a sum": case(F, "lower 'min_parties', to 2 => min_parties=2", **SUMS),
    "sums only": case(F, secure_only=True),
    "blind": case(F, COV, blind=True, method="sub-it", **SUMS),
    "survivors": case([*F, A], "to 0 => survivors=0", COV, right=XA, method="sub-it", survivors=3, **SUMS),
    "moments of parties": case([*F, A], right=XA, keep="parties", **SUMS),
    "a rule": case(F, "'allowed_methods': ap-cov => method='ap-cov'", right=None, allowed_methods="ap-cov"),
    "no such weights": case([f.assign(w=1.0) for f in F], "number from 0 => weights=4", weights="v"),
    "no such covariate": case(F, "numbers from 0 => adjust_for=[3]", right=None, adjust_for="age"),
    "logarithms": case(F, right=np.arcsinh(X), transform="log1p"),
    "parties": case(F, "leave it out => clients=...", clients=3),
    "other rows": case([A, B], "'p-cov' => method='p-cov'", method="vertical"),
}
VALUE, WORDS = r"\b\w+=(?:True|False|'[\w-]*')", re.compile(r"node-config|run-config|\b(client|site)s?\b")


def refusal(call, parties, right, options):
    """Return the error of a call, or None if it gives the components of the right rows, if these are given."""
    try:
        model = call(parties=parties, **{"n_components": 2, **options})
    except FedPCAError as error:
        return error
    if model is not None and right is not None:
        right = right / right.std(axis=0) if options.get("scale") else right
        V = np.linalg.svd(right - right.mean(axis=0))[2][: model.n_components_]
        np.testing.assert_allclose(abs(model.components_), abs(V), atol=0.01 if options.get("method") == "em" else 1e-6)
    return None


@pytest.mark.parametrize("name", CASES)
def test_advice_changes_the_error_or_gives_the_right_rows(name):
    call, parties, advice, right, options = CASES[name]
    error = refusal(call, parties, right, options)
    text = re.sub(r"\{.*\}", "", str(error))
    assert isinstance(error, FedPCAError)
    assert not WORDS.search(re.sub(r"(?<!\w)'[^'\n]*'", "", text))
    if isinstance(error, DataError) and isinstance(parties, list) and isinstance(parties[-1], pd.DataFrame):
        assert any(f"'{column}'" in text for column in parties[-1])
    assert text.count("did you mean") == "".join(advice).count("?")
    values = re.findall(f"{VALUE}(?: and {VALUE})*", text)
    for hint in [*advice, *(f"{value} => {value.replace(' and ', ', ')}" for value in values)]:
        part, _, changes = hint.partition(" => ")
        part, _, code = part.partition(" -> ")
        assert part in str(error)
        code = f"[{code[2:]} for f in parties]" if code[:1] == "*" else code or ("parties" if changes else part)
        new = eval(code, {**globals(), "X": parties, "parties": parties})
        changed = {key: value for key, value in (options | eval(f"dict({changes})")).items() if value is not ...}
        if new is not parties or changed != options:
            assert str(refusal(call, new, right, changed)) != str(error), hint


def test_codes_of_missing_values_are_nan_once_they_are_named(tmp_path):
    F[0].assign(c=[-999, -999, *A[2:, 2]]).to_csv(tmp_path / "north.csv", index=False)
    notes = run("p-cov", [tmp_path / "north.csv", F[1]], n_components=2).log["notes"]
    (missing,) = re.findall(r"missing='(.+?)'", " ".join(notes))
    assert np.isnan(read(tmp_path / "north.csv", missing=missing).frame().c).tolist() == [True] * 2 + [False] * 38
