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
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import TRAVEL

ROOT = Path(__file__).parents[2]
PARTIES = [
    *ROOT.glob("fedpca_flwr/questions/*.py"),
    *(ROOT / "fedpca_flwr/maths" / name for name in ("own_rows.py", "gap_groups.py")),
    *ROOT.glob("strategies/**/*.py"),
]
READING = [*PARTIES, *ROOT.glob("fedpca_flwr/questions/*/**/*.py"), *ROOT.glob("fedpca_flwr/maths/**/*.py")]

ROWS = {"data", "used", "unscaled", "rows", "chunk", "own_columns"}
"""Attributes and names that hold single rows."""

FINDERS = {"_compared"}
"""Functions that give them."""

PARTY = {"self", "party"}
"""How a party is called."""

READERS = {
    "chunks", "centred_chunks", "own_chunks", "sparse_chunks", "pieces", "whole", "scatter_product",
    "head_and_diagonal", "standard_chunks", "Moments.of", "triangular", "truncated", "truncated_fields",
    "columns_of", "Columns", "surveyed",
}  # fmt: skip
"""What reads rows."""

SUMS = {"len", "count_of", "head_and_diagonal", "Moments.of", "triangular", "truncated", "truncated_fields",
        "vdot", "OwnScatter", "own_rows", "GappedRows", "require_few_rows"}  # fmt: skip
"""Calls that make sums of rows, or what holds them and gives sums only."""

HOLDERS = {"OwnScatter", "OwnAdjustment", "OwnRows", "GappedRows"}
"""Types of what holds rows and gives sums only: whoever is given one could read its rows all the same."""

NUMBERS = {"Array", "Fields", "float", "Head"}
"""Types of parameters that the server may have chosen."""

# Reasons that several places have:
# HOME: the scores and the loadings, which stay at the site
# FACTOR: multiplies rows that are about their own mean: no number is subtracted from one
# PRODUCTS: the columns' inner products, which a site allows or counts
# NOISE: one row changes the sum by no more than the noise hides
# PASSES: passes rows on, and knows no number of the server's
# BOUNDED: sums to which a row adds little, and counts of at least min-rows, about a centre: a site must allow that
# OWN: sums about the rows' own mean
# PART: of what a site tells in the form that its method names, into which nothing that is asked goes

MEETS = """
maths/own_rows: own_rows | OWN; the centre moves that
questions/columns: energies_phase | PRODUCTS
questions/columns: _project | PRODUCTS; HOME
questions/incomplete_client: IncompleteClient.centred | HOME
questions/linkage: _question | sums over pairs of columns; of places, which are asked
questions/merging: _step | directions of rows, which a site must allow
questions/adjustment: OwnAdjustment.centred | HOME
questions/own_scatter: OwnScatter.squares, OwnScatter.times | FACTOR
questions/rows_run: RowsClient.centred, RowsClient.keep_scores | HOME
strategies/dp_pca/party: DPPCAClient._whole | NOISE
strategies/personalised/party: _about | gives both to own_rows, which see
strategies/personalised/party: _choose | the same, of the rows held out
strategies/pooled_covariance: PooledCovarianceClient.points | scores, which a site must allow that others see
strategies/pooled_covariance: PooledCovarianceClient.centred | HOME; how many odd rows, if it tells a distribution
strategies/robust/party: RobustClient.rows_about, RobustClient.whitened, RobustClient.counted, _own_step | BOUNDED
strategies/robust/party: _own_signs, _own_scores, _own_variances, _own_errors | BOUNDED
strategies/robust/party: RobustClient.floor | a median distance, of which only a smallest weight is made
strategies/robust/party: RobustClient.centred | HOME
strategies/vertical: phases | PRODUCTS
strategies/vertical_kernel: _to_landmarks | PRODUCTS; of places, which are asked
strategies/vertical_scores: _scores | by the site's own loadings: places are asked
"""
"""Where a number that may be the server's stands beside single rows, and why that is no answer about one."""

