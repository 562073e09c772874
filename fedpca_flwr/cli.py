"""The commands: ``fedpca COMMAND``, or ``python -m fedpca_flwr COMMAND`` where the program is not on the path."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from inspect import get_annotations, getdoc
from io import TextIOWrapper
from itertools import zip_longest
from typing import Annotated, Any, cast

import click
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

from fedpca_flwr.errors import FedPCAError, removal_text

COMMANDS = {
    "compare": ("fedpca_flwr.simulations.compare.main", "Run several methods on the same parties, and recommend one."),
    "report": ("fedpca_flwr.simulations.report.main", "Write the page of a comparison again."),
    "launch": (
        "fedpca_flwr.site.node.flower_command.main",
        "Start `flwr run --stream`; the exit code says how it ended.",
    ),
    "cells": ("fedpca_flwr.cells.command.main", "Embed the cells of several .h5ad files together, by Harmony."),
    "genotypes": ("fedpca_flwr.genetics.command.main", "Plot the people of several .bed files together."),
    "methods": ("fedpca_flwr.simulations.methods.main", "List the methods, their rounds and their privacy."),
    "audit": (
        "fedpca_flwr.site.rules.comparison.main",
        "Lay a model beside its sites' journals, and say what matches.",
    ),
    "trace": ("fedpca_flwr.simulations.trace.main", "Show a run's questions and replies, and the code that answers."),
    "download": ("fedpca_flwr.data.datasets.download", "Fetch a data set, before a run."),
    "post start": ("fedpca_flwr.post.commands.start", "Begin a run whose questions are files that people carry."),
    "post continue": ("fedpca_flwr.post.commands.proceed", "Go on with a run by post as far as its replies permit."),
    "site answer": ("fedpca_flwr.post.commands.answer", "Answer a question that has come as a file."),
    "site forget": ("fedpca_flwr.post.commands.forget", "Forget the secrets of a run by post."),
    "site init": ("fedpca_flwr.site.commands.init", "Write this site's file, with a comment for each line."),
    "site node": ("fedpca_flwr.site.commands.node", "Run this site: its SuperNode, and its installation's answers."),
    "site keys": ("fedpca_flwr.site.commands.keys", "Make this site's identity."),
    "site journal": ("fedpca_flwr.site.commands.journal", "Show what this site was asked and has sent."),
    "site status": ("fedpca_flwr.site.commands.status", "Show what became of each run at this site."),
    "site doctor": ("fedpca_flwr.site.node.doctor.main", "Look for what would keep this site out of a run."),
    "site worth": ("fedpca_flwr.simulations.worth.main", "Forecast from a site's own rows what joining would add."),
    "site variants": ("fedpca_flwr.genetics.bed_file.variants", "Print the variants that several .bim files share."),
    "site relatives": ("fedpca_flwr.genetics.relatives.main", "Print whom to leave out so that nobody is related."),
    "site levels": ("fedpca_flwr.site.commands.levels", "Print the levels of columns, or those of several sites."),
    "site certificates": ("fedpca_flwr.site.commands.certificates", "Make the SuperLink's certificate."),
    "site node-key": ("fedpca_flwr.site.commands.node_key", "Make the key with which a SuperNode signs in."),
    "site ids-secret": ("fedpca_flwr.site.commands.ids_secret", "Make the secret under which sites compare ids."),
    "site rehearse": ("fedpca_flwr.site.commands.rehearse", "Run a whole deployment on this machine."),
}
"""The function of each command, which is imported when the command is called, and a line for the list of commands."""

GROUPS = {"post": "A run without a network between the sites.", "site": "What a site does beside the runs."}
"""First words of commands, and a line for the list of commands."""

HELP = """Federated PCA on Flower.

Start a run with `flwr run .` in the repository, or in Python:

    from fedpca_flwr import run
    print(run("p-cov", {"north": X, "south": Y}, n_components=2).summary())

`fedpca COMMAND -h` shows the options of a command with an example. With `--json` a command prints its result for
programs. `fedpca --install-completion` lets your shell complete commands and values.

