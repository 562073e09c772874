"""Pages and tables of docs that are made from the methods' cards: `python docs/method_pages.py write`."""

import ast
import itertools
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from inspect import getdoc, getmodule, getsource, getsourcelines
from operator import attrgetter, itemgetter
from pathlib import Path
from textwrap import dedent
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this clone, whichever is installed

from fedpca_flwr.config.method_text import format_method, method_option_keys
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import Config, RunConfig
from fedpca_flwr.config.site_file import SuperNodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.markdown import table
from fedpca_flwr.model.measurements import MEASUREMENTS
from fedpca_flwr.protocol.card import Disclosure, MethodCard
from fedpca_flwr.protocol.question import Question
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.simulations.methods import method_table
from fedpca_flwr.stages import compose
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none, transports_of

ROOT = Path(__file__).resolve().parents[1]
OPTION = ("values", "meaning")
INTERNAL = re.compile(r"\s+\(`(fedpca_flwr|strategies)\.[^)]*\)")
"""What a docstring says of modules, for those who read the code."""
TABLE = re.compile(r"^\| method \| result.*\n(\|.*\n)*", re.M)
"""The table of methods on docs/which-method.md."""

PAGE = """# Options and keys

This page lists the keys that every run has, the options that several methods share, and the keys of a site. The page of
a method, such as [`p-cov`](methods/p-cov.md), lists the options that only this method has. In the column "values" the
default comes first.

Write the options of a method behind its name, in the key `method`:

```bash
flwr run . --run-config "method='sub-it block-size=10' n-components=5"
```

`python -m fedpca_flwr compare --methods` takes the same texts. Put a value with spaces into quotes of the other kind:
`method='streaming leave="hospital 1"'`. Write numbers and booleans as in TOML. In Python, options are arguments:
`run("sub-it", parties, block_size=10, n_components=5)`.
"""

SITE_KEYS = """## Keys of a site

A site's *node-config* is the section `[site]` of its file `site.toml`, or what `flower-supernode --node-config` gets.
Only the site sets these keys, and a run cannot change them. `partition-id` (from 0) and `num-partitions` are required.
The site's `name` stands in errors and in the model.
"""

SITE_SUMS = """## Sums that tell of single sites

With secure aggregation the server learns sums over all sites. With the options below, these sums also tell the server
something about single sites. A site with data takes part in such a run only if its node-config names the word below in
`allowed-methods`. The page of a method describes the sums that only this method has.
"""

MEASUREMENTS_PAGE = """# Measurements

This page is for whoever reads the numbers of a run in a program. A run stores the numbers that it measured in
`model.log["measured"]`, and a comparison stores them in `runs.jsonl`. `model.summary(full=True)` writes its lines from
these numbers, in the order of this table; [Read the results](results.md) explains the lines. The name of a number ends
with its unit. A `share` is from 0 to 1. Squared errors are in squared units of the data, after scaling.
"""

DEVIATIONS = "`sums`, `deviations(rows, centre)`"
FIELD_GROUPS = {
    "PLACE": "centre, scale, unit, rows",
    "SPREAD": "vectors, middles, spreads",
    "LIMIT": "shape_vectors, shape_middles, shape_spreads, reach",
    "HEADS": "counts, traces, tops, means, remainders",
}
"""Names that docs/security/questions.md gives to request fields which come together in several questions."""
PRUNING = r"`alleles`, `neighbours(start)`\*, `gapped_neighbours(start)`\*"

