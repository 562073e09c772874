"""Genotypes (option ``genotypes``): allele counts of all rows first, then the method on standardised genotypes.

The stage puts a question for counts before the method's script and the allele frequencies into its first request, and
from then on a party's ``data`` are standardised. Genotypes are no value of ``scale``, which means the pooled deviation:
that of genotypes among relatives or a mixture of peoples is not ``sqrt(2p(1 - p))``, and a missing call needs p first.

The counts are integers, so that masked sums open exactly. They give the mean (zero) and the scatter's diagonal too:
where only sums are shown the sum that `sub-it` needs for these is left out, and `bound` is not needed: it is 2.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import columns_text
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.genetics import GenotypeOptions, Genotypes, genotypes, pruning
from fedpca_flwr.genetics.calls import StandardisedCalls
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import (
    SERVER,
    Program,
    Public,
    Question,
    Questions,
    Round,
    SumLimits,
    SumRound,
    Total,
    by_transport,
)
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.protocol.transport import relay
from fedpca_flwr.questions.pooling import COUNT, Fitting
from fedpca_flwr.questions.row_limits import MAX_ROWS, PooledCentre, read_row_count
from fedpca_flwr.questions.rows_client import Projection, RowsClient, RowsStage
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rules.policy import permit_calls

FREQUENCIES = Field("frequencies", ("d",), kind="size", optional=True, constant="frequencies")
"""Frequencies of the counted allele among all parties' calls, in the first request after the counts; empty in repeats.
Where only sums open, all requests have the frequencies, since these limit the sums."""

PRUNED = Field("left_out", ("d",), kind="size", optional=True, constant="left out")
"""Field that a run with pruning sends with the frequencies: 1 for a left-out variant, else 0."""

CHECKED_KEY = "genotypes checked"
"""Key in a party's state for the run: set once a pass over all rows has shown that they are genotypes."""

COUNTS = {"called": 1, "alleles": 2, "squares": 4}
"""Largest counts of a variant for each person: calls, copies of the counted allele, and their squares."""


def _alleles(party: RowsClient, request: Fields) -> Fields:
    """Return a party's row count and, per variant, its calls, copies of the counted allele and their squares."""
    rows, called, alleles, squares = genotypes.count_alleles(party.participants.rows)
    return {"count": np.asarray(rows), "called": called, "alleles": alleles, "squares": squares}


ALLELES: Questions = {
    "alleles": Question(
        reply=Payload((COUNT, *(Field(name, ("d",), kind="size") for name in COUNTS))),
        answer=_alleles,
        needs="groups",
        limits=lambda request, public: {x: np.array(float(n * MAX_ROWS)) for x, n in {"count": 1, **COUNTS}.items()},
    )
}

SUMS_QUESTION = "sums"  # question whose sums follow from the counts, so that it is left out


REQUIRED_OPTIONS = {"scale": False, "center": True, "keep": "nothing", "adjust_for": "", "harmonise": "nothing"}
"""Values that genotypes require of these options, if a method has the options."""


@dataclass(frozen=True)
class GenotypeProjection(Projection):
    """Projection of a party's genotypes, standardised by the frequencies of all rows, missing calls at the mean."""

    @override
    def centred(self, rows: Rows) -> Iterator[StandardisedCalls]:
        """Standardise genotypes by mean and scale, missing calls as zero, in blocks of people."""
        return genotypes.standardised_blocks(rows, self.mean, self.scale)

    @property
    @override
    def axes(self) -> tuple[Array, Array | None]:
        """Components, and the mean of all standardised genotypes."""
        return self.components, np.zeros_like(self.mean)

    @override
    def require_near(self) -> None:
        """Raise nothing: genotypes less twice a frequency, over its deviation, are never rounded away."""

    @override
    def squared_error(self) -> float:
        """Return the total squared error of the standardised genotypes after projection."""
        return self.vault.squared_error(np.zeros_like(self.mean), np.empty(0), self.components)


