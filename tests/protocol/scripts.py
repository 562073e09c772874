"""Questions that runs may ask, written by hand; tests compare the code with this table.

For a method, or a transport of a method, that is not in the table, the method's own script stands in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none, transports_of

MASKED: dict[str, Any] = {"secure-aggregation": True}
WAYS: dict[str, dict[str, Any]] = {"clear": {}, "masked": MASKED, "surviving": {**MASKED, "survivors": 3}}


@dataclass(frozen=True)
class Script:
    """Run-config, and how often each phase may be asked; answers of ``constant`` phases do not depend on the rows."""

    run: Mapping[str, Any]
    times: Mapping[str, int]
    way: str
    constant: Sequence[str] = ()

    def __str__(self) -> str:
        return " ".join(f"{value}" if key == "method" else f"{key}={value}" for key, value in self.run.items())

    @property
    def card(self) -> MethodCard:
        return METHODS[self.run["method"]].strategy.card

    @property
    def columns(self) -> bool:
        return self.card.split == "columns"

    @property
    def secure(self) -> bool:
        return self.way != "clear"

    @property
    def hidden(self) -> bool:
        return self.secure or self.card.differentially_private


WRITTEN = """
p-cov | p-cov outliers=sites | p-cov adjust-for='0' | ap-cov: moments, project
p-cov clusters=2: moments, cells *100, project
p-cov clusters=2 clustering=harmony: moments, mixed *210, project
p-cov clusters=2 clustering=harmony masked: keys, moments, digits, mixed *210, project
p-cov clusters=2 clustering=mixture masked: keys, moments, digits, cells *100, shares *100, project
p-cov harmonise=variances masked: keys, moments, digits, harmonised, project
p-cov masked | ap-cov masked: keys, moments, digits, project
p-cov surviving | ap-cov surviving: keys, shares, moments, agree, reveal, project
sub-it max-rounds=3: start, product *2, project
sub-it max-rounds=3 scale=True: heads, product *3, project
sub-it max-rounds=3 masked: keys, sums, product *3, finer_product *3, project
sub-it max-rounds=3 warm-start=svd | sub-it max-rounds=3 warm-start=svd wire=float32: sketch, refine *3, project
qr-pca: factor, project
qr-pca rank=3 | ap-stack: truncated, project
p-cov genotypes=True: alleles, moments, project
p-cov genotypes=True masked: keys, alleles, moments, digits, project
sub-it genotypes=True max-rounds=3: alleles, start, product *2, project
sub-it genotypes=True max-rounds=3 masked: keys, alleles, product *3, finer_product *3, project
qr-pca genotypes=True: alleles, factor, project
qr-pca genotypes=True prune=0.2: alleles, neighbours, factor, project
sub-it genotypes=True prune=0.2 max-rounds=3 masked: keys, alleles, neighbours, product *3, finer_product *3, project
compressed: encoded, project
compressed codec=shared-step corrections=1: scale, encoded, correction, project
compressed codec=low-rank corrections=1: encoded, correction, project
compressed corrections=2 masked: keys, sums, scatter, correction *2, project
adaptive: survey
adaptive genotypes=True: alleles, survey
adaptive rule=divergences: moments, project
em max-rounds=3: observed, deviations, expected *3, project
em max-rounds=3 masked: keys, observed, deviations, expected *3, project
em model=factors max-rounds=3: observed, deviations, products *3, project
em model=factors max-rounds=3 masked: keys, observed, deviations, products *3, project
personalised iterations=2 mu=1.0: start, product *30, share *2, report, project
personalised iterations=2 mu=held-out: held-out start, held-out product *30, held-out share *2, choose, start, product
    *30, share *2, report, project
