"""Genotypes (option ``genotypes``): allele counts of all rows first, then the method on standardised genotypes.

Standardising needs the allele frequencies of all rows, and so one question before the method's own. That is all that a
method knows of it: `genotype_phases` puts the question before its script, `told_frequencies` the answer into its first
question, and from then on a party's ``data`` are standardised. So it composes with any method for rows, and whatever
the method says of blocks, bytes and certificates holds of the standardised rows.

It is an option of the method and not a property of the rows, because a script must follow from the run-config alone: a
site whose rows are no genotypes refuses. And it is not a value of ``scale``, which means the pooled deviation: that of
genotypes among relatives or a mixture of peoples is not ``sqrt(2p(1 - p))``, and a missing call needs p before anything
else can be computed.

The counts are whole numbers, so that masked they open exactly. They give the mean (zero) and the scatter's diagonal
too: where only sums are shown the sum that `sub-it` needs for these is left out, and `bound` is not needed: it is 2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.genotypes import LEAST, AlleleCounts, columns_of_others, count_alleles
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.protocol.card import MomentsOptions, PCAOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Ask, Program, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.protocol.transport import relayed
from fedpca_flwr.questions import linkage
from fedpca_flwr.questions.fields import COUNT
from fedpca_flwr.questions.row_limits import ROWS, Pooled, rows_in

if TYPE_CHECKING:
    from fedpca_flwr.protocol.strategy import PCAStrategy
    from fedpca_flwr.questions.rows_run import RowsClient

FREQUENCIES = Field("frequencies", ("d",), kind="size", optional=True, fixed="frequencies")
"""Of the counted allele among all parties' calls, with the first question after the counts; empty in its repeats. Where
only sums open, all questions have them, since they limit the sums."""

LEFT_OUT = Field("left_out", ("d",), kind="size", optional=True, fixed="left out")
"""With the frequencies where a run prunes: 1 for a variant that counts for nothing, else 0."""

CHECKED = "genotypes checked"
"""In a party's state for the run: that its rows are genotypes, which a pass over all of them has shown."""

COUNTS = ("called", "alleles", "squares")


def _alleles(party: RowsClient, asked: Fields) -> Fields:
    """Of each variant the calls, the copies of the counted allele, and the sum of squares."""
    rows, called, alleles, squares = count_alleles(party.unscaled)
    return {"count": np.asarray(rows), "called": called, "alleles": alleles, "squares": squares}


ALLELES: Questions = {
    "alleles": Question(
        reply=Payload((COUNT, *(Field(name, ("d",), kind="size") for name in COUNTS))),
        answer=_alleles,
        limits=lambda asked, public: {
            name: np.array(float(most * ROWS)) for name, most in zip(("count", *COUNTS), (1, 1, 2, 4), strict=True)
        },
    )
}

KNOWN = "sums"
"""The question for what the counts tell."""

LARGEST = 2.0
"""Copies of an allele, and so the bound of genotypes."""


class GenotypeOptions(PCAOptions):
    """The option of the methods that take genotypes."""

    genotypes: Annotated[bool, Limits(examples=[])] = False
    """Rows are genotypes: 0, 1 or 2 copies of an allele, or missing (docs/genotypes.md)."""

    prune: Annotated[float, Limits(ge=0, lt=1, examples=[])] = 0.0
    """With genotypes=true: leave out variants whose squared correlation with a neighbour is above this; 0: none."""
    prune_window: Annotated[int, Limits(ge=2, le=10_000, examples=[])] = 200
    """Variants in a window, in which all pairs are compared."""
    prune_step: Annotated[int, Limits(ge=1, examples=[])] = 25
    """Variants by which the window moves, at most as many as it has."""

    @property
    def takes_gaps(self) -> bool:
        return self.genotypes


def are_genotypes(options: PCAOptions) -> bool:
    """Whether the run is of genotypes."""
    return isinstance(options, GenotypeOptions) and options.genotypes


Given = TypeVar("Given", bound=GenotypeOptions)


def genotype_phases(config: RunConfig, options: Given, phases: Callable[[RunConfig, Given], Questions]) -> Questions:
    """The script of a method's ``phases``, of genotypes if the options say so; a `ConfigError` where other options
    contradict that."""
    _require_pruning(options)
    if not options.genotypes:
        return phases(config, options)
    others = ["scale=false"] * options.scaled + ["center=true"] * (not options.centred)
    others += ["keep=nothing"] * (isinstance(options, MomentsOptions) and options.keep != "nothing")
    if others:
        raise ConfigError(
            "run-config: 'genotypes' is true, which standardises by allele frequencies and goes only with "
            f"{' and '.join(others)}"
        )
    bounded = config.model_copy(update={"bound": LARGEST})
    own = {name: _bounded(phase, bounded) for name, phase in phases(bounded, options).items() if name != KNOWN}
    pruned, more = (linkage.linkage_phases(), (LEFT_OUT,)) if options.prune else ({}, ())
    first = next(iter(own))
    for name in by_transport(config, clear={first}, masked={name for name in own if not own[name].closing}):
        own[name] = replace(own[name], asked=Payload((FREQUENCIES, *more, *own[name].asked.fields)))
    return {**ALLELES, **pruned, **own}


