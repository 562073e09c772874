"""Arguments of a comparison: lists of allowed values, and the setting of each run. Faults are found before a run."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import DATASETS, OPENML_PREFIX
from fedpca_flwr.data.partition import PARTITIONS, WITH_ALPHA
from fedpca_flwr.errors import ConfigError, FedPCAError, combine_errors, value_text
from fedpca_flwr.simulations import ENGINES, sources
from fedpca_flwr.simulations.measuring import pool_key, pooled_reference
from fedpca_flwr.simulations.records import Record, card_of, parse_method
from fedpca_flwr.strategies import METHODS

BUILT_IN = {"digits", "breast-cancer", "wine", "synthetic"}  # data sets that no folder is needed for


def list_values(argument: Any) -> list[Any]:
    """Return the values of an argument as a list, each once, in order; a text, a number or a class is a list of one."""
    is_list = isinstance(argument, Iterable) and not isinstance(argument, str | bytes | type)
    values = list(argument) if is_list else [argument]
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    return [value for place, value in enumerate(values) if value not in values[:place]]


def check_arguments(arguments: Mapping[str, Any], n_components: Any, engine: Any) -> dict[str, list[Any]]:
    """Return the ``arguments`` of a comparison as lists by name; raise ConfigError with a line for each wrong value.

    Methods become texts, and ``"all"`` every method.
    """
    lists = {key: list_values(value) for key, value in arguments.items() if value is not None}
    lists.setdefault("methods", [None])
    empty = [key for key, values in lists.items() if not values]
    faults = [f"comparison: '{key}' is empty, expected at least one value" for key in empty]
    texts: list[str] = []
    for method in lists["methods"]:
        try:
            texts += METHODS if method == "all" else [_method_text(method)]
        except ConfigError as error:
            faults += str(error).replace("run-config: 'method' is", "comparison: 'methods' has").splitlines()
    faults += _name_faults("datasets", lists.get("datasets", []), DATASETS, OPENML_PREFIX)
    faults += _name_faults("partitions", lists.get("partitions", []), PARTITIONS)
    faults += _uncountable("clients", lists["clients"]) + _uncountable("n_components", [n_components])
    faults += _name_faults("engine", [engine], ENGINES)
    for name in ("alpha", "seed", "bound"):
        for value in lists[f"{name}s"]:
            try:
                RunConfig.parse({name: value}, source="comparison")
            except ConfigError as error:
                faults.append(str(error).replace(f"'{name}'", f"'{name}s'"))
    if faults:
        raise ConfigError("\n".join(faults))
    return {**lists, "methods": list(dict.fromkeys(texts))}


def _method_text(method: Any) -> str:
    """Return the text of a method or of a class; raise ConfigError for options that are not allowed."""
    name = METHODS.name_of(method)
    if not isinstance(name, str):
        raise ConfigError(f"comparison: 'methods' has {value_text(name)}, expected names such as 'p-cov', or classes")
    parse_method(name)
    return name


def _name_faults(key: str, values: Sequence[Any], names: Iterable[str], prefix: str = "") -> list[str]:
    """Return, in a list, a line on values that are no names, nor begin with ``prefix``, with the nearest names."""
    choices = list(names)
    texts = [value for value in values if isinstance(value, str)]
    allowed = {text for text in texts if text in choices or (prefix and text.startswith(prefix))}
    wrong = [value for value in values if not isinstance(value, str) or value not in allowed]
    if not wrong:
        return []
    near = [match for value in wrong for match in difflib.get_close_matches(str(value)[:64], choices, n=1, cutoff=0.5)]
    hint = f"; did you mean {', '.join(map(repr, dict.fromkeys(near)))}?" if near else ""
    expected = ", ".join([*choices, *([f"{prefix}NAME"] if prefix else [])])
    return [f"comparison: '{key}' is {', '.join(map(value_text, wrong))}, expected one of: {expected}{hint}"]


def _uncountable(key: str, values: Sequence[Any]) -> list[str]:
    """Return a line, in a list, on the values that are no whole numbers from 1; [] without such values."""
    wrong = [value for value in values if not isinstance(value, int) or isinstance(value, bool) or value < 1]
    expected = "expected a whole number from 1" if key == "n_components" else "expected whole numbers from 1"
    return [f"comparison: '{key}' is {', '.join(map(value_text, wrong))}, {expected}"] if wrong else []


def check_data(runs: Sequence[Record]) -> None:
    """Load the data of runs, or raise a FedPCAError with the faults of all, such as too few rows for the clients."""
    errors: dict[str, FedPCAError] = {}
    for key in dict.fromkeys(map(pool_key, runs)):
        of_pool = [run for run in runs if pool_key(run) == key]
        try:
            source, _ = pooled_reference(*key)
            rows = len(source.labels)
            by_rows = {run["clients"] for run in of_pool if card_of(run["method"]).split == "rows"}
            if wrong := [str(clients) for clients in sorted(by_rows) if clients > rows]:
                expected = f"expected at most the {rows} rows of {key[0]}"
                raise ConfigError(f"comparison: 'clients' is {', '.join(wrong)}, {expected}")
        except FedPCAError as error:
            text = str(error) if key[0] in str(error) else f"data set '{key[0]}': {error}"
            errors.setdefault(text, type(error)(text, local=error.local))
    if errors:
        raise combine_errors(list(errors.values()))


def settings(
    places: Mapping[str, str], lists: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> Iterator[Record]:
    """Yield the setting of every combination of data set, partition, number of clients, bound, method and seed.

    ``places`` has each data set's folder or files; a partition without alpha has the alpha None.
    """
    splits = [(p, a) for p in lists["partitions"] for a in (lists["alphas"] if p in WITH_ALPHA else [None])]
    varied = (lists[key] for key in ("clients", "bounds", "methods", "seeds"))
    for dataset, (partition, alpha), clients, bound, method, seed in itertools.product(places, splits, *varied):
        name, options = parse_method(method)
        alpha, source = alpha and float(alpha), {"dataset": dataset, "data root": places[dataset]}
        setting = {"partition": partition, "alpha": alpha, "clients": clients, "bound": float(bound), "seed": seed}
        yield {"method": name, "options": options, **source, **setting, **common}


def place_data(datasets: Sequence[str], data_root: str | Path) -> dict[str, str]:
    """Return the absolute folder of each data set by name; "." for data sets that need none."""
    return {name: "." if name in BUILT_IN else str(Path(data_root).resolve()) for name in datasets}


def place_parties(parties: Any, others: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """Return the files of parties' tables by data set, and their number; ConfigError if any of ``others`` is set."""
    if refused := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"comparison: the parties have rows of their own; leave out {', '.join(map(repr, refused))}")
    if isinstance(parties, str):
        raise ConfigError(
            f"comparison: 'parties' is {value_text(parties)}, expected tables, or a list of files; a data set is named "
            f"as datasets=[{value_text(parties)}]"
        )
    are_files = isinstance(parties, list | tuple) and all(isinstance(path, str | os.PathLike) for path in parties)
    files = sources.files_of(parties) if are_files else []
    name = sources.hand_over(files or parties)
    return {name: os.pathsep.join(files) or "."}, len(np.unique(sources.HELD_TABLES[name][0].labels))


def place_table(table: Any, label: Any, partitions: Any, others: Mapping[str, Any]) -> tuple[dict[str, str], Any]:
    """Store a table; return its name and the partitions; ConfigError for ``others``, no table, or missing labels."""
    if refused := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"comparison: 'table' is given; leave out {', '.join(map(repr, refused))}")
    if table is None:
        raise ConfigError("comparison: 'label' is given, but no 'table' that has the labels")
    partitions = partitions or ("iid" if label is None else "dirichlet")
    if label is None and (needy := {"dirichlet", "shards"} & set(map(str, list_values(partitions)))):
        raise ConfigError(
            f"comparison: 'partitions' has {', '.join(sorted(needy))}, by labels of the rows: give 'label', a column "
            "of the table or a list of all rows' labels, or take 'iid' or 'quantity'"
        )
    return {sources.hand_over_table(table, label): "."}, partitions
