"""Runs of every combination of methods, data sets, partitions and numbers of clients, each once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.figures import markdown
from fedpca_flwr.packages import strategies
from fedpca_flwr.state.files import writable

from .measuring import measured
from .progress import with_a_bar
from .records import HEADS, Record, append, card_of, columns_of, identity, named, parsed, read, shown

BUILT_IN = {"digits", "breast-cancer", "wine", "synthetic"}
"""Data sets that are not read from a folder."""

SPREAD = {"dirichlet", "quantity"}
"""Partitions that have an alpha."""


def settings(
    methods: Sequence[str],
    datasets: Sequence[str],
    partitions: Sequence[str],
    alphas: Sequence[float],
    clients: Sequence[int],
) -> Iterator[Record]:
    """Every combination; a partition without alpha occurs once, and ``"all"`` is every method."""
    everything = [name for name in strategies.METHODS if not card_of(name).after]  # what computes components
    methods = [name for method in methods for name in (everything if method == "all" else [method])]
    ways = [(p, a) for p in partitions for a in (alphas if p in SPREAD else [None])]
    for dataset, (partition, alpha), number, method in itertools.product(datasets, ways, clients, methods):
        name, options = parsed(method)
        where = {"dataset": dataset, "partition": partition, "alpha": alpha, "clients": number}
        yield {"method": name, "options": options, **where}


def compare(
    methods: Sequence[str],
    *,
    datasets: Sequence[str] = ("digits",),
    data_root: str = ".",
    partitions: Sequence[str] = ("dirichlet",),
    alphas: Sequence[float] = (0.1,),
    clients: Sequence[int] = (10,),
    components: int = 10,
    seed: int = 42,
    engine: str = "loopback",
    knn: bool = False,
    bound: float = 0.0,
    output: str | Path | None = None,
) -> list[Record]:
    """Run every combination and return one record each, those included that ``output`` holds already.

    Parameters
    ----------
    methods : sequence of str
        Names, each with its options: ``"sub-it block-size=10"``; ``"all"`` is every method.
    datasets, partitions : sequence of str
    data_root : str
    alphas : sequence of float
        For ``dirichlet`` and ``quantity``.
    clients : sequence of int
    components, seed : int
    engine : {"loopback", "ray"}
    knn : bool
        Also the accuracy of k-NN(5) on the data set's test rows, where it has some.
    bound : float
        Above 0: with secure aggregation, and this bound on the size of a value.
    output : path, optional
        A folder for ``runs.jsonl``, to which each run is added as it ends, and for its model.

    Returns
    -------
    list of dict
        A run that failed has ``error`` instead of results.
    """
    common = {"components": components, "seed": seed, "engine": engine, "knn": knn, "bound": bound}
    places = {name: "." if name in BUILT_IN else str(Path(data_root).resolve()) for name in datasets}
    for checked in ({"seed": seed, "bound": bound}, *({"alpha": alpha} for alpha in alphas)):
        RunConfig.parse(checked, source="comparison")
    if none := [str(number) for number in clients if number < 1]:
        raise ConfigError(f"comparison: 'clients' is {', '.join(none)}, expected whole numbers from 1")
    every = settings(methods, datasets, partitions, alphas, clients)
    wanted = [{**one, **common, "data root": places[one["dataset"]]} for one in every]
    folder = writable(Path(output).expanduser()) if output else None
    known = {identity(record): record for record in read(folder)} if folder else {}
    bar = with_a_bar(wanted, lambda one: f"{named(one)} on {one['dataset']}, {one['clients']} clients")
    return [known.get(identity(one)) or _recorded(one, folder) for one in bar]


def _recorded(one: Record, folder: Path | None) -> Record:
    """Run a method: its record, which stands in the folder where the run did not fail."""
    try:
        record = {**one, **measured(one, folder)}
    except FedPCAError as error:
        return {**one, "error": f"{type(error).__name__}: {error}"}
    if folder:
        append(folder, record)
    return record


def table(records: Iterable[Record]) -> str:
    """The results as Markdown, in the columns of the report."""
    records = list(records)
    columns = columns_of(records)
    lines = []
    for r in records:
        where = r["partition"] + (f" {r['alpha']:g}" if r["alpha"] is not None else "")
        error = [r["error"].replace("\n", " "), *[""] * (len(columns) - 1)] if "error" in r else None
        results = error or [shown(r, key) for key in columns]
        lines.append([r["dataset"], where, str(r["clients"]), named(r), *results])
    return markdown.table(["data", "partition", "clients", "method", *(HEADS[key] for key in columns)], lines)


def reported(output: str, records: list[Record]) -> str:
    """Write the report of all runs in the folder, and of those that failed just now."""
    if find_spec("matplotlib") is None:  # an extra
        return "no report: it needs matplotlib (pip install '.[plots]' in the repository)"
    from .report_page import write_report

    folder = Path(output).expanduser()
    return f"report: {write_report(folder, read(folder) + [r for r in records if 'error' in r])}"
