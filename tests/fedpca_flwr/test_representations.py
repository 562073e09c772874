"""What public objects and errors print: sizes and names, no value of a row, no address, and no foreign controls.

A notebook prints the last value of a cell, and people share notebooks.
"""

import re
import sys
import traceback
import unicodedata
from collections import namedtuple
from dataclasses import make_dataclass
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
from flwr.app import RecordDict
from scipy import sparse

import fedpca_flwr
from fedpca_flwr import analyses, battery, client_app, client_loadings, compare, pooled_pca, principal_angles, read, run
from fedpca_flwr.config.method_text import format_method
from fedpca_flwr.data.table import check_rows
from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, printable_text, value_text
from fedpca_flwr.figures import markdown
from fedpca_flwr.maths.description import describe, represent_by_shapes
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.moments import Head, Moments
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.protocol.admission import MESSAGES, ErrorReport, parse_info, reported_errors
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.questions import method
from fedpca_flwr.site.rows.vault import Vault
from fedpca_flwr.strategies import FACTORY
from tests.analyses.test_every_analysis import FOUND
from tests.families import cut, rows
from tests.harness import finish, server_of, tamper

MARKER = 8765.4321
SHOWN_MARKER, ADDRESS = r"8,?765\.?4", "0x[0-9a-fA-F]{6,}"
NAMES = ["age", "height", "weight", "dose"]
X = np.random.default_rng(0).normal(5000, 1500, (60, 4))
X[3, 1] = X[40, 2] = MARKER
FRAME = pd.DataFrame(X, columns=NAMES)
PARTIES = {"north": FRAME[:35], "south": FRAME[35:]}


@cache
def model(**options):
    return run("p-cov", PARTIES, n_components=2, keep="parties", **options)


@cache
def grid():
    app = client_app(lambda context: X[context.node_config["partition-id"] :: 3], "p-cov", n_components=2)
    nodes, strategy = fedpca_flwr.LocalGrid(app, 3), fedpca_flwr.FedPCA("p-cov", n_components=2, clients=3)
    strategy.start(nodes)
    return nodes, strategy


def federation(folder):
    members = fedpca_flwr.Federation.open(folder / "federation")
    members.join("north", FRAME[:1])  # whose mean is its row
    members.join("south", FRAME[1:])
    return members


def table(folder, suffix):
    file = folder / f"rows{suffix}"
    writers = {".csv": partial(FRAME.to_csv, index=False), ".parquet": partial(FRAME.to_parquet, index=False)}
    writers |= {".npy": partial(np.save, arr=X), ".npz": partial(sparse.save_npz, matrix=sparse.csr_matrix(X))}
    writers[suffix](file)
    return read(file)


