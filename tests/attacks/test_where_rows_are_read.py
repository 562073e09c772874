"""No number that came from the server meets a row before the rows are summed.

Two tables say where rows are read for an answer. `MEETS`: functions of a party in which a number that may be the
server's stands in one statement with single rows. `READS`: functions that read rows at all. Whoever adds a place adds a
line with its reason, which a reviewer sees. Names are followed within one function, as far as a reader would.
"""

import ast
import inspect
import re
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path

import pytest

from fedpca_flwr import ConfigError
from strategies import METHODS, TRAVEL

ROOT = Path(__file__).parents[2]
PARTIES = [
    *ROOT.glob("fedpca_flwr/questions/*.py"),
    *(ROOT / "fedpca_flwr/maths" / name for name in ("own_rows.py", "gap_groups.py")),
    *ROOT.glob("strategies/**/*.py"),
]
READING = [
    path
    for folder in ("fedpca_flwr/questions", "fedpca_flwr/maths", "strategies")
    for path in ROOT.glob(f"{folder}/**/*.py")
]

ROWS = {"data", "used", "unscaled", "rows", "chunk", "own_columns"}
"""Attributes and names that hold single rows."""

FINDERS = {"_compared"}
"""Functions that give them."""

PARTY = {"self", "party"}
"""How a party is called."""

READERS = {
    "chunks", "centred_chunks", "own_chunks", "sparse_chunks", "pieces", "whole", "scatter_product",
    "head_and_diagonal", "standard_chunks", "Moments.of", "triangular", "truncated", "truncated_fields", "column_sums",
    "columns_of", "Columns", "surveyed",
}  # fmt: skip
"""What reads rows."""

SUMS = {"len", "count_of", "head_and_diagonal", "Moments.of", "triangular", "truncated", "truncated_fields",
        "column_sums", "vdot", "OwnScatter", "own_rows", "GappedRows", "require_few_rows"}  # fmt: skip
"""Calls that make sums of rows, or what holds them and gives sums only."""

HOLDERS = {"OwnScatter", "OwnAdjustment", "OwnRows", "GappedRows"}
"""Types of what holds rows and gives sums only: whoever is given one could read its rows all the same."""

NUMBERS = {"Array", "Fields", "float", "Head"}
"""Types of parameters that the server may have chosen."""

HOME = "the scores and the loadings, which stay at the site"
FACTOR = "multiplies rows that are about their own mean: no number is subtracted from one"
PRODUCTS = "the columns' inner products, which a site allows or counts"
NOISE = "one row changes the sum by no more than the noise hides"
PASSES = "passes rows on, and knows no number of the server's"
BOUNDED = "sums to which a row adds little, and counts of at least min-rows, about a centre: a site must allow that"
OWN = "sums about the rows' own mean"
PART = "of what a site tells in the form that its method names, into which nothing that is asked goes"

QUESTIONS, MATHS = "fedpca_flwr/questions", "fedpca_flwr/maths"