The exit code is 0 if all is well, 1 if a run failed or a check found something, 2 for wrong words, files or values, and
3 if a run by post waits for replies.
"""
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
ERRORS_KEY = "fedpca_flwr.errors"  # key of click's context under which a quiet command has the stream for its errors
JSON_KEY = "fedpca_flwr.json"  # key of click's context that says whether a command prints JSON
OPTION = re.compile(r"-(?!\.?\d)")  # beginning of an option on a command line: "-1" is a number
PARAMETER = re.compile(r"^(\w+) : .*\n((?: {4}.*\n?)+)", re.M)
"""Name and text of a parameter in a docstring of numpydoc."""


@dataclass(frozen=True)
class Report:
    """Result of a command. A function that returns a report is a command with the option ``--json``."""

    text: str  # the result for people
    content: object  # the same as values of JSON: None, bool, int, float, str, lists, and dictionaries by text
    fault: str = ""  # what a check found or which part failed, a line for stderr; the exit code is then 1


class Command(TyperCommand):
    """Command whose options of lists take several values in a row (``--host a b``), and whose errors are one line."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put a list option's flag before each of its values, as click expects; raise BadOptionUsage if it has none."""
        lists = {flag for parameter in self.params if parameter.multiple for flag in parameter.opts}
        expanded: list[str] = []
        flag = ""
        for word, following in zip_longest(args, args[1:], fillvalue="--"):
            if not OPTION.match(word):
                expanded += [flag, word] if flag else [word]
                continue
            flag = word if word in lists else ""
            if not flag:
                expanded.append(word)
            elif OPTION.match(following) and not ctx.resilient_parsing:  # which completes a word
                raise click.BadOptionUsage(word, f"Option {word!r} requires a value.", ctx)
        return super().parse_args(ctx, expanded)

    @override
    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        pass  # typer lists the arguments with the options, too

    @override
    def get_help(self, ctx: click.Context) -> str:
        """Return the help without typer's backslashes before brackets."""
        return super().get_help(ctx).replace(r"\[", "[")  # typer escapes them for rich in plain text, too

    @override
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print its report; return 1 for a report with a fault, else 0, or what is no report.

        An error of this package or of the system is printed in one line, and raises `typer.Exit` with code 2.
        """
        try:
            result = super().invoke(ctx)
            if not isinstance(result, Report):
                return result
            text = json.dumps(result.content, indent=2, allow_nan=False) if ctx.meta[JSON_KEY] else result.text
            if text:
                print(text)
            if result.fault:
                print(result.fault, file=sys.stderr)
            return int(bool(result.fault))
        except BrokenPipeError:  # nobody reads the output any more: click ends the process
            raise
        except (FedPCAError, OSError) as error:
            local = f" ({error.local})" if isinstance(error, FedPCAError) and error.local else ""
            print(f"{ctx.command_path}: {error}{local}", file=ctx.meta.get(ERRORS_KEY, sys.stderr))
            raise typer.Exit(2) from None


class Group(TyperGroup):
    """Command group that imports a command only when called: the listed command's callback returns it."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a name, its command, which is imported, and the remaining words; raise UsageError for other names."""
        try:
            name, listed, rest = super().resolve_command(ctx, args)
        except click.UsageError:
            if removal := removal_text(args[0]):
                raise click.BadArgumentUsage(f"No such command {args[0]!r}, {removal}", ctx) from None
            raise
        return name, listed if listed is None or isinstance(listed, Group) else cast(Any, listed).callback(), rest


def load(target: str) -> click.Command:
    """Import the function of a dotted name as a command.

    The help is the docstring up to "Parameters", and each parameter's help is its text there. A positional parameter
    without a default is an argument, all others are options; every command has ``--quiet``, one of a report ``--json``.
    """
    home, _, name = target.rpartition(".")
    module = import_module(home)
    function = getattr(module, name)
    text, _, section = (getdoc(function) or "").partition("\n\nParameters\n----------\n")
    app = new_app()
    settings = {**HELP_OPTIONS, **getattr(module, "CONTEXT_SETTINGS", {})}
    app.command(cls=Command, help=readable(text), context_settings=settings)(function)
    command = typer.main.get_command(app)
    texts = {words[0]: " ".join(words[1].split()) for words in PARAMETER.findall(section)}
    for parameter in command.params:
        parameter.help = texts[str(parameter.name)]
        parameter.secondary_opts = []  # no --no-knn beside --knn
    if get_annotations(function, eval_str=True).get("return") is Report:
        command.params.append(_flag("--json", choose_json, "Print JSON instead, for programs."))
    help_text = "Print errors only. The exit code is the same as without this option."
    command.params.append(_flag("--quiet", silence, help_text))
    return command


