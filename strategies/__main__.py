"""`python -m fedpca_flwr methods`: tables from the cards; with `write` into docs."""

import argparse
import ast
import itertools
import re
import sys
import typing
from collections.abc import Iterable, Sequence
from inspect import getdoc, getmodule, getsource
from pathlib import Path
from textwrap import dedent

from pydantic.fields import FieldInfo

from fedpca_flwr.config.method_text import own_keys, text_of
from fedpca_flwr.config.run_config import Config, RunConfig
from fedpca_flwr.figures.markdown import table
from fedpca_flwr.model.measurements import MEASUREMENTS
from fedpca_flwr.protocol.card import Shown
from fedpca_flwr.protocol.question import Question
from fedpca_flwr.protocol.registry import Method

from . import METHODS, TRAVEL, script_of, transports_of

HEADS = ("method", "result", "rounds", "upload per party", "server sees", "privacy", "split")
WHO = ("method", "the server sees, of each party", "other parties see", "a network observer sees (TLS)")
NOTHING = ("", "")
WAYS = {
    "clear": ("", NOTHING, NOTHING, NOTHING),
    "masked": (" with secure aggregation", ("random words; of all parties together ", ""), NOTHING, NOTHING),
    "surviving": (
        " with `survivors`",
        (
            "random words, public keys, encrypted shares, and the seed of its own mask or the key of its pairwise "
            "masks; of the survivors together ",
            "",
        ),
        ("public keys, encrypted shares, who takes part; ", ""),
        ("", ", who dropped out"),
    ),
}
"""How answers travel: what the first column says of it, and what each other column says before and after a method's."""

PAGE = """# Methods

This page is made from the code (`python -m fedpca_flwr methods write`): what each method does, its source, and its
options. [Which method?](which-method.md) compares the methods, [SECURITY.md](../SECURITY.md) says who sees what.

## How to say it

What every run has, whatever the method, is a key of its own. A method's own options are in the key `method`, behind its
name: `--run-config "method='sub-it block-size=10' n-components=5"`. `python -m fedpca_flwr compare --methods` takes the
same texts; in Python also `run("sub-it", parties, block_size=10)`. The words are told apart as in a shell, so what has
spaces needs quotes of the other kind: `method='streaming leave="hospital 1"'`. Numbers and booleans are as in TOML.

Of `--run-config` Flower itself takes only the keys of every run: for another one, such as an option beside `method`,
it says "Invalid run configuration", and the SuperLink's log names the key.

Of the sources, Ozkara et al. 2023 is Ozkara, Huang and Diggavi, Personalized PCA for Federated Heterogeneous Data;
Grammenos et al. 2019 is Grammenos, Mendoza-Smith, Mascolo and Crowcroft, Federated PCA with Adaptive Rank Estimation;
Cheung et al. 2022 is Cheung, Jiang, Yu and Lou, Vertical Federated Principal Component Analysis and Its Kernel
Extension on Feature-wise Distributed Data.
"""

MEASUREMENTS_PAGE = """# Measurements

This page is made from the code (`python -m fedpca_flwr methods write`): the numbers that `model.log["measured"]` may
hold, by method and options. `model.summary()` makes its lines of them, a comparison keeps them in `runs.jsonl`. A name
ends with its unit; a `share` is from 0 to 1; squared errors are in squared units of the (scaled) data. A number is
there only where it was measured.
"""


QUESTIONS_PAGE = """# All questions

This page is made from the code (`python -m fedpca_flwr methods write`). It lists all questions that whoever holds the
server may ask a site in one run, in their order. The numbers in brackets come with a question, and the server chooses
them. The counts are those of the options' defaults. [A server that asks what it likes](server.md) says what a site
does about it.
"""


def method_table() -> str:
    """The methods as a Markdown table: exact ones first, those for data split by columns last."""
    ordered = sorted(METHODS.values(), key=lambda m: (m.strategy.card.split != "rows", not m.strategy.card.exact))
    return table(HEADS, map(_cells, ordered)) + "\n"


def methods_page() -> str:
    """docs/methods.md: the keys of every run; each method's module, source and options."""
    keys = _options("key", RunConfig, RunConfig.keys())
    every = f"## Keys of every run\n\n{keys}\n"
    return "\n".join([PAGE, every, *map(_section, METHODS.values())])


def measurements_page() -> str:
    """docs/measurements.md: what ``model.log["measured"]`` may hold."""
    rows = ([f"`{name}`", one.line, what] for one in MEASUREMENTS for name, what in one.numbers.items())
    return f"{MEASUREMENTS_PAGE}\n{table(['number', 'line of the summary', 'what it is'], rows)}\n"


def shown_table() -> str:
    """Who sees what of a party: each method in clear, and where only sums open."""
    heads: dict[tuple[str, Shown], list[str]] = {}
    for way, (head, *_) in WAYS.items():
        for name, method in METHODS.items():
            if way in transports_of(method):
                card = method.strategy.card
                said = card.shows if way == "clear" else card.shows_summed or card.shows
                heads.setdefault((way, said), []).append(f"`{name}`{head}")
    rows = ([", ".join(names), *_shown(way, said)] for (way, said), names in heads.items())
    return table(WHO, rows) + "\n"


def _shown(way: str, said: Shown) -> list[str]:
    """What a way adds to what a method says."""
    _, *added = WAYS[way]
    return [f"{before}{text}{after}" for text, (before, after) in zip(said, added, strict=True)]