MEETS = {
    f"{MATHS}/own_rows.py::own_rows": OWN + "; the centre moves that",
    f"{QUESTIONS}/columns.py::energies_phase": PRODUCTS,
    f"{QUESTIONS}/columns.py::_project": PRODUCTS + "; " + HOME,
    f"{QUESTIONS}/incomplete_client.py::IncompleteClient.centred": HOME,
    f"{QUESTIONS}/linkage.py::_question": "sums over pairs of columns; of places, which are asked",
    f"{QUESTIONS}/merging.py::_step": "directions of rows, which a site must allow",
    f"{QUESTIONS}/adjustment.py::OwnAdjustment.centred": HOME,
    f"{QUESTIONS}/own_scatter.py::OwnScatter.__init__": "keeps rows and how far a centre may be side by side",
    f"{QUESTIONS}/own_scatter.py::OwnScatter.squares": FACTOR,
    f"{QUESTIONS}/own_scatter.py::OwnScatter.times": FACTOR,
    f"{QUESTIONS}/rows_run.py::RowsClient.centred": HOME,
    f"{QUESTIONS}/rows_run.py::RowsClient.keep_scores": HOME,
    "strategies/dp_pca/party.py::DPPCAClient._whole": NOISE,
    "strategies/personalised/party.py::_about": "gives both to own_rows, which see",
    "strategies/personalised/party.py::_choose": "the same, of the rows held out",
    "strategies/pooled_covariance.py::PooledCovarianceClient.points": "scores, which a site must allow that others see",
    "strategies/pooled_covariance.py::PooledCovarianceClient.centred": HOME
    + "; of odd rows how many there are, where a site allows that it tells a distribution",
    **{
        f"strategies/robust.py::{name}": BOUNDED
        for name in (
            "RobustClient.rows_about",
            "RobustClient.reach",
            "_own_step",
            "_own_signs",
            "_own_sizes",
            "_own_distances",
        )
    },
    "strategies/robust.py::RobustClient.floor": "a median distance, of which only a smallest weight is made",
    "strategies/robust.py::RobustClient.centred": HOME,
    "strategies/vertical.py::phases": PRODUCTS,
    "strategies/vertical_kernel.py::_to_landmarks": PRODUCTS + "; of places, which are asked",
    "strategies/vertical_scores.py::phases": "by the site's own loadings: places are asked",
}
"""Where a number that may be the server's stands beside single rows, and why that is no answer about one."""

READS = {
    **{f"{MATHS}/rows.py::{name}": PASSES for name in ("chunks", "as_blocks", "whole", "weighted")},
    f"{MATHS}/rows.py::column_sums": "sums",
    f"{MATHS}/rows.py::largest_size": "whether rows are of a size that can be computed with",
    f"{MATHS}/rows.py::own_chunks": PASSES,
    f"{MATHS}/rows.py::centred_chunks": "subtracts a centre: who calls it is in this table",
    f"{MATHS}/columns.py::Columns._chunks": "about what the site itself computed, now or for loadings that it kept",
    f"{MATHS}/columns.py::columns_of": OWN,
    f"{MATHS}/factors.py::_singular": "of factors that a server has",
    f"{MATHS}/factors.py::triangular": OWN,
    f"{MATHS}/factors.py::truncated": OWN,
    f"{MATHS}/forecast.py::_few": OWN,
    f"{MATHS}/forecast.py::surveyed": OWN,
    f"{MATHS}/gap_groups.py::Patterns.in_rows": "which values are missing",
    f"{MATHS}/gap_groups.py::GappedRows._chosen": OWN,
    f"{MATHS}/gap_groups.py::GappedRows.totals": "sums",
    f"{MATHS}/gap_groups.py::GappedRows.own_values": OWN,
    f"{MATHS}/genotypes.py::columns_of_others": "before a run: which columns are no genotypes",
    f"{MATHS}/genotypes.py::count_alleles": "sums",
    f"{MATHS}/genotypes.py::standardised": "genotypes by the frequencies that a run told: each has one of three values",
    f"{MATHS}/genotypes.py::standard_chunks": "the same",
    f"{MATHS}/linkage.py::band": "sums over pairs of columns",
    f"{MATHS}/privacy.py::_about": NOISE,
    f"{MATHS}/rows.py::digests": "digests by the site's own key",
    f"{MATHS}/moments.py::Moments.of": OWN,
    f"{MATHS}/own_rows.py::own_rows": OWN,
    f"{MATHS}/moments.py::head_and_diagonal": OWN,
    f"{MATHS}/moments.py::scatter_product": "about the head that it is given: who calls it is in this table",
    f"{MATHS}/streams.py::track": PART,
    f"{QUESTIONS}/columns_run.py::ColumnsClient.own_columns": OWN,
    f"{QUESTIONS}/incomplete_client.py::IncompleteClient.centred": HOME,
    f"{QUESTIONS}/fields.py::truncated_fields": OWN,
    f"{QUESTIONS}/fields.py::truncated_phase": PART,
    f"{QUESTIONS}/members.py::_moments": OWN,
    f"{QUESTIONS}/adjustment.py::OwnAdjustment.centred": HOME,
    **{
        f"{QUESTIONS}/own_scatter.py::OwnScatter.{name}": OWN
        for name in ("head_and_diagonal", "moments", "squares", "times")
    },
    f"{QUESTIONS}/rows_run.py::RowsClient.centred": HOME,
    f"{QUESTIONS}/rows.py::centre_phases": "sums",
    "strategies/adaptive.py::_own_survey": PART,
    "strategies/personalised/party.py::_about": OWN,
    "strategies/personalised/party.py::_start": OWN,
    "strategies/qr_pca.py::_whole_factor": PART,
    "strategies/robust.py::RobustClient.rows_about": BOUNDED,
    "strategies/sapca.py::_summary": PART,
    "strategies/subspace_iteration.py::_sketch": PART,
    "strategies/vertical_kernel.py::_compared": OWN,
    "strategies/vertical_scores.py::VerticalScoresClient.own_columns": "about the mean of loadings that the site kept",
}
"""Where rows are read at all, and what for."""

