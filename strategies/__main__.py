"""`python -m fedpca_flwr methods`: tables from the cards; with `write` into docs."""

import ast
import itertools
import re
import sys
import typing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from inspect import getdoc, getmodule, getsource
from operator import itemgetter
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Literal

from typer import Argument

from fedpca_flwr import cli
from fedpca_flwr.config.method_text import format_method, method_option_keys
from fedpca_flwr.config.run_config import Config, RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.markdown import table
from fedpca_flwr.model.measurements import MEASUREMENTS
from fedpca_flwr.protocol.card import Disclosure, MethodCard
from fedpca_flwr.protocol.question import Question
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.stages import compose
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none, transports_of

HEADS = ("method", "result", "rounds", "privacy", "split")
OPTION = ("values", "meaning")
INTERNAL = re.compile(r"\s+\(`(fedpca_flwr|strategies)\.[^)]*\)")
"""What a docstring says of modules, for those who read the code."""
TABLE = re.compile(r"^\| method \| result.*\n(\|.*\n)*", re.M)
"""The table of methods on docs/which-method.md."""

PERMISSION = "A site with data takes part only if its node-config names `{word}` in `allowed-methods`"
"""How a site allows sums that tell of it."""

PAGE = """# Options

This page lists the keys of every run and the options that several methods share. Each method's page, such as
[`p-cov`](methods/p-cov.md), has its own options. The first value is the default.

A method's own options stand in the key `method`, behind its name:
`--run-config "method='sub-it block-size=10' n-components=5"`. `python -m fedpca_flwr compare --methods` takes the same
texts. A value with spaces needs quotes of the other kind: `method='streaming leave="hospital 1"'`. Numbers and
booleans are as in TOML. In Python options are arguments: `run("sub-it", parties, block_size=10, n_components=5)`.
"""

MEASUREMENTS_PAGE = """# Measurements

A run puts the numbers that it measured into `model.log["measured"]`, and a comparison into `runs.jsonl`. The lines of
`model.summary()` are made of them ([what the lines mean](results.md)). A name ends with its unit. A `share` is from 0
to 1. Squared errors are in squared units of the (scaled) data.
"""


DEVIATIONS = "`sums`, `deviations(rows, centre)`"
PRUNING = r"`alleles`, `neighbours(start)`\*, `gapped_neighbours(start)`\*"

QUESTIONS_PAGE = f"""# All questions

This page is made from the code (`python -m fedpca_flwr methods write`). It lists all questions that whoever holds the
server may ask a site in one run, in their order. A site [answers nothing else](server.md#what-a-site-answers).

- The numbers in brackets come with a question, and the server chooses them. "..." are the numbers
  of the same question where it stands before in the row.
- x99 means at most 99 times, with the options' defaults. A star means that the number of parties says how often.
- *deviations* are {DEVIATIONS}. *As first* are the first questions of the cell.
- With `prune`, {PRUNING} take the place of `alleles`, and `left_out` comes with
  `frequencies`.
- `project` ends every run. With secure aggregation `keys` comes before the first sum, and with more than 50 parties
  `openings` too. With `survivors` each sum has `keys` and `shares` before it, and `agree` and `reveal` after it.
"""


def pages() -> dict[str, str]:
    """Return all documentation pages that are generated from the code: Markdown texts by path in the repository."""
    comparison = Path("docs/which-method.md")
    return {
        "docs/methods.md": options_page(),
        "docs/measurements.md": measurements_page(),
        "docs/security/questions.md": f"{QUESTIONS_PAGE}\n{questions_table()}",
        str(comparison): TABLE.sub(method_table().replace("\\", r"\\"), comparison.read_text(encoding="utf-8")),
        **{f"docs/methods/{name}.md": method_page(method) for name, method in METHODS.items()},
    }


def method_table() -> str:
    """Return the methods as a Markdown table, with links to their pages."""
    rows = [[f"[`{name}`](methods/{name}.md)", *cells] for name, *cells in method_rows()]
    return table(HEADS, rows) + "\n"


def method_rows() -> list[list[str]]:
    """Return a row for each method, its cells as in `HEADS`: exact methods first, methods for columns last."""
    rows = []
    for method in sorted(METHODS.values(), key=lambda m: (m.strategy.card.split != "rows", not m.strategy.card.exact)):
        card = method.strategy.card
        privacy = ["differential privacy"] if card.differentially_private else []
        privacy += ["secure aggregation"] if "masked" in transports_of(method) else []
        privacy += [f"a site must allow `{card.exposes}`"] if card.exposes else []
        result = "exact" if card.exact else "approximate"
        rows.append([card.name, result, card.rounds, ", ".join(privacy) or "-", card.split])
    return rows


def options_page() -> str:
    """Return the Markdown page of the run-config keys and of the options that several methods share."""
    keys = table(("key", *OPTION), _options(RunConfig, RunConfig.keys()))
    rows = ([option, ", ".join(names), *cells] for (option, *cells), names in _shared_options().items())
    shared = table(("option", "methods", *OPTION), rows)
    return _link_pages(f"{PAGE}\n## Keys of every run\n\n{keys}\n\n## Options of several methods\n\n{shared}\n")