def questions_table() -> str:
    """All that whoever holds the server may ask a party in one run, in this order: each run's script."""
    rows = ([f"`{name}`", *(_questions(method, travel) for travel in TRAVEL)] for name, method in METHODS.items())
    return table(["method", "in clear", "secure aggregation", "with `survivors`"], rows) + "\n"


def questions_page() -> str:
    """docs/security/questions.md."""
    return f"{QUESTIONS_PAGE}\n{questions_table()}"


MADE = {"result": method_table, "the server sees": shown_table}
"""Tables on pages that say more than these, by what stands in the head beside the method."""


def with_tables(page: str) -> str:
    """A page whose tables are the present ones."""
    for head, made in MADE.items():
        table_as_it_is = rf"^\| method \| {head}.*\n(\|.*\n)*"
        page = re.sub(table_as_it_is, made().replace("\\", r"\\"), page, flags=re.M)
    return page


def _questions(method: Method, travel: str) -> str:
    """The scripts of a method's examples, over one transport."""
    card, texts = method.strategy.card, dict[str, str]()
    for options in card.examples:
        script = script_of(method, TRAVEL[travel], options)
        if script is not None:
            own = {key: value for key, value in options.items() if card.examples[0].get(key) != value}
            with_them = f"`{text_of('', own).strip()}`: " if own else ""
            chosen = card.phases(TRAVEL[travel], card.options.parse(options))
            chosen = chosen if travel == "clear" else {name: phase.as_sum() for name, phase in chosen.items()}
            asked = ", ".join(_question(name, phase, chosen.get(name)) for name, phase in script.items())
            texts.setdefault(asked, f"{with_them}{asked}")
    further = f", then those of {' or '.join(f'`{name}`' for name in card.goes_on_as)}" if card.goes_on_as else ""
    return "; or ".join(f"{text}{further}" for text in texts.values()) or "-"


def _question(name: str, phase: Question, own: Question | None) -> str:
    """A question, and the fields that come with it, but for those of the transport and of the last round."""
    fields = "" if own is None or own.closing else ", ".join(field.name for field in own.asked.fields)
    text = f"`{name}({fields})`" if fields else f"`{name}`"
    if callable(phase.times):
        return f"{text} (as often as the number of parties says)"
    return f"{text} (at most {phase.times} times)" if phase.times > 1 else text


def _cells(method: Method) -> list[str]:
    card = method.strategy.card
    result = "exact" if card.exact else "approximate"
    return [
        f"[`{card.name}`](methods.md#{card.name})",
        f"{result}, {card.result}" if card.result else result,
        card.rounds,
        card.upload,
        card.server_sees,
        _privacy(method) or "-",
        card.split,
    ]


def _privacy(method: Method) -> str:
    card = method.strategy.card
    texts = ["differential privacy"] if card.differentially_private else []
    texts += ["secure aggregation"] if "masked" in transports_of(method) else []
    texts += [f"a site must allow `{card.exposes}`"] if card.exposes else []
    return ", ".join(texts)


def _section(method: Method) -> str:
    card = method.strategy.card
    about = re.sub(r"::$", ":", getdoc(getmodule(method.strategy)) or "", flags=re.M)
    own = own_keys(card.options)
    options = f"{_options('option', card.options, own)}\n" if own else "It has no options of its own."
    said = f"**{card.title}.** {about}\n\nSource: {card.reference}.\n\nModule: {_module(method)}."
    return f"## {card.name}\n\n{said}\n\n{options}"


def _module(method: Method) -> str:
    """Where a method is, as a link: a file, or a folder of several."""
    path, *inner = method.strategy.__module__.removeprefix(f"{__package__}.").split(".")
    path = f"strategies/{path}" if inner else f"strategies/{path}.py"
    return f"[{path}](../{path})"


def descriptions(config: type[Config]) -> dict[str, str]:
    """By field, the text below it in the source; read here, so that no run parses sources."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if issubclass(kind, Config):
            (parsed,) = ast.parse(dedent(getsource(kind))).body
            assert isinstance(parsed, ast.ClassDef)
            for field, below in itertools.pairwise(parsed.body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[ast.unparse(field.target)] = str(ast.literal_eval(below.value))
    return found


def _options(what: str, config: type[Config], keys: Iterable[str]) -> str:
    about = descriptions(config)
    names = [key.replace("-", "_") for key in keys]
    rows = [_option(name, config.model_fields[name], about.get(name, "")) for name in names]
    return table([what, "values, the default first", "meaning"], rows)


def _option(name: str, field: FieldInfo, text: str) -> list[str]:
    default = {"True": "true", "False": "false", "None": "none", "": "none"}.get(str(field.default), str(field.default))
    others = ["true", "false"] if isinstance(field.default, bool) else _choices(field.annotation)
    values = ", ".join(f"`{value}`" for value in dict.fromkeys([default, *others]))
    about = " ".join(text.replace("|", "\\|").split())
    return [f"`{name.replace('_', '-')}`", values, about]


def _choices(annotation: object) -> list[str]:
    """The texts that a type allows, where it lists them."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [text for part in typing.get_args(annotation) for text in _choices(part)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fedpca_flwr methods", description="The methods as a Markdown table."
    )
    parser.add_argument("write", nargs="?", choices=["write"], help="in the repository: write the tables into docs")
    if not parser.parse_args(arguments).write:
        print(method_table(), end="")
        return 0
    Path("docs/methods.md").write_text(methods_page(), encoding="utf-8")
    Path("docs/measurements.md").write_text(measurements_page(), encoding="utf-8")
    Path("docs/security/questions.md").write_text(questions_page(), encoding="utf-8")
    for path in (Path("docs/which-method.md"), Path("docs/security/methods.md")):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