SOLUTION = method.Solution(pairs=method.leading_eigenpairs(np.eye(4), 2), mean=X[3], total=4.0, rows=60)
BLOCKS = Blocks(lambda: iter([X]), 4, X.dtype, count=60)
OBJECTS = {
    **{f"read {kind}": (partial(table, suffix=kind), ["60", "4", *NAMES]) for kind in (".csv", ".parquet")},
    **{f"read {kind}": (partial(table, suffix=kind), ["60", "4"]) for kind in (".npz", ".npy")},
    "table of blocks": (lambda folder: check_rows(BLOCKS, tuple(NAMES)), ["60", "4", *NAMES]),
    "rows of a table": (lambda folder: BLOCKS, ["60", "4"]),
    "Federation": (federation, ["north", "south", "4"]),
    "PCAModel": (lambda folder: model(), ["2", "4", "60"]),
    "pooled_pca": (lambda folder: pooled_pca(FRAME, 2), ["2", "4"]),
    "principal_angles": (lambda folder: principal_angles(model(), pooled_pca(FRAME, 2)), []),
    "SecondMoments": (lambda folder: model().moments_, ["60", "4", "2 parties"]),
    "moments of parties": (lambda folder: model().moments_.parties, ["north", "south"]),
    "FederatedPCA": (lambda folder: fedpca_flwr.FederatedPCA(n_components=2).fit([X[:35], X[35:]]), ["2"]),
    "LocalGrid": (lambda folder: grid()[0], ["3", "pca"]),
    "FedPCA": (lambda folder: grid()[1], ["PooledCovariance", "2"]),
    "client_app": (lambda folder: grid()[0].app, ["pca"]),
    "client_loadings": (lambda folder: client_loadings(grid()[0].contexts[1]), ["2 x 4"]),
    "METHODS": (lambda folder: fedpca_flwr.METHODS, ["p-cov", "sub-it"]),
    "a method": (lambda folder: fedpca_flwr.METHODS["p-cov"], ["PooledCovariance"]),
    "a card": (lambda folder: fedpca_flwr.PooledCovariance.card, ["p-cov"]),
    "compare": (lambda folder: compare(PARTIES, methods=["p-cov"], n_components=2), ["p-cov"]),
    "battery": (lambda folder: battery("p-cov"), ["one party"]),
    # for authors of methods
    "Vault": (lambda folder: Vault(X, State(RecordDict()), columns=0, parties=3), ["60", "4"]),
    "Moments": (lambda folder: Moments.from_rows(X[3:4]), ["4"]),
    "Head": (lambda folder: Head(1, X[3], X[3]), ["4"]),
    "Eigenpairs": (lambda folder: method.leading_eigenpairs(np.diag(X[3]), 2), ["4 x 2"]),
    "Factor": (lambda folder: Factor(Head(1, X[3], X[3]), X, 1.0), ["60 x 4"]),
    "Solution": (lambda folder: SOLUTION, ["60", "4"]),
    "Round": (lambda folder: method.Round("product", {"block": X}), ["product", "block"]),
    "SumRound": (lambda folder: method.SumRound("product", {"block": X}, estimate={"sum": X}), ["product", "sum"]),
    "Total": (lambda folder: method.Total({"sum": X}, 3), ["sum", "3"]),
    "Reply": (lambda folder: method.Reply(0, "north", "client 0", 60, [X.tobytes()], {"rows": X}), ["north", "1,920"]),
    "a payload": (lambda folder: method.Payload((method.Field("count", ()),)), ["count"]),
}
OBJECTS |= {f"analyses: {name}": (partial(lambda make, folder: make(), make), []) for name, (make, _) in FOUND.items()}
OBJECTS |= {
    "of marked rows: outliers": (lambda folder: analyses.outliers(model(), FRAME), []),
    "of marked rows: drift": (lambda folder: analyses.drift(model(), FRAME), []),
    "of marked rows: read": (lambda folder: analyses.read(model().moments_, 2), []),
    "of marked rows: factor_analysis": (lambda folder: analyses.factor_analysis(model().moments_, 1), []),
    "of marked rows: ridge": (lambda folder: analyses.ridge(model().moments_, ["age"]), []),
    "of marked rows: clusters": (lambda folder: analyses.clusters(model(clusters=2)), []),
}


def texts_of(thing):
    """Return what a console, a page and a format string show of an object."""
    return [repr(thing), str(thing), f"{thing}", repr([thing]), getattr(thing, "_repr_html_", thing.__repr__)()]


@pytest.mark.parametrize("name", OBJECTS)
def test_public_objects_print_sizes_and_names_and_no_value(name, tmp_path):
    make, words = OBJECTS[name]
    thing = make(tmp_path)
    assert not [text for text in texts_of(thing) if re.search(rf"{SHOWN_MARKER}|{ADDRESS}|array\(", text)]
    assert not [word for word in words if word not in repr(thing)]
    assert len(repr(thing)) < 6000


def test_a_value_in_every_row_is_not_shown_either(tmp_path):
    """A column of one value has its mean in a model, and no object but the table of means shows it."""
    constant = FRAME.assign(dose=MARKER)
    constant.to_csv(tmp_path / "rows.csv", index=False)
    fitted = run("p-cov", [constant[:35], constant[35:]], n_components=2)
    vault = Vault(constant.to_numpy(), State(RecordDict()), columns=0, parties=2)
    for thing in (read(tmp_path / "rows.csv"), fitted, vault):
        assert not re.search(SHOWN_MARKER, "\n".join(texts_of(thing)))


