"""Run a single method on data in this process: to explore, to compare, to test."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import encoded, level_notes, levels_of_frames
from fedpca_flwr.data.column_notes import class_code_notes, one_column_notes, split_at_commas
from fedpca_flwr.data.table import Table, columns_text
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths.columns import prepare_columns
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.model.fitted import open_log
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.notes import undivided_notes
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.progress import limit_flower_log
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.simulations import ENGINES
from fedpca_flwr.simulations.loopback import FILES, on_loopback
from fedpca_flwr.simulations.parties import Parties, by_text, parties_of, read_parties
from fedpca_flwr.simulations.progress import show_progress
from fedpca_flwr.simulations.python_words import POLICY, RunSignature, in_words_of_python
from fedpca_flwr.strategies import METHODS

PartyTable = ArrayLike | Blocks | Table | os.PathLike[str]
EngineRun = Callable[..., PCAModel]  # of a run-config, the parties and the sites' node-configs
PartyData = Iterable[PartyTable] | Mapping[str, PartyTable]


def run(
    method: str | type[PCAStrategy],
    parties: PartyData,
    *,
    n_components: int | float | str = 10,
    engine: str = "loopback",
    progress: bool = True,
    **options: Any,
) -> PCAModel:
    """Run federated PCA on the data that ``parties`` hold, in this process or in Flower's simulation.

    Parameters
    ----------
    method : str or type
        Name of a method in `fedpca_flwr.METHODS`, such as ``"p-cov"``, alone or with options, such as
        ``"sub-it block-size=10"``; or a class of your own (docs/own-method.md).
    parties : sequence, or mapping of str, of array-like, `scipy.sparse`, `Blocks` or file, of shape (n_i, d)
        Rows of each party; a file is read by `fedpca_flwr.read`. The keys of a mapping are the names of the parties.
        The columns of data frames (pandas, Arrow, polars, AnnData) are matched by name, and the model keeps the names.
        Missing values are NaN; the method ``em`` accepts them. Methods for data split by columns take tables of shape
        (n, f_i), with other features of the same n rows.
    n_components : int, float or "auto"
        Number of components. Some methods also take the fraction of the variance that the components must exceed, or
        "auto": the components that stand out of the noise.
    engine : {"loopback", "ray"}
        "loopback" runs in this process. "ray" runs Flower's simulation in a pool of processes, which takes about ten
        seconds to start. Both give the same bits.
    progress : bool
        Show the progress of a run that takes more than a second, in a terminal, or in a notebook with ipywidgets.
    **options
        Options of the method and keys of the run, such as ``scale=True``; and keys of a site's policy, for every party
        (``min_rows``, ``secure_only``, ``allowed_methods``, ``max_reply_bytes``, ``min_parties``, ``may_show``).
        ``scores`` and ``loadings`` are lists with one path for each party. ``levels`` may be names of columns; their
        levels are then those that at least ``min_rows`` rows have.

    Returns
    -------
    PCAModel
        Model of the server; with ``blind=True`` the model of a party.

    Raises
    ------
    FedPCAError
        If the run fails; the class of the error is that of the strategy's or the party's error.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_flwr import run
    >>> rows = np.random.default_rng(0).standard_normal((300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> model = run("p-cov", [rows[:200], rows[200:280], rows[280:]], n_components=2)
    >>> model.components_.shape
    (2, 6)
    """
    name: Any = METHODS.name_of(method)
    engine_run, card = _engine(engine), _card(name)
    split = card.split
    options = {"n_components": n_components, "method": name, **options}
    values = {key.replace("_", "-"): v.item() if isinstance(v, np.generic) else v for key, v in options.items()}
    names = {x: values.get(x) for x in ("adjust-for", "numbers", "weights", "column-weights")}
    values |= {x: ", ".join(map(str, np.ravel(y))) for x, y in names.items() if isinstance(y, int | list | tuple)}
    with in_words_of_python():
        tables, notes = _encode_categories(read_parties(parties), values)
    site = _split_options(values, shares := parties_of(tables, split))
    gaps = [table.missing == len(table.rows) for table in shares.tables] if card.incomplete else []
    if any(absent := [*map(all, zip(*gaps, strict=False))]):  # of which the server knows only the numbers
        columns = columns_text(np.array(absent), shares.features)
        raise DataError(f"no party has a value of some columns: leave them out at every party; {columns}")
    shown = show_progress(name) if progress else nullcontext()
    with shown, limit_flower_log(logging.ERROR), _raise_only(), in_words_of_python():
        run_method = partial(_run_blind, engine_run) if values.get("blind") else engine_run
        if card.local_components == "personal":
            run_method = partial(_run_personal, engine_run)
        model = run_method(METHODS.run_config(values), shares, site)
    covariates, amounts = (open_log(model)["options"].get(key, "") for key in ("adjust-for", "numbers"))
    by_party = by_text(dict(zip(shares.keys, shares.rows, strict=True)) if shares.keys else shares.rows)
    suspects = split_at_commas(covariates) - split_at_commas(amounts)
    open_log(model)["notes"].extend(class_code_notes(by_party, shares.features, suspects))
    return model if values.get("features") else _with_notes(model, shares, notes, split)  # those are in an order


run.__signature__ = RunSignature.from_callable(run)  # type: ignore[attr-defined]


def _run_blind(engine_run: EngineRun, run_config: dict[str, Any], shares: Parties, site: dict[str, Any]) -> PCAModel:
    """Run a method whose server does not have the model, and return the model as the first party has written it."""
    with TemporaryDirectory() as folder:
        folders = [str(Path(folder, str(party))) for party in range(len(shares.rows))]
        engine_run(run_config, shares, {**site, "model": folders})
        (file,) = Path(folders[0]).iterdir()
        return PCAModel.load(file)


def _run_personal(engine_run: EngineRun, run_config: dict[str, Any], shares: Parties, site: dict[str, Any]) -> PCAModel:
    """Run a method whose parties have components of their own, and return the model with them, from their files."""
    with TemporaryDirectory() as folder:
        files = site.get("loadings") or [str(Path(folder, f"{party}.npz")) for party in range(len(shares.rows))]
        model = engine_run(run_config, shares, {**site, "loadings": files})
        by_party = zip(shares.keys or map("party {}".format, range(len(files))), files, strict=True)
        own = {name: Loadings.load(file).components for name, file in by_party if Path(file).exists()}
        return replace(model, own_components_=own)


def _with_notes(model: PCAModel, shares: Parties, notes: list[str], split: str) -> PCAModel:
    """Return the model, whose log gets the notes."""
    open_log(model)["notes"].extend([*shares.notes, *notes])
    if split == "columns":
        if model.log["options"].get("scale"):
            parties = shares.keys or range(len(shares.rows))
            for name, rows, labels in zip(parties, shares.rows, shares.names, strict=True):
                undivided = np.flatnonzero(prepare_columns(rows, scale=True).scale == 1.0)
                model.log["notes"].extend(f"party {name!r}: {note}" for note in undivided_notes(undivided, labels))
    else:
        names = () if model.feature_names_in_ is None else model.feature_names_in_.tolist()
        open_log(model)["notes"].extend(one_column_notes(np.asarray(model.components_), names))
    return model


def _card(method: Any) -> MethodCard:
    """Return the declaration of a method that is named by its text; raise ConfigError if there is none."""
    if not isinstance(method, str | None):
        expected = "expected a name such as 'p-cov', or a class: run(method, parties)"
        raise ConfigError(f"method is {value_text(method)}, {expected}")
    with in_words_of_python():
        return METHODS.parse_method(method or "(none)").strategy.card


def _encode_categories(parties: Any, values: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return tables with declared levels as indicators, and notes on levels; the levels in ``values`` become a text."""
    levels = values.get("levels")
    if not levels:
        return parties, []
    rules = {"min-rows": NodeConfig.model_fields["min_rows"], "round-rows": NodeConfig.model_fields["round_rows"]}
    min_rows, round_rows = (int(values.get(key, field.default)) for key, field in rules.items())
    tables_by_text = by_text(parties)
    if not isinstance(levels, Mapping) and str(levels).lstrip()[:1] != "{":  # columns: levels follow from the rows
        levels = levels_of_frames(tables_by_text, np.ravel(levels).tolist(), min_rows)
    values["levels"] = levels if isinstance(levels, str) else json.dumps(levels)
    levels_by_column = RunConfig.parse({"levels": values["levels"]}).levels_by_column
    tables = {x: encoded(rows, levels_by_column, x, min_rows, round_rows) for x, rows in tables_by_text.items()}
    notes, results = level_notes(tables, levels_by_column), list(tables.values())
    return dict(zip(parties, results, strict=True)) if isinstance(parties, Mapping) else results, notes


@contextmanager
def _raise_only() -> Iterator[None]:
    """Keep the parties' log off the screen inside a with statement, unless a caller has set logging up."""
    silent = logging.NullHandler()
    site_logger.addHandler(silent)
    try:
        yield
    finally:
        site_logger.removeHandler(silent)


def _engine(engine: Any) -> EngineRun:
    """Return the function that runs a method on the engine "loopback" or "ray"; raise ConfigError for another."""
    if not isinstance(engine, str) or engine not in ENGINES:
        raise ConfigError(f"engine is {value_text(engine)}, expected one of: {', '.join(ENGINES)}")
    if engine == "loopback":
        return on_loopback
    from fedpca_flwr.simulations.ray_engine import on_ray  # Ray is imported by those who use it

    return on_ray


def _split_options(values: dict[str, Any], shares: Parties) -> dict[str, Any]:
    """Move the sites' keys from the run's options into a dict, and set the number of clients, or raise ConfigError."""
    if "output" in values:
        raise ConfigError("'output' names a folder of `flwr run`; here the model is returned: run(...).save(path)")
    number = len(shares.rows)
    site = {key: values.pop(key) for key in POLICY if key in values}
    site |= {key: _paths(key, values.pop(key), number) for key in FILES if key in values}
    site |= {"name": shares.keys} if shares.keys else {}
    if not np.array_equal(values.setdefault("clients", number), number):
        raise ConfigError(f"'clients' is {value_text(values['clients'])}, but there are {number} parties; leave it out")
    return site


def _paths(key: str, paths: Sequence[str | os.PathLike[str]], parties: int) -> list[str]:
    """Return absolute paths, one for each party: their processes may have other folders; or raise ConfigError."""
    is_list = isinstance(paths, Sequence) and not isinstance(paths, str | bytes)
    if not is_list or len(paths) != parties or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ConfigError(f"'{key}' is {value_text(paths)}, expected a list of {parties} paths, one for each party")
    return [str(Path(path).expanduser().absolute()) for path in paths]