def _flag(name: str, callback: Callable[[click.Context, click.Parameter, bool], None], text: str) -> TyperOption:
    """Return an option that the command's function does not receive, and whose callback acts on the context."""
    return TyperOption(param_decls=[name], is_flag=True, expose_value=False, callback=callback, help=text)


def choose_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Let the command print its report as JSON if it was called with ``--json``."""
    ctx.meta[JSON_KEY] = value


def silence(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Discard all but the errors of a command called with ``--quiet``, until its context closes."""
    if value:
        ctx.meta[ERRORS_KEY] = sys.stderr
        nowhere = ctx.with_resource(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (click closes it)
        ctx.with_resource(redirect_stdout(nowhere))
        ctx.with_resource(redirect_stderr(nowhere))


def new_app(**settings: Any) -> typer.Typer:
    """Return an application without commands, whose help is plain text unless shown by a terminal.

    Its tracebacks are Python's, since those of typer show local variables, which hold data.
    """
    mode: Any = "markdown" if sys.stdout.isatty() else None
    settings = {"add_completion": False, **settings}
    return typer.Typer(cls=Group, pretty_exceptions_enable=False, rich_markup_mode=mode, **settings)


def readable(text: str) -> str:
    r"""Mark indented paragraphs with \b where help is plain text, so that their lines are not filled."""
    return text if sys.stdout.isatty() else re.sub(r"\n\n(?= {4})", "\n\n\b\n", text)


def show_version(value: bool) -> None:
    """Print the version of the package and raise `typer.Exit`, if the option was set."""
    if value:
        print(f"fedpca-flwr {import_module('fedpca_flwr').__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Accept the options before a command's name; ``--version`` acts by its own callback."""


def _loader(target: str) -> Callable[[], click.Command]:
    """Return a function that imports the command with a dotted name."""
    return lambda: load(target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of the package (by default the words of this process), and return its exit code (`HELP`)."""
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # other sites read such a file; Windows has an encoding of its own
    app = new_app(add_completion=True)
    app.callback(help=readable(HELP), context_settings=HELP_OPTIONS)(root)
    groups = {name: new_app(help=line, context_settings=HELP_OPTIONS) for name, line in GROUPS.items()}
    for path, (target, line) in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        groups.get(group, app).command(name, help=line)(_loader(target))
    for name, group_app in groups.items():
        app.add_typer(group_app, name=name)
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = typer.main.get_command(app)
    return run(command, words, "fedpca", obj=lambda: import_module("fedpca_flwr.strategies").FACTORY)


def run_listed(loaders: Mapping[str, Callable[[], click.Command]], doc: str, words: Sequence[str], program: str) -> int:
    """Import and run the command that the first word names, with `doc` as help, and return its exit code."""
    commands: dict[str, click.Command] = {name: TyperCommand(name, callback=loader) for name, loader in loaders.items()}
    settings: Any = {"help": readable(doc), "context_settings": HELP_OPTIONS, "rich_markup_mode": None}
    return run(Group(commands=commands, **settings), words, program)


def run(command: click.Command, words: Sequence[str], program: str, **settings: Any) -> int:
    """Run a command on the words behind the program's name, and return its exit code.

    A usage error is printed in one line and gives the code 2. `settings` are for click's context.
    """
    try:
        return command.main([*words], prog_name=program, standalone_mode=False, **settings) or 0
    except click.UsageError as error:
        path, message = program, error.format_message().rstrip(".")
        if error.ctx is not None:
            path = error.ctx.command_path
            group, of_option = error.ctx.command, isinstance(error, click.NoSuchOption | click.BadArgumentUsage)
            if isinstance(group, click.Group) and not of_option:
                names = ", ".join(group.list_commands(error.ctx))
                message = f"{message.partition('. Did you mean')[0]}; expected one of: {names}"
        print(f"{path}: {message}; '{path} -h' lists what there is", file=sys.stderr)
        return error.exit_code