personalised iterations=2 mu=1.0 masked: keys, sums, product *30, share *2, report, project
personalised iterations=2 variant=paper: start, share *2, report, project
streaming state=x: digest, moments, project
streaming state=x masked: members, keys, moments, digits, project
dp-pca epsilon=0.1: octaves, centre, nearer_octaves, nearer_centre, directions, variances, project!
dp-pca epsilon=0.1 masked: keys, octaves, centre, nearer_octaves, nearer_centre, directions, variances, project!
dp-pca epsilon=0.1 surviving: keys, shares, octaves, agree, reveal, centre keys, centre shares, centre, centre agree,
    centre reveal, nearer_octaves keys, nearer_octaves shares, nearer_octaves, nearer_octaves agree, nearer_octaves
    reveal, nearer_centre keys, nearer_centre shares, nearer_centre, nearer_centre agree, nearer_centre reveal,
    directions keys, directions shares, directions, directions agree, directions reveal, variances keys, variances
    shares, variances, variances agree, variances reveal, project!
dp-pca epsilon=0.1 release=joint clip=400.0: joint, project!
dp-pca epsilon=0.1 release=joint clip=400.0 masked: keys, joint, project!
dp-pca epsilon=0.1 release=joint clip=400.0 surviving: keys, shares, joint, agree, reveal, project!
robust max-rounds=3: start, median *3, signs, scores, shape, shape_scores, survivors, nearer_scores, nearer_shape,
    nearer_shape_scores, nearer_survivors, variances, errors, project!
robust max-rounds=3 masked: keys, start, median *3, signs, scores, shape, shape_scores, survivors, nearer_scores,
    nearer_shape, nearer_shape_scores, nearer_survivors, variances, errors, project!
dsa iterations=3 graph=star | fast-pca iterations=3 graph=star: head, heads, start, step *2, report, energies, project
dsa iterations=1 graph=complete: head, start, report, energies, project
spca | sapca: summary, project
spca topology=tree | sapca topology=tree: summary, merged, project
vertical max-rounds=3: rows, product *3, project
vertical max-rounds=3 solver=gram: rows, gram, project
vertical max-rounds=3 solver=merge: rows, merge, energies, project
vertical-scores: rows, scores, project
vfedpca periods=2: rows, start, local *3, energies, project
vfedpca periods=2 graph=ring: rows, start, local *3, report, energies, project
vfedakpca n-components=1: rows, start, energies, project
vertical max-rounds=3 masked: rows!, keys, energy, product *3, finer_product *3, project
vertical max-rounds=3 solver=gram masked: rows!, keys, energy, gram, finer_gram, project
vertical-scores masked: rows!, keys, energy, scores, finer_scores, project!
"""
"""A method with its options, of two components where it does not say so; how its answers travel; and what it may ask.

``|`` is between runs that ask the same, ``*3`` is how often, and ``!`` marks an answer that is constant.
"""


def parse_line(line: str) -> list[Script]:
    runs_text, _, phases_text = re.sub(r"\s+", " ", line).partition(": ")
    entries = re.findall(r"([^,!*]+?)(!?)(?: \*(\d+))?(?:, |$)", phases_text)
    times = {name: int(number or 1) for name, _, number in entries}
    scripts = []
    for method, *words in map(str.split, runs_text.split(" | ")):
        way = words.pop() if words and words[-1] in WAYS else "clear"
        options = {key: yaml.safe_load(text) for key, _, text in (word.partition("=") for word in words)}
        run = {"method": method, "n-components": 2, **options, **WAYS[way]}
        scripts.append(Script(run, times, way, [name for name, mark, _ in entries if mark]))
    return scripts


def script_of_card(method: str, way: str) -> Script:
    """Return the script of a run of few parties with the first example of the method's card."""
    options = {"n-components": 2, **METHODS[method].strategy.card.examples[0]}
    script = script_or_none(METHODS[method], EXAMPLE_CONFIGS[way], options) or {}
    times = {name: question.times for name, question in script.items() if not callable(question.times)}
    return Script({"method": method, **options, **WAYS[way]}, times, way)


SCRIPTS = [script for line in re.split(r"\n(?! )", WRITTEN.strip()) for script in parse_line(line)]
_PAIRS = {(name, way): None for name, method in METHODS.items() for way in transports_of(method)}
SCRIPTS += [script_of_card(*way) for way in _PAIRS if way not in {(item.run["method"], item.way) for item in SCRIPTS}]