def _bounded(phase: Question, config: RunConfig) -> Question:
    """A question whose limits follow from the bound of this configuration."""
    limits = phase.limits
    if limits is None:
        return phase
    return replace(phase, limits=lambda asked, public: limits(asked, replace(public, config=config)))


def _require_pruning(options: GenotypeOptions) -> None:
    if options.prune and not options.genotypes:
        raise ConfigError(f"run-config: 'prune' is {options.prune:g}, which goes only with genotypes=true")
    if options.prune_step > options.prune_window:
        raise ConfigError(
            f"run-config: 'prune-step' is {options.prune_step}, expected at most 'prune-window' = "
            f"{options.prune_window}: else pairs between two windows are never compared"
        )


def pooled_counts() -> Generator[Ask, Any, AlleleCounts]:
    """The counts of all rows.

    Raises
    ------
    ContractError
        Where no genotypes have such counts: nobody can check a single share.
    """
    total: Total = yield Sum("alleles")
    counts = AlleleCounts(int(rows_in(total["count"], total.parties)), *(np.rint(total[name]) for name in COUNTS))
    possible = (counts.called <= counts.rows) & (counts.alleles <= 2 * counts.called)
    possible &= (counts.alleles <= counts.squares) & (counts.squares <= 2 * counts.alleles)
    if not possible.all():
        raise ContractError(
            f"the parties' allele counts of {(~possible).sum()} variants are such as no genotypes have: the share of "
            "one of them is false, or was altered on its way"
        )
    return counts


def about_zero(counts: AlleleCounts, left_out: NDArray[np.bool_]) -> Pooled:
    """What a sum tells of other rows, of standardised genotypes without variants that are ``left_out`` (d,)."""
    zero, diagonal = np.zeros_like(counts.called), np.where(left_out, 0.0, counts.diagonal)
    return Pooled(Head(counts.rows, zero, zero), diagonal)


def told_frequencies(run: PCAStrategy, program: Program, frequencies: Array, left_out: NDArray[np.bool_]) -> Program:
    """The questions of a method, with the first of which every party is told the frequencies, and what is left out."""
    told = {"frequencies": frequencies, "left_out": left_out.astype(np.float64)}
    again = by_transport(run.config, clear=dict.fromkeys(told, np.empty(0)), masked=told)

    def put(question: Ask) -> Program:
        nonlocal told
        names = {field.name for field in run.phases[question.phase].asked.fields} & told.keys()
        if names:
            question = replace(question, asked={**question.asked, **{name: told[name] for name in names}})
            told = again
        return (yield question)

    return relayed(program, put)


def require_frequencies(asked: Fields) -> None:
    """Refuse frequencies that those of as many rows as there can be cannot be."""
    frequencies = asked[FREQUENCIES.name]
    if not frequencies.size:
        raise ContractError(f"{SERVER}: 'frequencies' is empty in the first question after the allele counts")
    rarer = np.minimum(frequencies, 1 - frequencies)
    if ((rarer < LEAST) & (rarer != 0)).any():
        raise ContractError(f"{SERVER}: 'frequencies' holds numbers that are no shares of alleles, expected 0 to 1")


def require_genotypes(rows: Rows) -> None:
    """Refuse rows that are no genotypes."""
    others = columns_of_others(rows)
    if others.size:
        raise DataError(
            f"the data hold values other than 0, 1 and 2 in {others.size} columns (the site's log says where), and the "
            "run is of genotypes (genotypes=true): copies of an allele, with NaN for a missing call",
            local=f"columns (from 0): {others.tolist()}",
        )


def genotype_notes(counts: AlleleCounts, left_out: NDArray[np.bool_], options: GenotypeOptions) -> list[str]:
    """What a reader of the model must know."""
    about = [f"genotypes of {counts.called.size} variants, divided by sqrt(2p(1 - p)); the model holds the frequencies"]
    if counts.constant:
        about.append(f"{counts.constant} variants have one allele only, or no call, and count for nothing")
    if counts.missing_share:
        about.append(f"{counts.missing_share:.2%} of the calls are missing, and count as the variant's mean")
    if options.prune:
        about.append(
            f"{(~left_out).sum()} variants are kept: others do not vary, or have a squared correlation above "
            f"{options.prune:g} within {options.prune_window} variants; these count for nothing"
        )
        about.append(
            "all people count when variants are pruned, with two copies of each: PLINK prunes by founders (people "
            "without parents in the .fam file), by one copy of men's X and Y, without chromosome 0 (docs/genotypes.md)"
        )
    return about