def test_descriptions_have_kind_size_and_what_is_not_default():
    ten, head = ", ".join(map(str, range(10))), Head(1, X[3], X[3])
    things = {"2 x 3 int8": sparse.csr_array((2, 3), dtype="int8"), "one float64": np.array(MARKER)}
    things |= {"int8": np.dtype("int8"), "1,234 bytes": b"a" * 1234, "1 bytes": memoryview(b"a"), "dict": dict}
    things |= {"{'a', 'b'}": {"a": MARKER, "b": X}, "[0, 60 x 4 float64]": [0, X], "set": {1}, repr(head): head}
    things |= {f"[{ten}]": list(range(10)), f"[{ten} and 1,001 more]": tuple(range(1011))}
    assert [describe(thing) for thing in things.values()] == list(things)
    fields = [("rows", object), ("make", object, None), ("note", str, "none"), ("seed", int, 3), ("scale", float, 1.0)]
    settings = represent_by_shapes(make_dataclass("Settings", fields))
    assert repr(settings(X[:2])) == "Settings(rows: 2 x 4 float64, note: 'none')"
    assert repr(settings(("a",), len, "", 4, None)) == "Settings(rows: ['a'], seed: 4)"
    assert repr(settings((), int, "", True, 2.0)) == "Settings(make: int, seed: True, scale: 2.0)"
    pair: type = represent_by_shapes(namedtuple("Pair", "first second", defaults=[2]))
    assert [repr(pair(0)), repr(pair({}, 3))] == ["Pair(first: 0)", "Pair(second: 3)"]


def test_every_public_name_is_here():
    """The strategies are below, and errors hold no value by another test."""
    objects = {name: getattr(fedpca_flwr, name) for name in fedpca_flwr.__all__}
    strategies = [entry.strategy for entry in fedpca_flwr.METHODS.values()]
    errors = {name for name, thing in objects.items() if isinstance(thing, type) and issubclass(thing, Exception)}
    others = {name for name, thing in objects.items() if thing not in strategies} - errors
    assert others - {"__version__", "run", "read"} <= set(OBJECTS)


CELL = np.arange(X.size).reshape(X.shape) == 13  # in row 3, column 1
TEXT = np.where(CELL, f"{MARKER} kg", X.astype(object))
WRONG_ROWS = {
    "a text in a frame": pd.DataFrame(TEXT, columns=NAMES),
    "a text": TEXT,
    "NaN": np.where(CELL, np.nan, X),
    "infinity": np.where(CELL, np.inf, X),
    "too large": X * 1e200,
    "one axis": X[:, 1],
    "three axes": X[None],
    "too many columns": np.hstack([X, X]),
    "a ragged list": [*X.tolist(), [1.0]],
    "bytes": X.tobytes(),
    "complex numbers": X + 1j,
    "categories": FRAME.assign(age=pd.Categorical(FRAME["age"].astype(str))),
    "a number": MARKER,
}


def app_of(rows):
    app = client_app(lambda context: rows, "p-cov")
    return fedpca_flwr.FedPCA("p-cov", clients=2).start(fedpca_flwr.LocalGrid(app, 2))


TAKERS = {
    "run": lambda rows: run("p-cov", [FRAME, rows], n_components=2),
    "run of one": lambda rows: run("p-cov", rows, n_components=2),
    "em": lambda rows: run("em", [FRAME, rows], n_components=2),
    "compare": lambda rows: compare([FRAME, rows], methods=["p-cov"], n_components=2),
    "fit": fedpca_flwr.FederatedPCA(n_components=2).fit,
    "fit of parties": lambda rows: fedpca_flwr.FederatedPCA(n_components=2).fit([X, rows]),
    "estimator.transform": lambda rows: fedpca_flwr.FederatedPCA(n_components=2).fit([X, X]).transform(rows),
    "model.transform": lambda rows: model().transform(rows),
    "inverse_transform": lambda rows: model().inverse_transform(rows),
    "pooled_pca": lambda rows: pooled_pca(rows, 2),
    "SecondMoments": lambda rows: SecondMoments.of(rows),
    "outliers": lambda rows: analyses.outliers(model(), rows),
    "drift": lambda rows: analyses.drift(model(), rows),
    "client_app": app_of,
    "client_loadings": lambda rows: client_loadings(grid()[0].contexts[1]).part_of_scores(rows),
}