CALL_PATH = """# The path of a call

One run of `p-cov`, from Flower's `configure_fit` to the method's `aggregate` and back. Steps 1 to 5 run at the server,
6 to 8 at each site, and 9 to 11 at the server again. `aggregate` is a generator: it pauses where it asks (step 5), and
goes on with the answers (step 9). Each later round repeats steps 2 and 6 to 9. `FedPCA.start` stands for step 1.

An app with `FedPCA` and `client_app` uses Flower's Message API. There Flower calls `FedPCA.configure_train`, which
hands on to `configure_fit` (step 2). At each site it calls `PCAClientApp`, which hands on to the client's `fit` (step
6), and at the server `FedPCA.aggregate_train`, which hands on to `aggregate_fit` (step 9).

"""
STEPS = (
    "protocol.server:PCAServer.fit",
    "protocol.strategy:PCAStrategy.configure_fit",
    "protocol.transport:ServerTransport.plain_rounds",
    "questions.rows_run:RowsStrategy.program",
    "strategies.pooled_covariance:PooledCovariance.aggregate",
    "protocol.client:PCAClient.fit",
    "transports.clear:ClearParty.answer",
    "questions.rows_client:RowsClient.statistics",
    "protocol.strategy:PCAStrategy.aggregate_fit",
    "model.solution:solve",
    "questions.rows_run:RowsStrategy.build_model",
)
"""Functions that a run enters, in the order in which it first enters them."""

QUESTIONS_PAGE = f"""# All questions

This page is for whoever must know everything that a site can be asked. The page lists, for each method and in their
order, the questions that the server may ask a site in one run. A site [answers nothing
else](server.md#what-a-site-answers). `python docs/method_pages.py write` makes the page from the code.

- The names in brackets are the numbers that come with a question. The server chooses these numbers. Three dots stand
  for the numbers that the same question has in an earlier line of the same method.
- x99 means that a run with default options may ask the question at most 99 times. A star means that the number of
  sites decides how often a run may ask the question.
- *Deviations* stands for the questions {DEVIATIONS}. *Those of the first line* stands for the questions on
  the first line of the same transport.
- {", ".join(f"{group} stands for `{fields}`" for group, fields in FIELD_GROUPS.items())}.
- First the server asks each site for its statement (`query` in Flower's logs), which comes with every answer:
  number of the site and of all sites, `name`, number of features, digest of their names (the names with `show-names`),
  positions of the covariates, and the version of messages. The last answer has a keyed digest of the audit log's end.
- `digits` asks for the rest of the same sums, about a common centre.
- The question `project` follows the method's questions in every run. With secure aggregation, `keys` comes before the
  first sum; with more than 50 sites, `openings` comes there too. With `survivors`, `keys` and `shares` come before
  each sum, and `agree` and `reveal` after it.

## Options that add questions

- With `prune`, {PRUNING} replace `alleles`, and `left_out` comes
  with `frequencies`.
- With `blind`, the questions of [a blind run](sums.md#a-blind-server) replace those of `p-cov`.
"""


def pages() -> dict[str, str]:
    """Return all documentation pages that are generated from the code: Markdown texts by path in the repository."""
    table_page = "docs/which-method.md"
    own_words = (ROOT / table_page).read_text(encoding="utf-8")
    return {
        "docs/call-path.md": call_path_page(),
        "docs/methods.md": options_page(),
        "docs/measurements.md": measurements_page(),
        "docs/security/questions.md": f"{QUESTIONS_PAGE}{questions_lists()}",
        table_page: TABLE.sub(method_table().replace("\\", r"\\"), own_words),
        **{f"docs/methods/{name}.md": method_page(method) for name, method in METHODS.items()},
    }


def call_path_page() -> str:
    """Return the Markdown page of the functions that a run of `p-cov` enters, with file, line and first sentence."""
    rows = []
    for number, step in enumerate(STEPS, 1):
        module, _, name = step.partition(":")
        function = attrgetter(name)(import_module(f"fedpca_flwr.{module}"))
        place = f"{module.replace('.', '/')}.py:{getsourcelines(function)[1]}"
        rows.append((str(number), f"`{name}`", f"`{place}`", (getdoc(function) or "").splitlines()[0]))
    return f"{CALL_PATH}{table(('step', 'function', 'file in `fedpca_flwr`, and line', 'what it does'), rows)}\n"


