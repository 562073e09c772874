"""Means over the seeds of a comparison, with 95 % intervals, and curves of these over alpha or the number of clients.

Runs that differ in their seed alone are taken for independent draws, so that an interval is ``mean ± t(0.975, n - 1) s
/ sqrt(n)`` for n runs with the standard deviation s (Student 1908).
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.simulations.records import HEADS, SETTING, Record, method_text, note_kind, run_identity

# what results are drawn over, and labels of the axes
AXES = {"alpha": "alpha", "clients": "number of clients", "methods": "method", "MB up": "MB up per client"}
MAX_PANELS = 9  # number of panels that a figure has at most

SEEDS_NOTE = (
    "Results of several seeds are means with 95 % intervals of the mean (Student's t). A result without an interval "
    "is the same for all seeds, in all digits that are shown."
)

# position, mean and half of the interval, by method, by the title of a panel
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]]


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and half the width of its 95 % interval by Student's t; None for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))


def average_seeds(records: Iterable[Record]) -> list[Record]:
    """Return a record for each method and setting, with means over the seeds where there are several.

    A record of several runs has ``seeds``, ``intervals`` (half widths by key), the ``largest angle``, notes, and
    ``failures``, errors by seed; and an ``error`` if all failed.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(run_identity({**record, "seed": None}), []).append(record)
    return [runs[0] if len(runs) == 1 else _average(runs) for runs in groups.values()]


def _average(runs: Sequence[Record]) -> Record:
    """Return the record (`average_seeds`) of several runs that differ in their seed."""
    seeds = [run["seed"] for run in runs]
    failures = {run["seed"]: run["error"] for run in runs if "error" in run}
    completed = [run for run in runs if "error" not in run]
    if not completed:
        return {**runs[0], "seeds": seeds, "failures": failures}
    means: Record = {}
    intervals: dict[str, float] = {}
    for key in HEADS:
        values = [run[key] for run in completed if run.get(key) is not None]
        if values:
            mean, half_width = interval(values)
            means[key] = mean if half_width else values[0]
            intervals |= {key: half_width} if half_width else {}
    angles = [run["max angle"] for run in completed if run["max angle"] is not None]
    measured = [run["measured"] for run in completed]
    notes, total = [run.get("notes", []) for run in completed], len(completed)
    equal = set.intersection(*map(set, notes))
    counts = Counter(text for texts in notes for text in {t if t in equal else note_kind(t): t for t in texts})
    shared = set.intersection(*(set(values) for values in measured))
    return {
        **completed[0],
        **means,
        "seeds": seeds,
        "intervals": intervals,
        "failures": failures,
        "largest angle": max(angles, default=None),
        "exact": all(run["exact"] for run in completed),
        "measured": {key: statistics.fmean(values[key] for values in measured) for key in measured[0] if key in shared},
        "notes": [note if count == total else f"{count} of {total} runs ({note})" for note, count in counts.items()],
    }


def count_runs(record: Record) -> int:
    """Return the number of runs with results, 0 if all failed, that a record, perhaps of `average_seeds`, is of."""
    if "seeds" not in record:
        return int("error" not in record)
    return len(record["seeds"]) - len(record["failures"])


def runs_text(record: Record) -> str:
    """Return the number of a record's runs with results, such as "5", or "4 of 5" if one failed."""
    count, total = count_runs(record), len(record.get("seeds", [record["seed"]]))
    return str(count) if count == total else f"{count} of {total}"


def failure_texts(record: Record) -> list[str]:
    """Return a text with seeds for each error in a record of several runs; none if all runs failed."""
    by_error: dict[str, list[str]] = {}
    for seed, error in ({} if "error" in record else record.get("failures", {})).items():
        by_error.setdefault(error, []).append(str(seed))
    return [f"seed{'s'[: len(seeds) - 1]} {', '.join(seeds)} failed: {error}" for error, seeds in by_error.items()]


def axes_with_values(records: Sequence[Record]) -> list[str]:
    """Return the keys "alpha" and "clients" of which some otherwise equal settings have several values."""
    axes = []
    for over in ("alpha", "clients"):
        values: dict[str, set[float]] = {}
        for record in records:
            if record[over] is not None and "error" not in record:
                panel = json.dumps([record[key] for key in SETTING if key not in (over, "seed")])
                values.setdefault(panel, set()).add(record[over])
        if any(len(positions) > 1 for positions in values.values()):
            axes.append(over)
    return axes


def curves(records: Sequence[Record], over: str, result: str) -> Curves:
    """Return position, mean and half interval (0 for one run) of a result along an axis, by method and panel title.

    What else differs has a panel, or over the methods a line, of its own. Over MB up all is in one panel. Raise
    ConfigError without such values.
    """
    if over not in AXES:
        raise ConfigError(f"'over' is {value_text(over)}, expected one of: {', '.join(AXES)}")
    if result not in (results := ["max angle"] if over == "MB up" else HEADS):
        raise ConfigError(f"'result' is {value_text(result)}, expected one of: {', '.join(results)}")
    if (several := over in ("alpha", "clients")) and over not in axes_with_values(records):
        values = sorted({record[over] for record in records if record[over] is not None})
        text = ", ".join(map(str, values)) or "nowhere"
        raise ConfigError(f"the runs have {over} {text}; compare several values of it, or take over='methods'")
    panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    names = methods_with(records, result)
    means = [{**record, "methods": names.index(method_text(record))} for record in _with(records, result)]
    averaged = [record for record in means if record[over] is not None]
    differing = [key for key in SETTING if key != over and len({record[key] for record in averaged}) > 1]
    for record in averaged:
        title = ", ".join(filter(None, (value_words(record, key) for key in differing if key != "seed")))
        point = (record[over], record[result], record.get("intervals", {}).get(result, 0.0))
        panel, line = (title if several else "", title if over == "methods" else method_text(record))
        panels.setdefault(panel, {}).setdefault(line, []).append(point)
    return {
        title: {name: sorted(points) for name, points in lines.items()}
        for title, lines in panels.items()
        if not several or len({point[0] for points in lines.values() for point in points}) > 1
    }


def methods_with(records: Sequence[Record], result: str) -> list[str]:
    """Return the methods that have a result, each once, or raise ConfigError if none has."""
    if names := list(dict.fromkeys(map(method_text, _with(records, result)))):
        return names
    raise ConfigError(f"no run has the result {value_text(result)}; take another, such as 'captured variance'")


def _with(records: Sequence[Record], result: str) -> list[Record]:
    """Return the means over seeds that have a result."""
    return [record for record in average_seeds(records) if record.get(result) is not None]


def value_words(record: Record, key: str) -> str:
    """Return the words for a value of a setting in a panel's title; empty for an alpha that is None."""
    value: Any = record[key]
    if key == "alpha":
        return f"alpha {value:.12g}" if value else ""
    if key == "bound":
        return f"secure, bound {value:g}" if value else "in clear"
    return f"{value} {key}" if key in ("clients", "components") else str(value)