def measurements_page() -> str:
    """Return the Markdown page of the numbers in ``model.log["measured"]``, grouped by meaning."""
    rows = []
    for measurement in MEASUREMENTS:
        numbers = [
            f"{', '.join(f'`{name}`' for name, _ in group)}: {meaning}"
            for meaning, group in itertools.groupby(measurement.numbers.items(), key=itemgetter(1))
        ]
        rows.append((measurement.label, "; ".join(numbers)))
    return f"{MEASUREMENTS_PAGE}\n{table(['line of the summary', 'its numbers'], rows)}\n"


def questions_table() -> str:
    """Return a Markdown table of all questions that the server may ask a party in a run, by method and transport."""
    rows = [
        [f"`{name}`", *(_scripts(method, travel) for travel in EXAMPLE_CONFIGS)] for name, method in METHODS.items()
    ]
    cells = [["the same" if text in row[:at] and text != "-" else text for at, text in enumerate(row)] for row in rows]
    lines = table(["method", "in clear", "secure aggregation", "with `survivors`"], cells).splitlines()
    return "".join(_abbreviate(line.replace(DEVIATIONS, "*deviations*")) + "\n" for line in lines)


def _abbreviate(row: str) -> str:
    """Shorten a table row: replace a question's request fields that are repeated from earlier in the row by "..."."""
    fields_of = dict[str, str]()

    def shorten(match: re.Match[str]) -> str:
        """Return a question's text with its earlier fields replaced by "..."."""
        name, fields = match.groups()
        before, fields_of[name] = fields_of.get(name), fields
        short = re.sub(rf"\b{before}\b", "...", fields) if before else fields
        return f"{name}({short})`"

    return re.sub(r"(\w+)\((.*?)\)`", shorten, row)


def _scripts(method: Method, travel: str) -> str:
    """Return a table cell: the questions of a method's example runs over a single transport, or "-" if it has none."""
    card, texts = method.strategy.card, dict[str, str]()
    for options in card.examples:
        script = script_or_none(method, EXAMPLE_CONFIGS[travel], options)
        if script is None:
            continue
        changes = {key: value for key, value in options.items() if card.examples[0].get(key) != value}
        prefix = f"`{format_method('', changes).strip()}`: " if changes else ""
        questions = card.script(EXAMPLE_CONFIGS[travel], card.options.parse(options))
        names = [name for name in script if name in questions and not questions[name].closing]
        text = ", ".join(_question(name, script[name], questions[name]) for name in names)
        first = next(iter(texts), text)
        short = text.replace(f"{first}, ", "*as first*, ", 1) if text.startswith(f"{first}, ") else text
        unpruned = text.replace(PRUNING, "`alleles`").replace("frequencies, left_out", "frequencies")
        if unpruned not in texts:  # else the page says above the table what `prune` changes
            texts[text] = f"{prefix}{short}"
    successors = f"; then those of {' or '.join(f'`{name}`' for name in card.successors)}" if card.successors else ""
    return f"{'; or '.join(texts.values())}{successors}" if texts else "-"


def _question(name: str, phase: Question, question: Question) -> str:
    """Return a question as Markdown: its name, its request fields, and how often a run may ask."""
    fields = ", ".join(field.name for field in question.request.fields)
    text = f"`{name}({fields})`" if fields else f"`{name}`"
    if callable(phase.times):
        return f"{text}\\*"
    return f"{text} x{phase.times}" if phase.times > 1 else text


def method_page(method: Method) -> str:
    """Return a method's Markdown page: description, result, cost, disclosure, options and source.

    Parameters
    ----------
    method : Method
        The method.

    Returns
    -------
    str
        The page, in Markdown.
    """
    card = method.strategy.card
    text = re.sub(r"::$", ":", INTERNAL.sub("", getdoc(getmodule(method.strategy)) or ""), flags=re.M)
    result = "exact" if card.exact else "approximate"
    facts = {
        "Result": f"{result}, {card.result}" if card.result else result,
        "Rounds": card.rounds,
        "Numbers that a party sends": card.upload,
        "Source": card.reference,
    }
    if card.examples[0]:
        arguments = "".join(f", {key.replace('-', '_')}={value!r}" for key, value in card.examples[0].items())
        facts["Example"] = f'`run("{card.name}", parties, n_components=3{arguments})`'
    lines = "\n".join(f"- {fact}: {value}." for fact, value in facts.items())
    tail = _disclosures(method) + _method_options(card)
    return _link_pages("\n\n".join([f"# {card.title} (`{card.name}`)", text, lines, "## Who sees what", tail]), "../")


def _link_pages(text: str, docs: str = "") -> str:
    """Turn paths docs/PAGE.md in a text into Markdown links; ``docs`` is the relative path to the docs folder."""
    return re.sub(r"\bdocs/([\w/-]+)\.md", rf"[\1]({docs}\1.md)", text)