def options_page() -> str:
    """Return the Markdown page of the run-config keys and of the options that several methods share."""
    keys = table(("key", *OPTION), _options(RunConfig, RunConfig.keys()))
    parts = [PAGE, f"## Keys of every run\n\n{keys}\n", "## Options of several methods\n"]
    for methods, rows in itertools.groupby(_shared_options().items(), key=itemgetter(1)):
        parts.append(
            f"These are options of {', '.join(methods)}:\n\n{table(('option', *OPTION), (row for row, _ in rows))}\n"
        )
    sums = "".join(
        f"- `{word}`, for the option `{option}`: {text}.\n" for word, (option, text) in _shared_sums().items()
    )
    declared = NodeConfig.keys()
    described = [key for key in declared if key.replace("-", "_") in descriptions(NodeConfig)]
    site = table(("key", *OPTION), _options(NodeConfig, described))
    supernode = table(("key", *OPTION), _options(SuperNodeConfig, SuperNodeConfig.keys()))
    keys = f"{SITE_KEYS}\n{site}\n\nThe section `[supernode]` says how the site is connected:\n\n{supernode}\n"
    return _link_pages("\n".join([*parts, SITE_SUMS, sums, keys]))


def measurements_page() -> str:
    """Return the Markdown page of the numbers in ``model.log["measured"]``, in the order of a summary's lines."""
    rows = []
    for measurement in MEASUREMENTS:
        for meaning, group in itertools.groupby(measurement.numbers.items(), key=itemgetter(1)):
            rows.append((", ".join(f"`{name}`" for name, _ in group), meaning))
    return f"{MEASUREMENTS_PAGE}\n{table(['number', 'meaning'], rows)}\n"


TRANSPORTS = {"clear": "In clear", "masked": "With secure aggregation", "surviving": "With `survivors`"}
"""Names of the transports, by the keys of `EXAMPLE_CONFIGS`."""


def questions_lists() -> str:
    """Return a Markdown list of all questions that the server may ask a site in a run for each method."""
    added = _added_questions()
    parts = [
        "".join(
            f"- With `{options}`, these follow the method's questions: {text}.\n" for options, text in added.items()
        )
    ]
    for name, method in METHODS.items():
        lines, previous = list[str](), dict[str, str]()
        for travel, transport in TRANSPORTS.items():
            texts = {options: text for options, text in _scripts(method, travel).items() if options not in added}
            same = next((TRANSPORTS[other] for other in previous if previous[other] == str(texts)), None)
            if not texts:
                continue
            if same:
                lines.append(f"- {transport}: the same as {same[0].lower()}{same[1:]}.")
            for options, text in texts.items() if not same else ():
                lines.append(f"- {transport}{f', `{options}`' if options else ''}: {text}.")
            previous[travel] = str(texts)
        text = "\n".join(lines).replace(DEVIATIONS, "*Deviations*")
        for group, fields in FIELD_GROUPS.items():
            text = text.replace(fields, group)
        text = _abbreviate(text)
        parts.append(f"## `{name}`\n\n{text}\n")
    return "\n".join(parts)


@cache
def _added_questions() -> dict[str, str]:
    """Return the questions that an option adds to several methods after their own, by the option's text."""
    texts: dict[str, set[str]] = {}
    methods: dict[str, set[str]] = {}
    for name, method in METHODS.items():
        for travel in EXAMPLE_CONFIGS:
            for options, text in _scripts(method, travel).items():
                if text.startswith("*those of the first line*, "):
                    texts.setdefault(options, set()).add(text.removeprefix("*those of the first line*, "))
                    methods.setdefault(options, set()).add(name)
    return {options: min(texts[options]) for options in texts if len(methods[options]) > 1 == len(texts[options])}


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


def _scripts(method: Method, travel: str) -> dict[str, str]:
    """Return the questions of a method's example runs over a transport, by what differs from the first example."""
    card, texts, full = method.strategy.card, dict[str, str](), list[str]()
    for options in card.examples:
        script = script_or_none(method, EXAMPLE_CONFIGS[travel], options)
        if script is None:
            continue
        changes = {key: value for key, value in options.items() if card.examples[0].get(key) != value}
        questions = card.script(EXAMPLE_CONFIGS[travel], card.options.parse(options))
        names = [name for name in script if name in questions and not questions[name].closing]
        text = ", ".join(_question(name, script[name], questions[name]) for name in names)
        first = next(iter(full), text)
        unpruned = text.replace(PRUNING, "`alleles`").replace("frequencies, left_out", "frequencies")
        if unpruned not in full:  # else the page says at its head what `prune` changes
            full.append(text)
            short = (
                text.replace(f"{first}, ", "*those of the first line*, ", 1) if text.startswith(f"{first}, ") else text
            )
            goes_on = card.successors and "project" not in script
            end = f"; then the questions of {_either(card.successors)}" if goes_on else ""
            texts[format_method("", changes).strip()] = short + end
    return texts