READS = """
maths/rows: chunks, as_blocks, whole, weighted, own_chunks | PASSES
maths/rows: largest_size | whether rows are of a size that can be computed with
maths/rows: centred_chunks | subtracts a centre: who calls it is in this table
maths/rows: column_sums | sums
maths/rows: digests | digests by the site's own key
maths/columns: Columns._chunks | about what the site itself computed, now or for loadings that it kept
maths/columns: columns_of | OWN
maths/factors: _singular | of factors that a server has
maths/factors: triangular, truncated | OWN
maths/forecast: _few, surveyed | OWN
maths/gap_groups: Patterns.in_rows | which values are missing
maths/gap_groups: GappedRows._chosen, GappedRows.own_values | OWN
maths/gap_groups: GappedRows.totals | sums
maths/genotypes: columns_of_others | before a run: which columns are no genotypes
maths/genotypes: count_alleles | sums
maths/genotypes: standardised, standard_chunks | by the frequencies that a run told: each has one of three values
maths/linkage: band | sums over pairs of columns
maths/privacy: _about | NOISE
maths/moments: Moments.of, head_and_diagonal | OWN
maths/moments: scatter_product | about the head that it is given: who calls it is in this table
maths/own_rows: own_rows | OWN
maths/streams: track | PART
questions/columns_run: ColumnsClient.own_columns | OWN
questions/incomplete_client: IncompleteClient.centred | HOME
questions/fields: truncated_fields | OWN
questions/fields: truncated_phase | PART
questions/members: _moments | OWN
questions/adjustment: OwnAdjustment.centred | HOME
questions/own_scatter: OwnScatter.head_and_diagonal, OwnScatter.moments, OwnScatter.squares, OwnScatter.times | OWN
questions/rows_run: RowsClient.centred | HOME
strategies/adaptive: _own_survey | PART
strategies/personalised/party: _about, _start | OWN
strategies/qr_pca: _whole_factor | PART
strategies/robust/party: RobustClient.rows_about | BOUNDED
strategies/sapca: _summary | PART
strategies/subspace_iteration: _sketch | PART
strategies/vertical_kernel: _compared | OWN
strategies/vertical_scores: VerticalScoresClient.own_columns | about the mean of loadings that the site kept
"""
"""Where rows are read at all, and what for."""

Function = ast.FunctionDef


def listed(table: str) -> set[str]:
    """The places in a table, each a file and a function."""
    found = set()
    for line in table.strip().splitlines():
        file, _, names = line.partition(" | ")[0].partition(": ")
        found |= {f"{file}: {name}" for name in names.split(", ")}
    return found


def places(paths, find) -> set[str]:
    files = {path: str(path.relative_to(ROOT)).removeprefix("fedpca_flwr/").removesuffix(".py") for path in paths}
    return {f"{file}: {name}" for path, file in files.items() for name in find(path)}


def parsed(code: str) -> ast.AST:
    """The tree of a file, in which each name of ours stands as if it were imported by itself, whatever the alias."""
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    rooms = [node for node in imports if re.fullmatch(r"fedpca_\w+\.\w+", node.module or "")]
    for alias in {one.asname or one.name for node in rooms for one in node.names}:
        code = re.sub(rf"(?<![\w.]){alias}\.(?=\w)", "", code)
    return ast.parse(code)


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
        elif isinstance(node, Function | ast.Assign | ast.AnnAssign):
            if isinstance(node, Function):
                name, around = node.name, node.args.args + node.args.kwonlyargs
                yield owner, name, node
            else:
                name, around = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target), []
            for one in ast.walk(node):
                if one is not node and isinstance(one, Function | ast.Lambda) and of_party(one):
                    yield owner, name, as_function(one, around)