def _disclosures(method: Method) -> str:
    """Return Markdown lines on what server, parties and network learn from a method, in clear and by secure sums."""
    card, ways = method.strategy.card, transports_of(method)
    clear, summed = card.disclosure, card.summed_disclosure or card.disclosure
    lines, sees = {}, "The server sees of each party"
    if "masked" in ways:
        summed_ways = "with secure aggregation" + (" or `survivors`" if "surviving" in ways else "")
        if summed.server == clear.server:
            sees += f", and {summed_ways} of all parties together"
        else:
            lines[f"{summed_ways.capitalize()} it sees of all parties together"] = summed.server
    lines = {sees: clear.server, **lines}
    if "masked" in ways:
        for word, text in _site_sums(card).items():
            lines[f"Sums of `{word}` tell the server of single sites"] = f"{text}. {PERMISSION.format(word=word)}"
    lines["Other parties see"] = clear.parties
    if "masked" in ways and summed.parties != clear.parties:
        lines["With secure aggregation, other parties see"] = summed.parties
    if clear.network != Disclosure._field_defaults["network"]:
        lines["A network observer sees"] = clear.network
    return "".join(f"- {observer}: {text}.\n" for observer, text in lines.items())


def _site_sums(card: MethodCard) -> dict[str, str]:
    """Return what sums disclose about single sites, by the word of `allowed-methods`, over all listed option values."""
    disclosures = dict[str, str]()
    fields = card.options.model_fields
    variations = [{name: value} for name, field in fields.items() for value in _choices(field.annotation)]
    for options in (*card.examples, *variations):
        with suppress(ConfigError):  # of options that need others
            disclosures |= card.options.parse({**card.examples[0], **options}).sum_disclosures
    return disclosures


def _method_options(card: MethodCard) -> str:
    """Return the Markdown section on a method's options: a table of its own options, and names of shared options."""
    shared = _shared_options()
    rows = list(_options(card.options, method_option_keys(card.options)))
    unshared = [row for row in rows if row not in shared]
    names = ", ".join(row[0] for row in rows if row in shared)
    text = f"\n{table(('option', *OPTION), unshared)}\n" if unshared else ""
    text += f"\n[Shared options](../methods.md#options-of-several-methods): {names}.\n" if names else ""
    return f"\n## Options\n{text}" if text else ""


@cache
def _shared_options() -> dict[tuple[str, ...], list[str]]:
    """Return the option table rows that several methods have in common, with the names of those methods."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, method in METHODS.items():
        options = method.strategy.card.options
        for row in _options(options, method_option_keys(options)):
            names.setdefault(row, []).append(f"`{name}`")
    return {row: methods for row, methods in names.items() if len(methods) > 1}


def descriptions(config: type[Config]) -> dict[str, str]:
    """Return the docstring below each field of a configuration class, parsed from the source.

    Parameters
    ----------
    config : type of Config
        The class with the fields.

    Returns
    -------
    dict of str to str
        The texts, by the names of the fields.
    """
    texts: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if issubclass(kind, Config) and kind.__module__ != compose.__module__:  # composed classes have no source
            (parsed,) = ast.parse(dedent(getsource(kind))).body
            assert isinstance(parsed, ast.ClassDef)
            for field, below in itertools.pairwise(parsed.body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    texts[ast.unparse(field.target)] = str(ast.literal_eval(below.value))
    return texts


def _options(config: type[Config], keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each option: its name, its values with the default first, and its meaning."""
    texts = descriptions(config)
    for key in keys:
        name = key.replace("-", "_")
        field = config.model_fields[name]
        words = {"True": "true", "False": "false", "None": "none", "": "none"}
        default = words.get(str(field.default), str(field.default))
        choices = ["true", "false"] if isinstance(field.default, bool) else _choices(field.annotation)
        values = ", ".join(f"`{value}`" for value in dict.fromkeys([default, *choices]))
        yield f"`{name.replace('_', '-')}`", values, " ".join(texts.get(name, "").replace("|", "\\|").split())


def _choices(annotation: object) -> list[str]:
    """Return the values of all `Literal` types in an annotation, as texts."""
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [text for part in typing.get_args(annotation) for text in _choices(part)]


def main(
    write: Annotated[Literal["write"] | None, Argument(metavar="[write]")] = None,
) -> cli.Report:
    """List the methods as a Markdown table.

    Parameters
    ----------
    write : {"write"}, optional
        In the repository: write the tables into docs.

    Returns
    -------
    Report
        The methods, or which files were written.
    """
    if not write:
        return cli.Report(method_table().rstrip(), [dict(zip(HEADS, row, strict=True)) for row in method_rows()])
    texts = pages()
    for path, text in texts.items():
        Path(path).write_text(text, encoding="utf-8")
    return cli.Report(f"{len(texts)} pages are written", {"written": list(texts)})


if __name__ == "__main__":
    sys.exit(cli.main(["methods", *sys.argv[1:]]))