def _either(names: Sequence[str]) -> str:
    """Return names as code with "or" between them."""
    return " or ".join(f"`{name}`" for name in names)


def _question(name: str, phase: Question, question: Question) -> str:
    """Return a question as Markdown: its name, its request fields, and how often a run may ask."""
    fields = ", ".join(field.name for field in question.request.fields)
    text = f"`{name}({fields})`" if fields else f"`{name}`"
    if callable(phase.times):
        return f"{text}\\*"
    return f"{text} x{phase.times}" if phase.times > 1 else text


def method_page(method: Method) -> str:
    """Return a method's Markdown page: description, result, cost, disclosure, options and source."""
    card = method.strategy.card
    text = re.sub(r"::$", ":", INTERNAL.sub("", getdoc(getmodule(method.strategy)) or ""), flags=re.M)
    result = "exact" if card.exact else "approximate"
    facts = {
        "Result": f"{result}. {card.result}" if card.result else result,
        "Rounds": card.rounds,
        "Numbers that a site sends": card.upload,
        "Source": card.reference,
    }
    if card.examples[0]:
        arguments = "".join(f", {key.replace('-', '_')}={value!r}" for key, value in card.examples[0].items())
        facts["Example"] = f'`run("{card.name}", parties, n_components=3{arguments})`'
    lines = "\n".join(f"- {fact}: {value}." for fact, value in facts.items())
    tail = _disclosures(method) + _method_options(card) + _differences(card)
    return _link_pages("\n\n".join([f"# {card.title} (`{card.name}`)", text, lines, "## Who sees what", tail]), "../")


def _differences(card: MethodCard) -> str:
    """Return the Markdown section on how a method differs from its publication, and what ``variant='paper'`` sets."""
    text = f"\n## Differs from the publication\n\n{card.differences}\n" if card.differences else ""
    if published := card.options.published:
        options = format_method("", {name.replace("_", "-"): value for name, value in published.items()})
        text += (
            f"\nThese are the options of the publication: `{options.strip()}`. The method "
            f'`"{card.name} variant=paper"` has all of them, except those that you give beside it.\n'
        )
    return text


def _link_pages(text: str, docs: str = "") -> str:
    """Turn paths docs/PAGE.md in a text into Markdown links; ``docs`` is the relative path to the docs folder."""
    return re.sub(r"\bdocs/([\w/-]+)\.md", rf"[\1]({docs}\1.md)", text)


def _disclosures(method: Method) -> str:
    """Return Markdown lines on what server, sites and network learn from a method, in clear and by secure sums."""
    card, ways = method.strategy.card, transports_of(method)
    clear, summed = card.disclosure, card.summed_disclosure or card.disclosure
    lines, learns = {}, "The server learns about each site"
    if "masked" in ways:
        summed_ways = "with secure aggregation" + (" or `survivors`" if "surviving" in ways else "")
        if summed.server == clear.server:
            learns += f", or {summed_ways} about all sites together"
        else:
            lines[f"{summed_ways.capitalize()}, the server learns about all sites together"] = summed.server
    lines = {learns: clear.server, **lines}
    if "masked" in ways:
        site_sums, shared = _site_sums(card), _shared_sums()
        for word in site_sums.keys() - shared.keys():
            lines["The sums also tell the server about single sites"] = (
                f"{site_sums[word][1]}. A site with data must name `{word}` in `allowed-methods`"
            )
        options = ", ".join(f"`{site_sums[word][0]}`" for word in site_sums if word in shared)
        if options:
            lines[
                "Options whose [sums tell the server about single sites](../methods.md#sums-that-tell-of-single-sites)"
            ] = options
    lines["Other sites learn"] = clear.parties
    if "masked" in ways and summed.parties != clear.parties:
        lines["With secure aggregation, other sites learn"] = summed.parties
    if clear.network != Disclosure._field_defaults["network"]:
        lines["An observer of the network learns"] = clear.network
    return "".join(f"- {observer}: {text}.\n" for observer, text in lines.items())