Function = ast.FunctionDef
ANSWER = ".answer"
"""How the name of an answer ends that stands within a function: a lambda of a party, say."""


class Plain(ast.NodeTransformer):
    """Makes of what a module of ours has its plain name: ``moments.Head`` becomes ``Head``, whatever the alias."""

    def __init__(self, tree: ast.AST) -> None:
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        rooms = [node for node in imports if (node.module or "").count(".") == 1 and node.module.startswith("fedpca_")]
        self.modules = {alias.asname or alias.name for node in rooms for alias in node.names}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return ast.copy_location(ast.Name(node.attr, node.ctx), node)
        return node


def parsed(code: str) -> ast.AST:
    """The tree of a file, in which each name of ours stands as if it were imported by itself."""
    tree = ast.parse(code)
    return Plain(tree).visit(tree)


def name_of(called: ast.expr) -> str:
    """Of a function, or of what NumPy or a class has; nothing of what an object does, which knows its own rows."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        owner = called.value.id
        return called.attr if owner == "np" else f"{owner}.{called.attr}" if owner[:1].isupper() else ""
    return called.id if isinstance(called, ast.Name) else ""


def gives_sums(node: ast.AST) -> bool:
    """Whether it is a call in `SUMS`, or of a party's `own_of`, which makes an `OwnScatter`."""
    if not isinstance(node, ast.Call):
        return False
    return name_of(node.func) in SUMS or (isinstance(node.func, ast.Attribute) and node.func.attr == "own_of")


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str, Function]]:
    """Class, name and definition of all functions, those within others as a part of them; answers by themselves too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, node.name)
        elif isinstance(node, Function):
            yield owner, node.name, node
            inner = (one for one in ast.walk(node) if one is not node and isinstance(one, Function | ast.Lambda))
            yield from ((owner, node.name + ANSWER, as_function(one, node)) for one in inner if of_party(one))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            inner = (one for one in ast.walk(node) if isinstance(one, ast.Lambda))
            yield from ((owner, name + ANSWER, as_function(one)) for one in inner if of_party(one))


def of_party(function: Function | ast.Lambda) -> bool:
    """Whether it is given a party, and so its rows; or these, or what holds them."""
    known = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    kinds = {ast.unparse(one.annotation).strip("'") for one in known if one.annotation}
    given = any(kind.endswith("Client") for kind in kinds) or bool(kinds & {"Rows", "Columns", *HOLDERS})
    return given or "party" in {one.arg for one in known}


def as_function(node: Function | ast.Lambda, outer: Function | None = None) -> Function:
    """A lambda as a function of one statement; it knows the arguments of the function in which it stands."""
    body = [ast.copy_location(ast.Return(node.body), node)] if isinstance(node, ast.Lambda) else node.body
    around = outer.args.args + outer.args.kwonlyargs if outer else []
    arguments = ast.arguments([], [*node.args.args, *node.args.kwonlyargs, *around], None, [], [], None, [])
    return ast.copy_location(Function("answer", arguments, body, []), node)


def finds_rows(kind: str) -> bool:
    """Whether a type is that of a function which gives rows."""
    return kind.startswith("Callable[") and kind.endswith(", Rows]")


class Names:
    """Which names of a function hold single rows, and which numbers that may be the server's."""

    def __init__(self, function: Function, asked_here: set[str], methods: Collection[str] = ()) -> None:
        self.rows, self.asked = {"rows", "chunk", *FINDERS}, {"asked"}
        self.rows_here, self.asked_here = ROWS.difference(methods), asked_here
        for argument in function.args.args + function.args.kwonlyargs:
            kind = ast.unparse(argument.annotation) if argument.annotation else "Array"
            if kind in {"OwnRows", "GappedRows"}:
                self.rows.discard(argument.arg)
            elif argument.arg in ROWS or kind in {"Rows", "Block", "Array | Columns", "Columns"} or finds_rows(kind):
                self.rows.add(argument.arg)
            elif argument.arg not in {"self", "cls", "party"} and NUMBERS & set(re.findall(r"\w+", kind)):
                self.asked.add(argument.arg)

    def has_asked(self, node: ast.AST) -> bool:
        return any(
            (isinstance(one, ast.Name) and one.id in self.asked)
            or (isinstance(one, ast.Attribute) and one.attr in self.asked_here and ast.unparse(one.value) in PARTY)
            for one in ast.walk(node)
        )

    def has_rows(self, node: ast.AST) -> bool:
        """Whether it holds single rows, but for sums of these into which nothing asked goes."""
        if isinstance(node, ast.Attribute) and node.attr in {"shape", "mean", "dtype", "size", "ndim"}:
            return False
        if gives_sums(node) and not self.has_asked(node):
            return False
        if isinstance(node, ast.Attribute) and node.attr in self.rows_here:
            return True
        if isinstance(node, ast.Name) and node.id in self.rows:
            return True
        return any(map(self.has_rows, ast.iter_child_nodes(node)))

    def bind(self, target: ast.expr, value: ast.expr, *, always: bool) -> None:
        """What the names of a target hold from here on; what they held before too, unless they ``always`` come here."""
        summed = gives_sums(value)
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                holds = {"rows": self.has_rows(value) and not summed, "asked": self.has_asked(value)}
                for kind, known in (("rows", self.rows), ("asked", self.asked)):
                    if holds[kind]:
                        known.add(one.id)
                    elif always:
                        known.discard(one.id)


