"""`python -m fedpca_flwr methods`: tables from the cards; with `write` into docs."""

import ast
import itertools
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from inspect import getdoc, getmodule, getsource
from operator import itemgetter
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Literal

from pydantic.fields import FieldInfo
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
    """All pages that are made here, by their paths in the repository."""
    compared = Path("docs/which-method.md")
    return {
        "docs/methods.md": options_page(),
        "docs/measurements.md": measurements_page(),
        "docs/security/questions.md": f"{QUESTIONS_PAGE}\n{questions_table()}",
        str(compared): TABLE.sub(method_table().replace("\\", r"\\"), compared.read_text(encoding="utf-8")),
        **{f"docs/methods/{name}.md": method_page(method) for name, method in METHODS.items()},
    }


def method_table() -> str:
    """The methods as a Markdown table: exact ones first, those for data split by columns last."""
    ordered = sorted(METHODS.values(), key=lambda m: (m.strategy.card.split != "rows", not m.strategy.card.exact))
    return table(HEADS, map(_cells, ordered)) + "\n"


def options_page() -> str:
    """The keys of every run, and the options of several methods."""
    keys = table(("key", *OPTION), _options(RunConfig, RunConfig.keys()))
    several = ([option, ", ".join(names), *cells] for (option, *cells), names in _shared().items())
    shared = table(("option", "methods", *OPTION), several)
    return _linked(f"{PAGE}\n## Keys of every run\n\n{keys}\n\n## Options of several methods\n\n{shared}\n")


def measurements_page() -> str:
    """What ``model.log["measured"]`` may hold."""
    rows = ((one.label, "; ".join(_numbers(one.numbers))) for one in MEASUREMENTS)
    return f"{MEASUREMENTS_PAGE}\n{table(['line of the summary', 'its numbers'], rows)}\n"


def _numbers(numbers: Mapping[str, str]) -> Iterator[str]:
    """Each number with its meaning; names of one meaning together."""
    for what, same in itertools.groupby(numbers.items(), key=itemgetter(1)):
        yield f"{', '.join(f'`{name}`' for name, _ in same)}: {what}"


def questions_table() -> str:
    """All that whoever holds the server may ask a party in one run, in this order: each run's script."""
    rows = [
        [f"`{name}`", *(_questions(method, travel) for travel in EXAMPLE_CONFIGS)] for name, method in METHODS.items()
    ]
    cells = [["the same" if text in row[:at] and text != "-" else text for at, text in enumerate(row)] for row in rows]
    lines = table(["method", "in clear", "secure aggregation", "with `survivors`"], cells).splitlines()
    return "".join(_each_once(line.replace(DEVIATIONS, "*deviations*")) + "\n" for line in lines)


def _each_once(row: str) -> str:
    """The row, with "..." for the numbers that the same question has before."""
    told = dict[str, str]()

    def shortened(found: re.Match[str]) -> str:
        name, fields = found.groups()
        before, told[name] = told.get(name), fields
        short = re.sub(rf"\b{before}\b", "...", fields) if before else fields
        return f"{name}({short})`"

    return re.sub(r"(\w+)\((.*?)\)`", shortened, row)


def _questions(method: Method, travel: str) -> str:
    """The scripts of a method's examples, over one transport."""
    card, texts = method.strategy.card, dict[str, str]()
    for options in card.examples:
        script = script_or_none(method, EXAMPLE_CONFIGS[travel], options)
        if script is not None:
            own = {key: value for key, value in options.items() if card.examples[0].get(key) != value}
            with_them = f"`{format_method('', own).strip()}`: " if own else ""
            chosen = card.script(EXAMPLE_CONFIGS[travel], card.options.parse(options))
            own_names = [name for name in script if name in chosen and not chosen[name].closing]
            asked = ", ".join(_question(name, script[name], chosen[name]) for name in own_names)
            first = next(iter(texts), asked)
            told = asked.replace(f"{first}, ", "*as first*, ", 1) if asked.startswith(f"{first}, ") else asked
            unpruned = asked.replace(PRUNING, "`alleles`").replace("frequencies, left_out", "frequencies")
            if unpruned not in texts:  # else the page says above the table what `prune` changes
                texts[asked] = f"{with_them}{told}"
    further = f"; then those of {' or '.join(f'`{name}`' for name in card.successors)}" if card.successors else ""
    return f"{'; or '.join(texts.values())}{further}" if texts else "-"


def _question(name: str, phase: Question, own: Question) -> str:
    """A question of the method's own, and the fields that come with it."""
    fields = ", ".join(field.name for field in own.request.fields)
    text = f"`{name}({fields})`" if fields else f"`{name}`"
    if callable(phase.times):
        return f"{text}\\*"
    return f"{text} x{phase.times}" if phase.times > 1 else text


def _cells(method: Method) -> list[str]:
    card = method.strategy.card
    name = f"[`{card.name}`](methods/{card.name}.md)"
    return [name, "exact" if card.exact else "approximate", card.rounds, _privacy(method) or "-", card.split]