def _site_sums(card: MethodCard) -> dict[str, tuple[str, str]]:
    """Return what sums disclose about single sites: option and text by the word of `allowed-methods`."""
    disclosures = dict[str, tuple[str, str]]()
    variations = [
        {name: value} for name, field in card.options.model_fields.items() for value in _choices(field.annotation)
    ]
    for options in (*card.examples, *variations):
        with suppress(ConfigError):  # of options that need others
            texts = card.options.parse({**card.examples[0], **options}).sum_disclosures
            option = next(reversed(list(options)), "").replace("_", "-")
            disclosures |= {word: (option, text) for word, text in texts.items()}
    return disclosures


@cache
def _shared_sums() -> dict[str, tuple[str, str]]:
    """Return what sums of several methods disclose about single sites, as `_site_sums`."""
    sums = [(word, *entry) for method in METHODS.values() for word, entry in _site_sums(method.strategy.card).items()]
    return {word: (option, text) for word, option, text in sums if sum(word == other for other, *_ in sums) > 1}


def _method_options(card: MethodCard) -> str:
    """Return the Markdown section on a method's options: a table of its own options, and a link to shared options."""
    shared = _shared_options()
    rows = list(_options(card.options, method_option_keys(card.options)))
    unshared = [row for row in rows if row not in shared]
    text = f"\n{table(('option', *OPTION), unshared)}\n" if unshared else ""
    if len(unshared) < len(rows):
        link = "[options of several methods](../methods.md#options-of-several-methods)"
        text += f"\n`{card.name}` also has some of the {link}.\n"
    return f"\n## Options\n{text}" if text else ""


@cache
def _shared_options() -> dict[tuple[str, ...], list[str]]:
    """Return the option table rows that several methods have in common, with the names of those methods.

    An option that means different things in different methods counts as shared in its most common meaning only.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for name, method in METHODS.items():
        options = method.strategy.card.options
        for row in _options(options, method_option_keys(options)):
            names.setdefault(row, []).append(f"`{name}`")
    most = {option: max(len(names[row]) for row in names if row[0] == option) for option, *_ in names}
    return {row: methods for row, methods in names.items() if len(methods) == most[row[0]] > 1}


def descriptions(config: type[Config]) -> dict[str, str]:
    """Return the docstring below each field of a configuration class, parsed from the source."""
    texts: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if issubclass(kind, Config) and kind.__module__ != compose.__module__:  # composed classes have no source
            texts |= _class_descriptions(kind)
    return texts


@cache
def _class_descriptions(config: type[Config]) -> dict[str, str]:
    """Return the docstring below each field in the body of a class itself."""
    (parsed,) = ast.parse(dedent(getsource(config))).body
    assert isinstance(parsed, ast.ClassDef)
    return {
        ast.unparse(field.target): str(ast.literal_eval(below.value))
        for field, below in itertools.pairwise(parsed.body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def _options(config: type[Config], keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each option: its name, its values with the default first, and its meaning."""
    texts = descriptions(config)
    for key in keys:
        name = key.replace("-", "_")
        field = config.model_fields[name]
        words = {"True": "true", "False": "false", "None": "none", "": "none", "PydanticUndefined": "required"}
        default = words.get(str(field.default), str(field.default))
        choices = ["true", "false"] if isinstance(field.default, bool) else _choices(field.annotation)
        values = ", ".join(f"`{value}`" for value in dict.fromkeys([default, *(value or "none" for value in choices)]))
        yield f"`{name.replace('_', '-')}`", values, " ".join(texts.get(name, "").replace("|", "\\|").split())


def _choices(annotation: object) -> list[str]:
    """Return the values of all `Literal` types in an annotation, as texts."""
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [text for part in typing.get_args(annotation) for text in _choices(part)]


def main() -> None:
    """Write all generated pages into this repository's folder ``docs``."""
    texts = pages()
    for path, text in texts.items():
        (ROOT / path).write_text(text, encoding="utf-8")
    print(f"{len(texts)} pages are written")


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit("expected: python docs/method_pages.py write")
    main()