class GenotypesStage(Genotypes, RowsStage):
    """Stage that asks for allele counts of all rows, and runs the method on genotypes standardised by them."""

    options: GenotypeOptions
    scales = True
    counts: genotypes.AlleleCounts | None = None  # of all rows, at the server
    pruned: NDArray[np.bool_]  # (d,) variants that count for nothing

    @override
    def method_config(self, config: RunConfig) -> RunConfig:
        """Return the run-config with `bound` 2, the largest number of copies of an allele."""
        return config.model_copy(update={"bound": 2.0})

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Put the questions for counts before the others, with frequencies in these; ConfigError for wrong options."""
        options = self.options
        if not options.genotypes:
            rest = f"'prune-window' {options.prune_window} and 'prune-step' {options.prune_step}"
            raise ConfigError(f"run-config: 'prune' is {options.prune:g}, {rest}, which go only with genotypes=true")
        if options.prune_step > options.prune_window:
            raise ConfigError(
                f"run-config: 'prune-step' is {options.prune_step}, expected at most 'prune-window' = "
                f"{options.prune_window}: else pairs between two windows are never compared"
            )
        chosen = options.model_dump()
        conflicts = [
            f"{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value or repr('')}"
            for name, value in REQUIRED_OPTIONS.items()
            if chosen.get(name, value) != value
        ]
        conflicts += [f"transform='' (not '{config.transform}')"] * bool(config.transform)
        if conflicts:
            rule = f"which standardises by allele frequencies and goes only with {' and '.join(conflicts)}"
            raise ConfigError(f"run-config: 'genotypes' is true, {rule}")
        bounded = self.method_config(config)
        script = {name: _bounded(question, bounded) for name, question in questions.items() if name != SUMS_QUESTION}
        if last := script.get("project"):
            # its mean follows from the frequencies: it equals no array of an earlier request
            fields = tuple(replace(x, constant_or_zero="") if x.name == "mean" else x for x in last.request.fields)
            script["project"] = replace(last, request=Payload(fields))
        products, extra = (pruning.linkage_questions(), (PRUNED,)) if options.prune else ({}, ())
        masked = {name for name, question in script.items() if not question.closing}
        for name in by_transport(config, clear={next(iter(script))}, masked=masked):
            script[name] = replace(script[name], request=Payload((FREQUENCIES, *extra, *script[name].request.fields)))
        return {**ALLELES, **products, **script}

    @override
    def units(self, mean: Array) -> Array:
        """Return the genotypes' deviations, of rows without missing calls: half the mean is the frequency."""
        return genotypes.genotype_deviation(mean / 2)

    # A party

    @override
    def require_ready(self, party: RowsClient) -> None:
        """Raise DataError, once in a run, for rows that are no genotypes, and what `permit_calls` raises."""
        if not (party.journal.has_begun() or CHECKED_KEY in party.site.state):
            require_genotypes(party.participants.rows, party.site.table.names)
            permit_calls(party.site.node, party.site.table)
            party.site.state[CHECKED_KEY] = []

    @override
    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Store frequencies and pruned variants when they first arrive; raise ContractError for impossible ones."""
        if FREQUENCIES.name in request and FREQUENCIES.name not in party.site.state:
            frequencies = request[FREQUENCIES.name]
            if not frequencies.size:
                raise ContractError(f"{SERVER}: 'frequencies' is empty in the first question after the allele counts")
            rarer = np.minimum(frequencies, 1 - frequencies)
            if ((rarer < genotypes.MIN_FREQUENCY) & (rarer != 0)).any():
                expected = "expected 0 to 1"
                raise ContractError(f"{SERVER}: 'frequencies' holds numbers that are no shares of alleles, {expected}")
            names = (FREQUENCIES.name, PRUNED.name)
            party.site.state[FREQUENCIES.name] = [request[name] for name in names if name in request]

    @override
    def rows(self, party: RowsClient, selection: Selection) -> Selection:
        """Return standardised genotypes once the frequencies are known, else the rows unchanged."""
        if FREQUENCIES.name not in party.site.state:
            return selection
        return selection.with_rows(genotypes.standardise(selection.rows, *party.site.state[FREQUENCIES.name]))

    @override
    def projection(self, party: RowsClient, request: Fields, projection: Projection) -> Projection:
        """Return the projection of genotypes; ContractError if mean and scale are not as the frequencies say."""
        frequencies = party.site.state[FREQUENCIES.name][0]
        expected = {"mean": 2 * frequencies, "scale": genotypes.genotype_deviation(frequencies)}
        if any(not np.array_equal(request[name], value) for name, value in expected.items()):
            raise ContractError(f"{SERVER}: 'mean' and 'scale' are not those of the 'frequencies' that it told before")
        return GenotypeProjection(**vars(projection))

    # The server

    @override
    def head(self) -> PooledCentre | None:
        """Return count, zero mean and variances of the standardised genotypes, from the allele counts."""
        assert self.counts is not None
        zero, diagonal = np.zeros_like(self.counts.called), np.where(self.pruned, 0.0, self.counts.diagonal)
        return PooledCentre(Head(self.counts.rows, zero, zero), diagonal)

    @override
    def fit(self, run: PCAStrategy, fitting: Fitting) -> Fitting:
        """Ask for counts and pruning, then run the method with frequencies in requests; pruned loadings are 0."""
        self.counts = counts = yield from pooled_counts()
        self.pruned = yield from pruning.pruned_variants(run.public, counts, self.options)
        broadcast = {"frequencies": counts.frequencies, "left_out": self.pruned.astype(np.float64)}
        later_broadcast = by_transport(run.config, clear=dict.fromkeys(broadcast, np.empty(0)), masked=broadcast)

        def put(question: Round) -> Program:
            """Yield the question, with allele frequencies and pruned variants added if the question has such fields."""
            nonlocal broadcast
            names = {field.name for field in run.script[question.phase].request.fields} & broadcast.keys()
            if names:
                question = replace(question, request={**question.request, **{name: broadcast[name] for name in names}})
                broadcast = later_broadcast
            return (yield question)

        solution: Solution = yield from relay(fitting, put)
        vectors = np.where(self.pruned[:, None], 0.0, solution.pairs.vectors)  # of a random block rounding may be left
        solution = replace(solution, pairs=replace(solution.pairs, vectors=vectors))
        return solution.with_details(notes=genotype_notes(counts, self.pruned, self.options))

    @override
    def model(self, run: PCAStrategy, model: PCAModel, solution: Solution) -> tuple[PCAModel, Solution]:
        """Return model and solution with mean and deviations of the genotypes, which follow from frequencies."""
        assert self.counts is not None
        # the method has subtracted the mean, up to rounding
        mean, unit = 2 * self.counts.frequencies, genotypes.genotype_deviation(self.counts.frequencies)
        return replace(model, mean_=mean, scale_=unit), replace(solution, mean=mean, scale=unit)


def _bounded(question: Question, config: RunConfig) -> Question:
    """Return the question with limits for values within the bound of ``config``, divided by the deviations."""
    limits = question.limits
    if limits is None:
        return question

    def within(request: Fields, public: Public) -> SumLimits:
        """Return the limits for rows divided by the deviations; ContractError for empty frequencies."""
        if FREQUENCIES.name in request:
            if not request[FREQUENCIES.name].size:
                raise ContractError(f"{SERVER}: 'frequencies' is empty, and sums of genotypes are limited by them")
            request = {**request, "scale": genotypes.genotype_deviation(request[FREQUENCIES.name])}
        return limits(request, replace(public, config=config))

    return replace(question, limits=within)


def pooled_counts() -> Generator[Round, Any, genotypes.AlleleCounts]:
    """Ask for the parties' allele counts, and return their sum; raise ContractError for sums that no genotypes have."""
    total: Total = yield SumRound("alleles")
    rows = int(read_row_count(total["count"], total.parties))
    counts = genotypes.AlleleCounts(rows, *(np.rint(total[name]) for name in COUNTS))
    possible = (counts.called <= counts.rows) & (counts.alleles <= 2 * counts.called)
    possible &= (counts.alleles <= counts.squares) & (counts.squares <= 2 * counts.alleles)
    if not possible.all():
        raise ContractError(f"the parties' allele counts of {(~possible).sum()} variants {pruning.IMPOSSIBLE}")
    return counts