def heads(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without the statements in it."""
    yield from (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def meets(function: Function, names: Names) -> bool:
    """Whether one statement has both."""
    found = False
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    for node in sorted(statements, key=lambda one: (one.lineno, one.col_offset)):
        for part in heads(node):
            for inner in ast.walk(part):
                if isinstance(inner, ast.comprehension):
                    names.bind(inner.target, inner.iter, always=False)
        parts = list(heads(node))
        found |= any(map(names.has_rows, parts)) and any(map(names.has_asked, parts))
        always = node in function.body
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names.bind(target, node.value, always=always)
        elif isinstance(node, ast.AnnAssign) and node.value:
            names.bind(node.target, node.value, always=always)
        elif isinstance(node, ast.For):
            names.bind(node.target, node.iter, always=False)
    return found


def asked_attributes(tree: ast.AST) -> set[str]:
    """Attributes of `self` that are made of what was asked."""
    known, before = {"asked"}, set[str]()
    while known != before:
        before = set(known)
        for _, name, function in functions(tree):
            if [one.arg for one in function.args.args] == ["self"] and function.decorator_list:
                known |= {name} if Names(function, known).has_asked(function) else set()
    return known


def meeting(code: str, *, parties_only: bool = False) -> set[str]:
    """Functions in which a row may meet a number of the server's."""
    tree = parsed(code)
    asked = asked_attributes(tree)
    known = list(functions(tree))
    methods = {name for owner, name, function in known if owner and not is_party(owner) and not function.decorator_list}
    return {
        f"{owner}.{name}".strip(".").removesuffix(ANSWER)
        for owner, name, function in known
        if (is_party(owner) or name.endswith(ANSWER) or of_party(function) or not parties_only)
        and meets(function, Names(function, asked, methods))
    }


def is_party(owner: str) -> bool:
    """Whether a class has a party's rows."""
    return owner.endswith("Client") or owner.startswith("Own")


def reading(code: str) -> set[str]:
    """Functions that read rows."""
    return {
        f"{owner}.{name}".strip(".").removesuffix(ANSWER)
        for owner, name, function in functions(parsed(code))
        if any(isinstance(node, ast.Call) and name_of(node.func) in READERS for node in ast.walk(function))
    }


def places(paths, find) -> set[str]:
    return {f"{path.relative_to(ROOT)}::{name}" for path in paths for name in find(path)}


def test_rows_are_read_and_meet_numbers_of_the_servers_nowhere_else():
    found = places(PARTIES, lambda path: meeting(path.read_text(), parties_only="maths" not in path.parts))
    assert not found - MEETS.keys(), "form the rows' sums first, or say in MEETS why no answer is about a single row"
    assert not MEETS.keys() - found, "these are no more: leave them out of MEETS"
    found = places(READING, lambda path: reading(path.read_text()))
    assert not found - READS.keys(), "say in READS what rows are read for, and which numbers they meet"
    assert not READS.keys() - found, "these are no more: leave them out of READS"


AS_THEY_WERE = {
    "times_about": """
        return scatter_product(self.rows, Head(len(self.rows), centre, np.zeros_like(centre)), V)""",
    "standardised": """
        for chunk in chunks(self.data, ELEMENTS):
            rows = np.subtract(chunk, centre, dtype=np.float64) / unit
            yield rows[~np.isnan(rows).all(axis=1)]""",
    "deviations": """
        for part in chunks(self.data):
            deviations = np.nan_to_num(np.subtract(part, asked["centre"], dtype=np.float64))
            shift += deviations.sum(axis=0)""",
    "statistics": """
        rows = _centred(self.used, asked["mean"], asked["remainder"])
        return {"product": scatter_times(rows, asked["block"])}""",
    "squared_error": """
        squared = 0.0
        for centred in self.centred(self.own.rows):
            scores = centred @ components.T
            squared += float(np.vdot(centred, centred)) - float(np.vdot(scores, scores))
        return max(0.0, squared)""",
    "spread": """
        deviation = self.own_columns.X - asked["level"]
        return {"spread": np.asarray(np.vdot(deviation, deviation))}""",
    "later": """
        part = self.used
        if len(part):
            mine, centre = part[1:], asked["centre"]
        return (mine - centre).sum()""",
    "each": """
        return sum((row - asked["centre"] for row in self.data))""",
}
"""Statements of places that once were, and of such as could be."""

ANSWERS_AS_THEY_COULD_BE = {
    "function": """
def answer(party: RowsClient, asked: Fields) -> Fields:
    return {"spread": np.square(party.data - asked["centre"]).sum()}
""",
    "function of another name of the party": """
def answer(own: RowsClient, asked: Fields) -> Fields:
    return {"spread": np.square(own.data - asked["centre"]).sum()}
""",
    "lambda": """
def answer(config: RunConfig) -> Questions:
    return {"spread": Question(reply=X, answer=lambda party, asked: {"x": party.data @ asked["block"]})}
""",
    "lambda of a constant": """
answer = {"spread": Question(reply=X, answer=lambda party, asked: {"x": party.own_columns.X - asked["level"]})}
""",
    "function within": """
def answer(config: RunConfig) -> Questions:
    def own(party: RowsClient, asked: Fields) -> Fields:
        part = party.unscaled
        return {"x": (part > asked["centre"]).sum()}

    return {"spread": Question(reply=X, answer=own)}
""",
    "rows by a function": """
def answer(of: Callable[[Any], Rows]) -> Questions:
    return {"spread": Question(reply=X, answer=lambda party, asked: {"x": of(party) - asked["centre"]})}
""",
    "rows by a method": """
class SomeClient:
    def used(self, prefix: str) -> Rows:
        return self.data[prefix]

def answer(party: SomeClient, asked: Fields) -> Fields:
    return {"x": party.used("") - asked["centre"]}
""",
    "help that is given rows": """
def answer(rows: Rows, centre: Array) -> Array:
    return np.square(rows - centre).sum(axis=0)
""",
    "help that is given what holds them": """
def answer(own: OwnScatter, centre: Array) -> Fields:
    return {"spread": np.square(own.rows - centre).sum(axis=0)}
""",
    "rows beside their moments": """
def answer(of: Callable[[Any], Rows]) -> Questions:
    spread = lambda party, asked: sums(party.own_of(of(party)), of(party) - asked["centre"])
    return {"spread": Question(reply=X, answer=spread)}
""",
}
"""Answers that stand beside their questions, in every form in which they may be written."""

HARMLESS = {
    "deviation": """
        head, diagonal = head_and_diagonal(self.data)
        return head.mean - asked["centre"]""",
    "count": """
        return {"count": np.asarray(len(self.data)), "block": asked["block"]}""",
    "product": """
        return self.own.times_about(asked["centre"], asked["block"])""",
}


def snippet(name: str, body: str) -> str:
    return f"class Some:\n    def {name}(self, asked, centre, unit, V, components):{body}\n"


@pytest.mark.parametrize("name", AS_THEY_WERE)
def test_places_that_once_were_are_found(name):
    assert meeting(snippet(name, AS_THEY_WERE[name])) == {f"Some.{name}"}


@pytest.mark.parametrize("name", ANSWERS_AS_THEY_COULD_BE)
def test_answers_are_examined_in_every_form(name):
    assert meeting(ANSWERS_AS_THEY_COULD_BE[name], parties_only=True) == {"answer"}


def test_every_answer_of_a_run_is_one_that_is_examined():
    """It is a method of a client, or its first parameter says that it is of a party; and its file is one of PARTIES."""
    seen = 0
    for method in METHODS.values():
        card = method.strategy.card
        for config, own in product(TRAVEL.values(), card.examples):
            try:
                questions = card.phases(config, card.options.parse(own))
            except ConfigError:
                continue
            for name, question in questions.items():
                answer = question.answer
                assert answer is not None, f"{card.name}: nobody answers '{name}'"
                first, code = next(iter(inspect.signature(answer).parameters)), inspect.getfile(answer)
                assert first == "party" or answer.__qualname__.split(".")[0].endswith("Client"), answer
                assert Path(code) in PARTIES, code
                seen += 1
    assert seen > 150


@pytest.mark.parametrize("name", HARMLESS)
def test_sums_may_meet_what_is_asked(name):
    assert not meeting(snippet(name, HARMLESS[name]))


def test_a_new_reader_of_rows_is_found():
    assert reading(snippet("new", "\n        return sum(map(energy, chunks(self.rows)))")) == {"Some.new"}
    assert reading(snippet("new", "\n        return Moments.of(self.data)")) == {"Some.new"}
    assert not reading(snippet("new", "\n        return self.own.head_and_diagonal()"))


@pytest.mark.parametrize(
    ("imports", "prefix"),
    [
        ("from fedpca_flwr.maths.moments import Moments, scatter_product", ""),
        ("from fedpca_flwr.maths import moments", "moments."),
        ("from fedpca_flwr.maths import moments as sums", "sums."),
    ],
)
def test_readers_are_found_however_they_are_imported(imports, prefix):
    code = f"""
{imports}
def answer(party: {prefix}Client, asked: {prefix}Fields) -> {prefix}Fields:
    return {{"x": {prefix}scatter_product(party.data, asked["centre"], 1), "y": {prefix}Moments.of(party.data)}}

def own(party: {prefix}Client, asked: {prefix}Fields) -> {prefix}Fields:
    return {{"x": {prefix}Moments.of(party.data).mean - asked["centre"]}}

def help(rows: {prefix}Rows, centre: {prefix}Array) -> {prefix}Array:
    return rows - centre
"""
    assert reading(code) == {"answer", "own"}
    assert meeting(code, parties_only=True) == {"answer", "help"}


def test_what_a_property_makes_of_a_question_is_followed():
    code = """
class Some:
    @property
    def _mean(self):
        return self.asked["mean"]

    def error(self):
        return np.square(self.rows - self._mean).sum()
"""
    assert meeting(code) == {"Some.error"}