def of_party(function: Function | ast.Lambda) -> bool:
    """Whether it is given a party, and so its rows; or these, or what holds them."""
    known = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    kinds = {ast.unparse(one.annotation).strip("'") for one in known if one.annotation}
    given = any(kind.endswith("Client") for kind in kinds) or bool(kinds & {"Rows", "Columns", *HOLDERS})
    return given or "party" in {one.arg for one in known}


def as_function(node: Function | ast.Lambda, around: list[ast.arg]) -> Function:
    """A lambda as a function of one statement; it knows the arguments of the function in which it stands."""
    body = [ast.copy_location(ast.Return(node.body), node)] if isinstance(node, ast.Lambda) else node.body
    arguments = ast.arguments([], [*node.args.args, *node.args.kwonlyargs, *around], None, [], [], None, [])
    return ast.copy_location(Function("answer", arguments, body, []), node)


class Names:
    """Which names of a function hold single rows, and which numbers that may be the server's."""

    def __init__(self, function: Function, asked_here: set[str], methods: Collection[str] = ()) -> None:
        self.rows, self.asked = {"rows", "chunk", *FINDERS}, {"asked"}
        self.rows_here, self.asked_here = ROWS.difference(methods), asked_here
        for argument in function.args.args + function.args.kwonlyargs:
            name, kind = argument.arg, ast.unparse(argument.annotation) if argument.annotation else "Array"
            finds_rows = kind.startswith("Callable[") and kind.endswith(", Rows]")
            if kind in {"OwnRows", "GappedRows"}:
                self.rows.discard(name)
            elif name in ROWS or kind in {"Rows", "Block", "Array | Columns", "Columns"} or finds_rows:
                self.rows.add(name)
            elif name not in {"self", "cls", "party"} and NUMBERS & set(re.findall(r"\w+", kind)):
                self.asked.add(name)

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
        held = [(self.rows, self.has_rows(value) and not gives_sums(value)), (self.asked, self.has_asked(value))]
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                for known, holds in held:
                    if holds:
                        known.add(one.id)
                    elif always:
                        known.discard(one.id)


def meets(function: Function, names: Names) -> bool:
    """Whether one statement has both; the statements within it are statements of their own."""
    found = False
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    for node in sorted(statements, key=lambda one: (one.lineno, one.col_offset)):
        parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        for inner in (one for part in parts for one in ast.walk(part)):
            if isinstance(inner, ast.comprehension):
                names.bind(inner.target, inner.iter, always=False)
        found |= any(map(names.has_rows, parts)) and any(map(names.has_asked, parts))
        if isinstance(node, ast.For):
            names.bind(node.target, node.iter, always=False)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names.bind(target, node.value, always=node in function.body)
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


def meeting(code: str, *, parties_only: bool = True) -> set[str]:
    """Functions in which a row may meet a number of the server's."""
    tree = parsed(code)
    asked = asked_attributes(tree)
    known = list(functions(tree))
    methods = {name for owner, name, function in known if owner and not is_party(owner) and not function.decorator_list}
    return {
        f"{owner}.{name}".strip(".")
        for owner, name, function in known
        if (is_party(owner) or of_party(function) or not parties_only)
        and meets(function, Names(function, asked, methods))
    }


def is_party(owner: str) -> bool:
    """Whether a class has a party's rows."""
    return owner.endswith("Client") or owner.startswith("Own")


def reading(code: str) -> set[str]:
    """Functions that read rows."""
    return {
        f"{owner}.{name}".strip(".")
        for owner, name, function in functions(parsed(code))
        if any(isinstance(node, ast.Call) and name_of(node.func) in READERS for node in ast.walk(function))
    }


