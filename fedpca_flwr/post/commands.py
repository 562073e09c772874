"""Commands of a run by post: `post start` and `post continue` of the coordinator, `site answer` and `site forget`."""

import contextlib
import shutil
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fedpca_flwr.errors import ConfigError

MAX_EXCHANGES = 30  # for which people need not be asked
IDLE_KEYS = {"method", "clients", "output", "overwrite", "metrics", "join-deadline", "round-deadline", "reference"}
"""Keys of a run-config that have their own option, or mean nothing by post."""


def start(
    folder: Path,
    sites: Annotated[str, Option()],
    method: str = "p-cov",
    run_config: str = "",
    name: str = "the coordinator",
    key: Annotated[Path | None, Option(metavar="FILE")] = None,
    many: bool = False,
) -> None:
    """Begin a run by post, and write its first questions.

        fedpca post start wine --sites "north, south, west" --run-config "n-components=2 scale=true"

    Send the file in wine/to-north to that site, and so on. The exit code is 3, because the run waits for replies.

    Parameters
    ----------
    folder : Path
        New folder, which has the run's name, and is its record.
    sites : str
        Names of the sites, with commas between them, as in their node-configs.
    method : str
        Method, with its options as in `--methods` of `compare`.
    run_config : str
        Keys of the run: "n-components=2 secure-aggregation=true bound=100".
    name : str
        Name under which the questions come.
    key : Path, optional
        Private key (of `site keys`) with which the questions are signed.
    many : bool
        Allow a method that may take more than 30 exchanges.
    """
    from fedpca_flwr.config.run_config import split_names
    from fedpca_flwr.protocol.fleet import parse_config_text
    from fedpca_flwr.strategies import FACTORY, METHODS

    names, values = split_names(sites), parse_config_text(run_config, "--run-config")
    if idle := sorted(IDLE_KEYS & values.keys()):
        raise ConfigError(
            f"--run-config has {', '.join(map(repr, idle))}: leave it out; the method, with its options, is --method "
            "('em scale=true'), and the sites are --sites"
        )
    config = METHODS.run_config({**values, "method": method, "clients": len(names)})
    exchanges = FACTORY.strategy(config).rounds + 1  # the first asks for statements
    if exchanges > MAX_EXCHANGES and not many:
        raise ConfigError(
            f"'{method}' may take {exchanges} exchanges of files; for more than {MAX_EXCHANGES} add --many, or choose "
            "another method or other options (docs/post.md)"
        )
    if any(folder.glob("[!.]*")):
        raise ConfigError(f"the folder {folder} is not empty: continue its run, or name a new one")
    _run(folder, key, sites=names, run_config=config, coordinator=name)


def proceed(
    folder: Path,
    without: Annotated[list[str], Option(metavar="SITE...")] = [],  # noqa: B006 (typer makes a list of each call's own)
    key: Annotated[Path | None, Option(metavar="FILE")] = None,
) -> None:
    """Go on with a run by post as far as the replies permit.

        fedpca post continue wine

    Read the replies in the folders from-SITE, write the next questions, and print for whom the run waits. The exit code
    is 0 if the run is done, and 3 if it waits.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    without : list of str
        Sites to leave out of a run with 'survivors' or 'minimum', once all others have replied.
    key : Path, optional
        Private key with which the run's questions are signed.
    """
    _run(folder, key, without=without)


def answer(file: Path, config: Annotated[Path, Option(metavar="FILE")], yes: bool = False) -> int:
    """Answer a question that has come as a file, and write the reply beside it.

        fedpca site answer north/wine-01-north-statement.question --config north/site.toml

    Show who asks what, by the file's own words, and ask whether to compute an answer. Then show the answer in words and
    bytes, and ask whether to write it. The same question gets the same reply again.

    Parameters
    ----------
    file : Path
        The question.
    config : Path
        The site's file (site.toml). Paths in it count from the folder of the file.
    yes : bool
        Answer and write without asking.

    Returns
    -------
    int
        Exit code: 0 for an answer, 1 for the report of an error, or if nothing was written.
    """
    from fedpca_flwr.config.site_file import read_node_table
    from fedpca_flwr.post.files import seal, write
    from fedpca_flwr.post.question import PostedQuestion, reply_text, statement_of
    from fedpca_flwr.site_app import app

    path, (node, node_config) = file.absolute(), read_node_table(config)
    with contextlib.chdir(config.absolute().parent):
        question = PostedQuestion(path, node)
        print(f"{file}\n{question.text()}")
        if not (yes or _confirm("Compute an answer? [y/N] ")):
            return 1
        reply = question.answer(app, node_config)
    print(f"  would leave    {reply_text(reply)}")
    if not (yes or _confirm("Write the reply? [y/N] ")):
        return 1
    write(path.with_suffix(".reply"), seal(reply)[1])
    print(f"send {file.with_suffix('.reply')} to {question.envelope.coordinator}")
    return int("error" in statement_of(reply))


def forget(run: int, config: Annotated[Path, Option(metavar="FILE")]) -> None:
    """Forget the secrets and replies of a run by post, which ends for this site.

        fedpca site forget 123456789 --config north/site.toml

    Parameters
    ----------
    run : int
        Number of the run, as `site answer` and `site status` show it.
    config : Path
        The site's file (site.toml).
    """
    from fedpca_flwr.config.site_file import read_node_table
    from fedpca_flwr.post.question import STATE_FOLDER
    from fedpca_flwr.site.rules.journal import FileJournal

    node, _ = read_node_table(config)
    with contextlib.chdir(config.absolute().parent):
        if not (folder := STATE_FOLDER / f"{run}-{node.partition_id}").is_dir():
            raise ConfigError(f"{run} is no run by post at this site: 'site status' lists its runs")
        if node.journal:
            FileJournal(node.journal, str(run), node.partition_id).end("forgotten")
        shutil.rmtree(folder)


def _run(folder: Path, key: Path | None, **settings: Any) -> None:
    """Replay a run, with `settings` of its grid; save the model, or raise SystemExit where replies are missing."""
    from fedpca_flwr.flower import run_on
    from fedpca_flwr.model.output import Output
    from fedpca_flwr.post.files import locked
    from fedpca_flwr.post.grid import PostGrid
    from fedpca_flwr.strategies import FACTORY
    from fedpca_flwr.transports.identity import read_private_key

    with locked(folder):
        grid = PostGrid(folder, key=read_private_key(str(key)) if key else None, **settings)
        target = folder.absolute() / "model.npz"
        if target.exists():
            print(f"the run is done: its model is {target}")
            return
        strategy = FACTORY.strategy(grid.record["run-config"])
        model = run_on(grid, strategy)
        config = strategy.config.model_copy(update={"output": str(target)})
        written, faults = Output.of(config, grid.record["number"]).save(model)
        print("\n".join([*grid.notes, *faults, model.summary(), f"  {'model':<22}{written.model}"]))


def _confirm(text: str) -> bool:
    """Return whether a person says yes; the end of the input is a no."""
    try:
        return input(text).strip().lower() in {"y", "yes"}
    except EOFError:
        return False