def require_genotypes(rows: Rows, names: Sequence[str]) -> None:
    """Raise DataError for rows (n, d) with values other than 0, 1, 2 and missing."""
    if (columns := genotypes.non_genotype_columns(rows)).size:
        raise DataError(
            f"the data hold values other than 0, 1 and 2 in {columns.size} columns, and the run is of genotypes "
            "(genotypes=true): copies of an allele, with NaN for a missing call",
            local=columns_text(np.isin(np.arange(rows.shape[1]), columns), names),
        )


def genotype_notes(counts: genotypes.AlleleCounts, pruned: NDArray[np.bool_], options: GenotypeOptions) -> list[str]:
    """Return the model's notes on genotypes: variants, constant variants, missing calls and pruning."""
    notes = [f"genotypes of {counts.called.size} variants, divided by sqrt(2p(1 - p)); the model holds the frequencies"]
    if counts.constant_count:
        notes.append(f"{counts.constant_count} variants have one allele only, or no call, and count for nothing")
    if counts.missing_share:
        notes.append(f"{counts.missing_share:.2%} of the calls are missing, and count as the variant's mean")
    if options.prune:
        notes.append(
            f"{(~pruned).sum()} variants are kept; {pruned.sum()} do not vary, or have a squared correlation above "
            f"{options.prune:g} within {options.prune_window} variants, and count for nothing"
        )
        notes.append(
            "all people count when variants are pruned, with two copies of each: PLINK prunes by founders (people "
            "without parents in the .fam file), by one copy of men's X and Y, without chromosome 0 (docs/genotypes.md)"
        )
    return notes