@pytest.mark.parametrize("wrong", WRONG_ROWS)
@pytest.mark.parametrize("taker", TAKERS)
def test_errors_about_rows_quote_no_value(taker, wrong, capfd):
    try:
        TAKERS[taker](WRONG_ROWS[wrong])
    except Exception as error:
        print("".join(traceback.format_exception(error)))
    assert not re.search(SHOWN_MARKER, "".join(capfd.readouterr()))


ARGUMENTS = {
    "pooled_pca": lambda table: pooled_pca(X, table),
    "run": lambda table: run("p-cov", [X], n_components=table),
    "method": lambda table: run(table, [X]),
    "FedPCA": lambda table: fedpca_flwr.FedPCA(table),
    "options": lambda table: fedpca_flwr.PooledCovariance(n_components=table),
    "principal_angles": lambda table: principal_angles(model(), table),
    "read": lambda table: analyses.read(model().moments_, table),
    "moments": lambda table: analyses.read(table, 2),
    "LocalGrid": lambda table: fedpca_flwr.LocalGrid(table, 0),
    "compare": lambda table: compare([X], methods=["p-cov"], n_components=table),
}


@pytest.mark.parametrize("place", ARGUMENTS)
@pytest.mark.parametrize("table", [X, FRAME, X.tolist()], ids=["array", "frame", "list"])
def test_a_table_in_the_wrong_place_is_not_quoted(place, table):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which error it is, other tests hold)
        ARGUMENTS[place](table)
    assert not re.search(SHOWN_MARKER, "".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("name", fedpca_flwr.METHODS)
def test_cards_and_questions_print_no_addresses(name):
    card = fedpca_flwr.METHODS[name].strategy.card
    strategy = FACTORY.strategy({"method": format_method(name, card.examples[0]), "n-components": 2, "clients": 3})
    things = strategy, card, dict(card.script(strategy.config, strategy.options))
    assert not re.search(ADDRESS, "\n".join(map(repr, things)))
    assert repr(card).startswith(f"MethodCard(name: '{name}'")


EVIL = "a\x1b[2J\u202eb\u2028c\x85d\u200be\x07"
CLEAN = "a?[2J?b?c?d?e?"


@pytest.mark.engine
def test_no_character_that_controls_or_turns_anything_is_left():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert not {unicodedata.category(one) for one in printable_text(every)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    printable_text(every).encode()  # half a surrogate pair could not be
    assert (printable_text("a\nb", lines=True), printable_text("a\nb")) == ("a\nb", "a?b")
    assert printable_text("Zürich, 東京 3 °C") == "Zürich, 東京 3 °C"


def test_errors_tables_and_clients_hold_no_foreign_text():
    for kind in (FedPCAError, ConfigError, ContractError):
        error = kind(f"x: {EVIL}\ny", local=EVIL)
        assert (str(error), error.local, error.__notes__) == (f"x: {CLEAN}\ny", CLEAN, [CLEAN])
    assert markdown.row([f"{EVIL}\n", 3]) == f"| {CLEAN}? | 3 |"
    assert value_text("x" * 300) == f"'{'x' * 199}..."
    assert (value_text([1.5, 2.5]), value_text(["a", 2.5]), value_text(["a"])) == (*["of type list"] * 2, "['a']")
    with pytest.raises(ContractError) as caught:
        parse_info({"partition-id": 0, "num-partitions": 3, "simulated": True, f"{EVIL}\nclient 2": "x"})
    assert str(caught.value).isprintable()
    message = f"mine\nclient 0: it has 3 rows{EVIL}\nlast"
    report = {"partition-id": 1, "error": "DataError", "message": message, "messages": MESSAGES}
    (told,) = reported_errors([ErrorReport.parse(report)])
    assert str(told) == f"client 1: mine\nclient 1: client 0: it has 3 rows{CLEAN}\nclient 1: last"


def test_the_server_shows_none_of_a_hostile_partys(capfd):
    server = server_of("p-cov", cut(rows(300), 180, 100, 20), n_components=2)
    said = {"partition-id": 1, "error": "DataError", "message": f"{EVIL}\nclient 0: lied"}
    tamper(server, 1, lambda reply: setattr(reply, "metrics", said) or reply)
    with pytest.raises(FedPCAError) as caught:
        finish(server)
    assert all(line.startswith("client 1: ") and line.isprintable() for line in str(caught.value).split("\n"))
    assert not {"\u202e", "\x07"} & set("".join(capfd.readouterr()))
