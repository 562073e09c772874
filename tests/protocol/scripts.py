"""The questions that runs may ask, written down by hand: what the code says is held against this.

Of a method, or a way of one, that nobody has written down, they are those of its own script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strategies import METHODS, TRAVEL, script_of, transports_of

SECURE = {"secure-aggregation": True}
SURVIVING = {**SECURE, "survivors": 3}


@dataclass(frozen=True)
class Script:
    """A run-config, and how often each phase may be asked, in order.

    What is answered in the phases of ``constant`` is the same whatever the values of the rows.
    """

    run: Mapping[str, Any]
    times: Mapping[str, int]
    columns: bool = False
    noised: bool = False
    constant: Sequence[str] = ()

    def __str__(self) -> str:
        return " ".join(f"{value}" if key == "method" else f"{key}={value}" for key, value in self.run.items())

    @property
    def secure(self) -> bool:
        return "secure-aggregation" in self.run

    @property
    def transport(self) -> str:
        if not self.secure:
            return "clear"
        return "surviving" if "survivors" in self.run else "masked"

    @property
    def hidden(self) -> bool:
        """Whether what a party sends is masked or noised."""
        return self.secure or self.noised


def once(*phases: str) -> dict[str, int]:
    return dict.fromkeys(phases, 1)


AROUND = ("agree", "reveal")
OBSERVED = once("observed", "deviations")
DIRECTIONS = {"method": "dp-pca", "n-components": 2, "epsilon": 0.1}
DP = {**DIRECTIONS, "release": "two-stage", "clip": 400.0, "centre-clip": 400.0}
GRAPH = {"n-components": 2, "iterations": 3, "graph": "star"}
JOINT = {**DP, "release": "joint"}
OF_DIRECTIONS = ("octaves", "centre", "nearer_octaves", "nearer_centre", "directions", "variances")
LATER_SUMS = [
    step
    for phase in OF_DIRECTIONS[1:]
    for step in (f"{phase} keys", f"{phase} shares", phase, f"{phase} agree", f"{phase} reveal")
]
FACTORS = {"method": "em", "n-components": 2, "model": "factors"}
SUB_IT = {"method": "sub-it", "n-components": 2, "max-rounds": 3}
OF_GENOTYPES = {"n-components": 2, "genotypes": True}
PERSONAL = {"method": "personalised", "n-components": 2, "iterations": 2, "mu": 1.0}

VERTICAL = {"method": "vertical", "n-components": 2, "max-rounds": 3}
GRAM = {**VERTICAL, "solver": "gram"}
KERNEL = {"method": "vertical-kernel", "n-components": 2}
NEW_SCORES = {"method": "vertical-scores", "n-components": 2}
VFEDPCA = {"method": "vfedpca", "n-components": 2, "periods": 2}

SCRIPTS = [
    Script({"method": "p-cov", "n-components": 2}, once("moments", "project")),
    Script({"method": "p-cov", "n-components": 2, "outliers": "sites"}, once("moments", "project")),
    Script({"method": "p-cov", "n-components": 2, "adjust-for": "0"}, once("moments", "project")),
    Script(
        {"method": "p-cov", "n-components": 2, "harmonise": "variances", **SECURE},
        once("keys", "sums", "deviations", "scatter", "harmonised", "project"),
    ),
    Script({"method": "p-cov", "n-components": 2, **SECURE}, once("keys", "sums", "deviations", "scatter", "project")),
    Script(
        {"method": "p-cov", "n-components": 2, **SURVIVING}, once("keys", "shares", "uncentred", *AROUND, "project")
    ),
    Script({"method": "ap-cov", "n-components": 2}, once("moments", "project")),
    Script({"method": "ap-cov", "n-components": 2, **SECURE}, once("keys", "sums", "deviations", "scatter", "project")),
    Script(
        {"method": "ap-cov", "n-components": 2, **SURVIVING}, once("keys", "shares", "uncentred", *AROUND, "project")
    ),
    Script(SUB_IT, {"start": 1, "product": 2, "project": 1}),
    Script({**SUB_IT, "scale": True}, {"heads": 1, "product": 3, "project": 1}),
    Script({**SUB_IT, **SECURE}, {**once("keys", "sums", "deviations"), "product": 3, "project": 1}),
    Script({**SUB_IT, "warm-start": "svd"}, {"sketch": 1, "refine": 3, "project": 1}),
    Script({**SUB_IT, "warm-start": "svd", "wire": "float32"}, {"sketch": 1, "refine": 3, "project": 1}),
    Script({"method": "qr-pca", "n-components": 2}, once("factor", "project")),
    Script({"method": "qr-pca", "n-components": 2, "rank": 3}, once("truncated", "project")),
    Script({**OF_GENOTYPES, "method": "p-cov"}, once("alleles", "moments", "project")),
    Script({**OF_GENOTYPES, "method": "p-cov", **SECURE}, once("keys", "alleles", "scatter", "project")),
    Script({**OF_GENOTYPES, **SUB_IT}, {"alleles": 1, "start": 1, "product": 2, "project": 1}),
    Script({**OF_GENOTYPES, **SUB_IT, **SECURE}, {**once("keys", "alleles"), "product": 3, "project": 1}),
    Script({**OF_GENOTYPES, "method": "qr-pca"}, once("alleles", "factor", "project")),
    Script({"method": "ap-stack", "n-components": 2}, once("truncated", "project")),
    Script({"method": "compressed", "n-components": 2}, once("encoded", "project")),
    Script(
        {"method": "compressed", "n-components": 2, "codec": "shared-step", "corrections": 1},
        once("scale", "encoded", "correction", "project"),
    ),
    Script(
        {"method": "compressed", "n-components": 2, "codec": "low-rank", "corrections": 1},
        once("encoded", "correction", "project"),
    ),
    Script(
        {"method": "compressed", "n-components": 2, "corrections": 2, **SECURE},
        {**once("keys", "sums", "deviations", "scatter"), "correction": 2, "project": 1},
    ),
    Script({"method": "adaptive", "n-components": 2}, once("survey")),
    Script({**OF_GENOTYPES, "method": "adaptive"}, once("alleles", "survey")),
    Script({"method": "em", "n-components": 2, "max-rounds": 3}, {**OBSERVED, "expected": 3, "project": 1}),
    Script(
        {"method": "em", "n-components": 2, "max-rounds": 3, **SECURE},
        {**once("keys"), **OBSERVED, "expected": 3, "project": 1},
    ),
    Script({**FACTORS, "max-rounds": 3}, {**OBSERVED, "products": 3, "project": 1}),
    Script({**FACTORS, "max-rounds": 3, **SECURE}, {**once("keys"), **OBSERVED, "products": 3, "project": 1}),
    Script(PERSONAL, {"start": 1, "product": 30, "share": 2, "report": 1, "project": 1}),
    Script(
        {**PERSONAL, "mu": "held-out"},
        {
            "held-out start": 1,
            "held-out product": 30,
            "held-out share": 2,
            **once("choose", "start"),
            "product": 30,
            "share": 2,
            **once("report", "project"),
        },
    ),
    Script(
        {**PERSONAL, **SECURE},
        {**once("keys", "sums", "deviations"), "product": 30, "share": 2, **once("report", "project")},
    ),
    Script({"method": "streaming", "n-components": 2, "state": "x"}, once("digest", "moments", "project")),
    Script(
        {"method": "streaming", "n-components": 2, "state": "x", **SECURE},
        once("members", "keys", "sums", "deviations", "scatter", "project"),
    ),
    Script(DIRECTIONS, once(*OF_DIRECTIONS, "project"), noised=True, constant=["project"]),
    Script({**DIRECTIONS, **SECURE}, once("keys", *OF_DIRECTIONS, "project"), noised=True, constant=["project"]),
    Script(
        {**DIRECTIONS, **SURVIVING},
        once("keys", "shares", "octaves", *AROUND, *LATER_SUMS, "project"),
        noised=True,
        constant=["project"],
    ),
    Script(DP, once("centre", "products", "project"), noised=True, constant=["project"]),
    Script(JOINT, once("joint", "project"), noised=True, constant=["project"]),
    Script({**DP, **SECURE}, once("keys", "centre", "products", "project"), noised=True, constant=["project"]),
    Script(
        {**JOINT, **SURVIVING}, once("keys", "shares", "joint", *AROUND, "project"), noised=True, constant=["project"]
    ),
    Script({**GRAPH, "method": "dsa"}, once("head", "heads", "start") | {"step": 2} | once("report", "project")),
    Script({**GRAPH, "method": "fast-pca"}, once("head", "heads", "start") | {"step": 2} | once("report", "project")),
    Script(
        {**GRAPH, "method": "dsa", "graph": "complete", "iterations": 1}, once("head", "start", "report", "project")
    ),
    Script({"method": "sapca", "n-components": 2}, once("summary", "project")),
    Script({"method": "sapca", "n-components": 2, "topology": "tree"}, once("summary", "merged", "project")),
    *(
        Script(run, times, columns=True)
        for run, times in (
            (VERTICAL, {"rows": 1, "product": 3, "project": 1}),
            (GRAM, once("rows", "gram", "project")),
            ({**VERTICAL, "solver": "merge"}, once("rows", "merge", "energies", "project")),
            (KERNEL, once("rows", "distances", "project")),
            ({**KERNEL, "kernel": "linear"}, once("rows", "products", "project")),
            (NEW_SCORES, once("rows", "scores", "project")),
            (VFEDPCA, {**once("rows", "start"), "local": 3, **once("energies", "project")}),
            (
                {**VFEDPCA, "graph": "ring"},
                {**once("rows", "start"), "local": 3, **once("report", "energies", "project")},
            ),
            ({"method": "vfedakpca", "n-components": 1}, once("rows", "start", "energies", "project")),
        )
    ),
    *(
        Script({**run, **SECURE}, times, columns=True, constant=constant)
        for run, times, constant in (
            (VERTICAL, {**once("rows", "keys", "energy"), "product": 3, "project": 1}, ["rows"]),
            (GRAM, once("rows", "keys", "energy", "gram", "project"), ["rows"]),
            (KERNEL, once("rows", "keys", "energy", "spread", "distances", "project"), ["rows", "project"]),
            (
                {**KERNEL, "gamma": 0.1, "landmarks": 4},
                once("rows", "keys", "energy", "landmarks", "project"),
                ["rows", "project"],
            ),
            (NEW_SCORES, once("rows", "keys", "energy", "scores", "project"), ["rows", "project"]),
        )
    ),
]


def of_the_card(method: str, way: str) -> Script:
    """What a method itself says that a run with its card's first example may ask, of few parties."""
    card = METHODS[method].strategy.card
    travel = {"clear": {}, "masked": SECURE, "surviving": SURVIVING}[way]
    own = {"n-components": 2, **card.examples[0]}
    phases = script_of(METHODS[method], TRAVEL[way], own) or {}
    return Script(
        {"method": method, **own, **travel},
        {name: phase.times for name, phase in phases.items() if not callable(phase.times)},
        columns=card.split == "columns",
        noised=card.differentially_private,
    )


_WRITTEN = {(script.run["method"], script.transport) for script in SCRIPTS}
_WAYS = [(name, way) for name, method in METHODS.items() for way in transports_of(method)]
SCRIPTS += [of_the_card(*way) for way in _WAYS if way not in _WRITTEN]