@pytest.mark.engine
def test_rows_are_read_and_meet_numbers_of_the_servers_nowhere_else():
    found, known = (
        places(PARTIES, lambda path: meeting(path.read_text(), parties_only="maths" not in path.parts)),
        MEETS,
    )
    assert not found - listed(known), "form the rows' sums first, or say in MEETS why no answer is about a single row"
    assert not listed(known) - found, "these are no more: leave them out of MEETS"
    found, known = places(READING, lambda path: reading(path.read_text())), READS
    assert not found - listed(known), "say in READS what rows are read for, and which numbers they meet"
    assert not listed(known) - found, "these are no more: leave them out of READS"


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
                assert Path(code).resolve() in PARTIES, code
                seen += 1
    assert seen > 150


# Whether it finds what it should

STATEMENTS = [
    "return scatter_product(self.rows, Head(len(self.rows), centre, np.zeros_like(centre)), V)",
    "for chunk in chunks(self.data): yield np.subtract(chunk, centre, dtype=np.float64) / unit",
    "for part in chunks(self.data): shift = np.nan_to_num(np.subtract(part, asked['centre'])).sum(axis=0)",
    "rows = _centred(self.used, asked['mean'], asked['remainder'])",
    "for centred in self.centred(self.own.rows): scores = centred @ components.T",
    "deviation = self.own_columns.X - asked['level']",
    "part = self.used\n        if part: mine, centre = part[1:], asked['centre']\n        return (mine - centre).sum()",
    "return sum((row - asked['centre'] for row in self.data))",
]
"""Of places that once were, and of such as could be."""

HARMLESS = [
    "head, diagonal = head_and_diagonal(self.data)\n        return head.mean - asked['centre']",
    "return {'count': np.asarray(len(self.data)), 'block': asked['block']}",
    "return {'product': self.own.times_about(asked['centre'], asked['block'])}",
]

ANSWERS = [
    "def answer(party: RowsClient, asked: Fields): return party.data - asked['centre']",
    "def answer(own: RowsClient, asked: Fields): return own.data - asked['centre']",
    "def answer(config): return Question(answer=lambda party, asked: {'x': party.data @ asked['block']})",
    "answer = {'spread': Question(answer=lambda party, asked: {'x': party.own_columns.X - asked['level']})}",
    "def answer(config):\n    def own(party: RowsClient, asked: Fields): return party.unscaled > asked['centre']",
    "def answer(of: Callable[[Any], Rows]): return Question(answer=lambda party, asked: of(party) - asked['centre'])",
    "class SomeClient:\n    def used(self, prefix: str) -> Rows: return self.data[prefix]\n\n"
    "def answer(party: SomeClient, asked: Fields): return party.used('') - asked['centre']",
    "def answer(rows: Rows, centre: Array): return np.square(rows - centre).sum(axis=0)",
    "def answer(own: OwnScatter, centre: Array): return np.square(own.rows - centre).sum(axis=0)",
    "def answer(of: Callable[[Any], Rows]): return lambda party, asked: (party.own_of(of(party)), of(party) - asked)",
]
"""Answers that stand beside their questions, in every form in which they may be written."""


def method(body: str) -> str:
    return f"class SomeClient:\n    def answer(self, asked, centre, unit, V, components):\n        {body}\n"


def test_a_row_that_meets_a_number_of_the_servers_is_found_in_every_form_and_a_sum_is_none():
    assert [body for body in STATEMENTS if meeting(method(body)) != {"SomeClient.answer"}] == []
    assert [code for code in ANSWERS if meeting(code) != {"answer"}] == []
    assert [body for body in HARMLESS if meeting(method(body))] == []
    assert reading(method("return sum(map(energy, chunks(self.rows)))")) == {"SomeClient.answer"}
    assert reading(method("return Moments.of(self.data)")) == {"SomeClient.answer"}
    assert not reading(method("return self.own.head_and_diagonal()"))


def test_what_a_property_makes_of_a_question_is_followed():
    code = method("return np.square(self.rows - self._mean).sum()")
    assert not meeting(code)
    assert meeting(code + "    @property\n    def _mean(self):\n        return self.asked['mean']\n") == {
        "SomeClient.answer"
    }