def _privacy(method: Method) -> str:
    card = method.strategy.card
    texts = ["differential privacy"] if card.differentially_private else []
    texts += ["secure aggregation"] if "masked" in transports_of(method) else []
    texts += [f"a site must allow `{card.exposes}`"] if card.exposes else []
    return ", ".join(texts)


def method_page(method: Method) -> str:
    """What a method does and costs, who sees what, its own options and its source; an example, if it needs options."""
    card = method.strategy.card
    about = re.sub(r"::$", ":", INTERNAL.sub("", getdoc(getmodule(method.strategy)) or ""), flags=re.M)
    result = "exact" if card.exact else "approximate"
    facts = {
        "Result": f"{result}, {card.result}" if card.result else result,
        "Rounds": card.rounds,
        "Numbers that a party sends": card.upload,
        "Source": card.reference,
    }
    if card.examples[0]:
        needed = "".join(f", {key.replace('-', '_')}={value!r}" for key, value in card.examples[0].items())
        facts["Example"] = f'`run("{card.name}", parties, n_components=3{needed})`'
    listed = "\n".join(f"- {what}: {text}." for what, text in facts.items())
    parts = [f"# {card.title} (`{card.name}`)", about, listed, "## Who sees what", _shown(method) + _own_options(card)]
    return _linked("\n\n".join(parts), "../")


def _linked(text: str, docs: str = "") -> str:
    """The names of pages as links, from a page whose way to docs is ``docs``."""
    return re.sub(r"\bdocs/([\w/-]+)\.md", rf"[\1]({docs}\1.md)", text)


def _shown(method: Method) -> str:
    """Who sees what, in clear and, where only sums open, of these."""
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
    return "".join(f"- {who}: {what}.\n" for who, what in lines.items())


def _site_sums(card: MethodCard) -> dict[str, str]:
    """What sums tell of single sites, by its word, with any of the values that the options list."""
    found = dict[str, str]()
    fields = card.options.model_fields
    chosen = [{name: value} for name, field in fields.items() for value in _choices(field.annotation)]
    for own in (*card.examples, *chosen):
        with suppress(ConfigError):  # of options that need others
            found |= card.options.parse({**card.examples[0], **own}).sum_disclosures
    return found


def _own_options(card: MethodCard) -> str:
    """The options of one method, and the names of those that others have too."""
    shared = _shared()
    rows = [tuple(cells) for cells in _options(card.options, method_option_keys(card.options))]
    own = [cells for cells in rows if cells not in shared]
    others = ", ".join(cells[0] for cells in rows if cells in shared)
    text = f"\n{table(('option', *OPTION), own)}\n" if own else ""
    text += f"\n[Shared options](../methods.md#options-of-several-methods): {others}.\n" if others else ""
    return f"\n## Options\n{text}" if text else ""


@cache
def _shared() -> dict[tuple[str, ...], list[str]]:
    """The options that are the same in several methods, each with these."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, method in METHODS.items():
        options = method.strategy.card.options
        for cells in _options(options, method_option_keys(options)):
            found.setdefault(cells, []).append(f"`{name}`")
    return {cells: names for cells, names in found.items() if len(names) > 1}


def descriptions(config: type[Config]) -> dict[str, str]:
    """By field, the text below it in the source; read here, so that no run parses sources."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if issubclass(kind, Config) and kind.__module__ != compose.__module__:  # those have what their bases have
            (parsed,) = ast.parse(dedent(getsource(kind))).body
            assert isinstance(parsed, ast.ClassDef)
            for field, below in itertools.pairwise(parsed.body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[ast.unparse(field.target)] = str(ast.literal_eval(below.value))
    return found


def _options(config: type[Config], keys: Iterable[str]) -> list[tuple[str, str, str]]:
    about = descriptions(config)
    names = [key.replace("-", "_") for key in keys]
    return [_option(name, config.model_fields[name], about.get(name, "")) for name in names]


def _option(name: str, field: FieldInfo, text: str) -> tuple[str, str, str]:
    default = {"True": "true", "False": "false", "None": "none", "": "none"}.get(str(field.default), str(field.default))
    others = ["true", "false"] if isinstance(field.default, bool) else _choices(field.annotation)
    values = ", ".join(f"`{value}`" for value in dict.fromkeys([default, *others]))
    about = " ".join(text.replace("|", "\\|").split())
    return f"`{name.replace('_', '-')}`", values, about


def _choices(annotation: object) -> list[str]:
    """The texts that a type allows, where it lists them."""
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [text for part in typing.get_args(annotation) for text in _choices(part)]


def main(write: Annotated[Literal["write"] | None, Argument(metavar="[write]")] = None) -> None:
    """List the methods as a Markdown table.

    Parameters
    ----------
    write : {"write"}, optional
        In the repository: write the tables into docs.
    """
    if not write:
        print(method_table(), end="")
        return
    for path, text in pages().items():
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(cli.main(["methods", *sys.argv[1:]]))
