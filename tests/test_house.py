"""Every module has its room, methods are told apart by their cards alone, files are short, and docstrings complete."""

import ast
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import Validator

import fedpca_flwr
from fedpca_flwr.cli import COMMANDS
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.questions import columns_method, method
from fedpca_flwr.strategies import METHODS
from tests.refusals import refused, unnamed

ROOT = Path(__file__).parents[1]
NAMES = {entry.strategy.__module__.split(".")[2] for entry in METHODS.values()}
LONGEST, LONGEST_FUNCTION = 500, 60  # lines of a file and of a function, without docstrings
CODE = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for folder in ("fedpca_flwr", "strategies", "simulations")
    for path in (ROOT / folder).rglob("*.py")
}


def length(node: Any) -> int:
    """Lines of a module, or of a function, without those of the docstrings in it."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = [part.body[0] for part in parts if ast.get_docstring(part)]
    of_docstrings = sum(text.end_lineno - text.lineno + 1 for text in docstrings)
    return node.body[-1].end_lineno - getattr(node, "lineno", 1) + 1 - of_docstrings


def long_functions(node: Any) -> dict[str, int]:
    """Lines by name, of functions of a module and of its classes that are too long; an inner one is a part of its."""
    long: dict[str, int] = {}
    for part in getattr(node, "body", ()):
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            long |= long_functions(part)
        elif part.end_lineno - part.lineno >= LONGEST_FUNCTION and (lines := length(part)) > LONGEST_FUNCTION:
            long[part.name] = lines
    return long


def test_no_file_and_no_function_is_longer_than_a_reader_holds():
    assert len(CODE) > 100
    trees = {path: ast.parse(code) for path, code in CODE.items() if code.count("\n") >= LONGEST_FUNCTION}
    long = {path: lines for path, tree in trees.items() if (lines := length(tree)) > LONGEST}
    assert not long, f"longer than {LONGEST} lines: {long}; split each where its purposes part"
    long = {path: names for path, tree in trees.items() if (names := long_functions(tree))}
    assert not long, f"longer than {LONGEST_FUNCTION} lines: {long}; give each step a function of its own"
    for docstring, lines in (("", 59), ('    """Do.\n\n    More.\n    """\n', 59), ("", 60)):
        tree = ast.parse("def some():\n" + docstring + lines * "    pass\n")
        assert long_functions(tree) == ({"some": 61} if lines == 60 else {})


def test_every_module_and_every_test_has_its_room():
    assert {path.stem for path in (ROOT / "strategies").glob("[!_]*")} - {"factory"} == NAMES, "is it in METHODS?"
    loose = {path.stem for path in (ROOT / "fedpca_flwr").glob("*.py")}
    in_the_root = {"__init__", "__main__", "cli", "errors", "flower", "server_app", "site_app"}
    assert loose == in_the_root, "a module of the library belongs into one of its folders"
    rooms = {path.parent.name for path in (ROOT / "fedpca_flwr").glob("*/__init__.py")}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    others = {"fedpca_flwr", "strategies", "simulations", "attacks", "deployment", "papers", "properties"}
    assert folders == rooms | others, "see tests/README.md"
    inside = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").glob("*/*/**/test_*.py")}
    assert all((ROOT / "fedpca_flwr" / folder).is_dir() for folder in inside), "see tests/README.md"
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "Arrows point one way")
    floors = [{name.strip() for name in layer.split("|")} - in_the_root for layer in layers]
    assert len(list(filter(None, floors))) <= 10, "each layer of imports knows only what lies below it"
    assert rooms <= set().union(*floors), "each room has its floor in pyproject.toml, so that import-linter holds it"


def singled_out(code: str) -> set[str]:
    """Methods by whose names code decides: what it compares with, keys of a dictionary, members of a set."""
    places: list[ast.AST] = []
    for node in ast.walk(ast.parse(code)):
        places += [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        places += [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
        places += [node] if isinstance(node, ast.Set) else []
    texts = [part.value for place in places for part in ast.walk(place) if isinstance(part, ast.Constant)]
    return {text for text in texts if isinstance(text, str) and text in METHODS}


TRANSPORTS = {"transport", "sums_only", "secure_aggregation", "survivors"}


def decides_by_transport(code: str) -> set[str]:
    """Attributes that say how the answers of a run travel, which code compares, or tests for being true."""
    places: list[ast.AST] = []
    for node in ast.walk(ast.parse(code)):
        places += [node] if isinstance(node, ast.Compare | ast.BoolOp | ast.Not) else []
        places += [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
    known = [part for place in places for part in ast.walk(place) if isinstance(part, ast.Attribute)]
    called = {id(part.value) for part in known}  # `transport.summed_over(...)` asks the transport
    return {part.attr for part in known if part.attr in TRANSPORTS and id(part) not in called}


@pytest.mark.parametrize(
    ("finds", "words", "belongs", "forms"),
    [
        (
            singled_out,
            rf"""["']({"|".join(sorted(METHODS))})["']""",
            lambda path: not re.match("strategies/|simulations/(benchmarks|papers|examples)/", path),
            ('one == "em"', 'one in {"em", "dsa"}', 'known = frozenset({"em"})', 'of = {"em": 1}', 'a in ("em", 1)'),
        ),
        (
            decides_by_transport,
            "|".join(sorted(TRANSPORTS)),
            lambda path: path.startswith(("fedpca_flwr/questions/", *(f"strategies/{name}" for name in NAMES))),
            (
                *('if config.transport == "clear": pass', "if config.secure_aggregation: pass"),
                *("more = [1] if self.transport.sums_only else []", "while not config.survivors: pass"),
                "few = config.survivors and options.rank > 1",
            ),
        ),
        (
            # calls on options: what not all of them have
            lambda code: re.findall(r"\b(?:get|has)attr\([^,]*options", ast.unparse(ast.parse(code))),
            "(get|has)attr",
            lambda path: not path.startswith("simulations/"),
            ('getattr(self.options(card.options), "genotypes", False)',),
        ),
    ],
    ids=["names", "transports", "options"],
)
def test_methods_transports_and_options_say_what_they_are(finds, words, belongs, forms):
    """On a MethodCard or by an option's name, by `by_transport`, and by `PCAOptions`; parsed is what has the words.

    What code must not do is found in every form.
    """
    files = {path: code for path, code in CODE.items() if belongs(path)}
    assert len(files) > len(METHODS)
    assert {path: faults for path, code in files.items() if re.search(words, code) and (faults := finds(code))} == {}
    assert all(re.search(words, code) and finds(code) for code in forms)


def test_the_words_of_the_code_are_in_the_code():
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Words of the code")[2].partition("\n## ")[0]
    names = {name for quote in re.findall(r"`([^`]*)`", page) for name in re.findall(r"[A-Za-z]\w+", quote)}
    words = {word for code in CODE.values() for word in re.findall(r"\w+", code)}
    assert len(names) > 5
    assert names <= words, "CONTRIBUTING.md has names that the code has not"


def objects() -> Iterator[Any]:
    """Yield what the package, the pages of docs and the vocabulary of methods name, and the functions of commands."""
    yield from (getattr(fedpca_flwr, name) for name in fedpca_flwr.__all__)
    yield from (value for module in (method, columns_method) for value in vars(module).values())
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    paths = re.findall(r"^::: ([\w.]+)", pages, re.M)
    for thing in map(pkgutil.resolve_name, (*paths, *(function for function, _ in COMMANDS.values()))):
        if inspect.ismodule(thing):
            own = [name for name, value in vars(thing).items() if getattr(value, "__module__", "") == thing.__name__]
            names = getattr(thing, "__all__", [name for name in own if not name.startswith("_")])
            yield from (getattr(thing, name) for name in names)
        else:
            yield thing


def functions(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and function, of a function or of a class's methods; those that override are documented elsewhere."""
    path = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if not path.startswith("fedpca_flwr.") or getattr(value, "_is_protocol", False):
        return
    if inspect.isfunction(value):
        yield path, value
    elif inspect.isclass(value) and not issubclass(value, pydantic.BaseModel):
        for name, member in vars(value).items():
            function = inspect.unwrap(getattr(member, "__func__", member))
            local = inspect.isfunction(function) and function.__qualname__ == f"{value.__qualname__}.{name}"
            if local and not name.startswith("_") and not getattr(function, "__override__", False):
                yield f"{path}.{name}", function


def test_public_names_document_parameters_and_results(monkeypatch):
    """Parameters and results have a text, and no text is of a parameter that there is not."""
    monkeypatch.delattr(fedpca_flwr.run, "__signature__")  # with the options of all methods, which pages document
    documented = {path: function for value in objects() for path, function in functions(value)}
    assert len(documented) > 100
    docs = {path: Validator(get_doc_object(function)) for path, function in documented.items()}
    faults = [(path, text) for path, doc in docs.items() for code, text in doc.parameter_mismatches if code != "PR03"]
    assert not faults  # but for the order
    assert not [path for path, doc in docs.items() if doc.method_returns_something and not doc.returns]


def test_a_refusal_that_names_a_part_of_a_key_or_something_else_fails_the_test():
    text = "client 1: 'min-rows' is 150 or 0.5 of -3, at /data/x.csv (2,048 bytes): shape (3, 5), keep='all'."
    whole = ["client 1", "min-rows", 150, 0.5, -3, "/data/x.csv", "x.csv", "2,048", "(3, 5)", "keep='all'", "'all'"]
    parts = [50, 15, 3.0, 3.5, "client 11", "rows", "min", 48, 2, "csv", "x", "'rows'"]
    assert unnamed(text, *whole, *parts) == parts
    for named, error in (
        *((named, ConfigError("'step' is 8")) for named in (["'step'", 7], ["'steps'", 8], [])),
        (["'step'", 8], DataError("'step' is 8")),
    ):
        with pytest.raises((AssertionError, DataError)), refused(ConfigError, *named):
            raise error
    with refused(ConfigError, "'step'", 8):
        raise ConfigError("'step' is 8")


def test_rewording_a_message_turns_few_tests_red():
    """Those that hold a word of a message (`match=`), where two of one kind name the same."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert sum(text.count("match=") for text in texts) <= 100, "hold what is named: tests/refusals.py"


def test_tests_use_no_private_function_of_the_package():
    private = set(re.findall(r"^ *def (_[a-z]\w*[a-z0-9])\(", "\n".join(CODE.values()), re.M))
    assert len(private) > 300
    uses = re.compile(r'(?:(?<!self)\.|import .*?\b|attr\(.*?, "|setattr, .*?, ")(_\w+)')
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py")}
    found = {f"{file}: {name}" for file, text in texts.items() for name in uses.findall(text) if name in private}
    assert not found, "hold what a public name shows, so that code may move"
