"""Influence of each party on a model, if the server sees the moments of each party.

Nobody can check a party's claim against rows. But a party that turns a component must hold much of it: that shows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.adjustment import find_unit_mismatches
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.influence import (
    Influence,
    Part,
    RandomGroups,
    Reason,
    indefinite_parts,
    near_groups,
    outlying_parties,
    party_influences,
)
from fedpca_flwr.maths.moments import Head, Moments, head_order
from fedpca_flwr.model.solution import Solution

HIDDEN_UNITS_NOTE = (
    "only sums were shown: nobody can see a site that has a feature in another unit than the others, and scaling does "
    "not mend it. Each site can compare the means and deviations of its own features with the model's 'mean_' and "
    "'scale_': with another unit somewhere they differ by several times (docs/results.md)"
)
"""Note of a run that scales where the server has no site's means."""


def unit_entries(parties: Mapping[str, tuple[float, Array, Array]]) -> list[dict[str, Any]]:
    """Return log entries of features that a party seems to have in another unit than the others, perhaps none.

    ``parties`` holds, by name, rows, and each feature's mean (d,) and deviation (d,), NaN or 0 where it is absent.
    """
    names = list(parties)
    rows, centres, deviations = map(np.array, zip(*parties.values(), strict=True))
    return [
        {"party": names[unit.party], "feature": unit.feature, "mean": unit.mean, "mean_elsewhere": unit.peer_mean}
        for unit in find_unit_mismatches(rows.astype(np.float64), centres, deviations)
    ]


def scatter_unit_entries(parties: Mapping[str, tuple[Head, Array]]) -> list[dict[str, Any]]:
    """Return `unit_entries` from each party's count and mean, and the diagonal (d,) of the scatter about that mean."""
    return unit_entries(
        {name: (head.n, head.mean, standard_deviations(diagonal, head.n)) for name, (head, diagonal) in parties.items()}
    )


def standard_deviations(squares: Array, rows: Array | float) -> Array:
    """Return standard deviations (d,) from sums of squares (d,) about the means, and numbers of rows, () or (d,)."""
    deviations: Array = np.sqrt(squares.clip(min=0.0) / rows)
    return deviations


MIN_EIGENVALUE_SHARE = -1e-9  # share of the first eigenvalue; a variance below this share is not rounding
MAX_NAMED_PARTIES = 10  # largest number of parties of a group that a text names
MAX_OPEN_BYTES = 2**26  # of the parties' parts, up to which a model in memory keeps them until its log is read


@dataclass(frozen=True)
class PartyInfluence:
    """Influence of a single party on the model, and reasons if it stands out."""

    party: str
    influence: Influence
    reasons: Sequence[Reason] = ()

    @property
    def largest_share(self) -> tuple[float, int]:
        """Largest share that the party has of any component, and that component's number, from 1."""
        first = int(np.argmax(self.influence.components))
        return float(self.influence.components[first]), first + 1

    def entry(self) -> dict[str, Any]:
        """Return the party's shares and angles (degrees) for the model's log; None for an unknown ratio."""
        influence = self.influence
        return {
            "party": self.party,
            "rows_share": influence.rows,
            "variance_share": influence.variance,
            "component_shares": influence.components.tolist(),
            "angles_degrees": influence.turn.axes.tolist(),
            "subspace_degrees": influence.turn.span,
            "fit_share": None if math.isnan(influence.fit) else influence.fit,
            "spread_of_median": None if math.isnan(influence.spread) else influence.spread,
        }


@dataclass(frozen=True)
class Contributions:
    """Moments or factors of each party that were added to the pooled scatter, to measure each party's influence."""

    parts: Mapping[str, Part]  # by how texts name the party
    between: bool = True  # whether the scatter between the parties' means was added too

    def influence(self, solution: Solution, *, center: bool, limit: float) -> list[PartyInfluence]:
        """Return shares and angles of each party; ContractError for one above `limit` (0: none), or false moments."""
        pairs, scale = solution.pairs, solution.scale
        moments = {name: part for name, part in self.parts.items() if isinstance(part, Moments)}
        rng = np.random.default_rng()
        suspects = indefinite_parts(list(moments.values()), float(pairs.values[0]), scale, rng)
        _refuse_indefinite([list(moments)[i] for i in suspects])
        parts = list(self.parts.values())
        results = party_influences(parts, pairs, solution.mean, scale, center=center, between=self.between)
        stored = sum(value.nbytes for part in parts for value in vars(part).values() if isinstance(value, np.ndarray))
        if stored > MAX_OPEN_BYTES:
            _ = results[0].turn  # which drops the parts
        reasons = outlying_parties(results)
        parties = [
            PartyInfluence(name, influence, reasons.get(i, ()))
            for i, (name, influence) in enumerate(zip(self.parts, results, strict=True))
        ]
        weights = pairs.values / pairs.values[0]  # rounding is a share of the first eigenvalue
        shares = {item.party: item.influence.components for item in parties}
        lowest = {party: (values * weights[: values.size]).min() for party, values in shares.items()}
        _refuse_indefinite([party for party, share in lowest.items() if share < MIN_EIGENVALUE_SHARE])
        if limit:
            _require_below(limit, parties)
        return parties

    def equal_notes(self) -> list[str]:
        """Return notes on parties whose numbers of rows, means and variances are equal to the last bit."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name, part in self.parts.items():
            if part.head.n > 1:  # single rows may well be equal
                groups.setdefault((*head_order(part.head), part.diagonal().tobytes()), []).append(name)
        same = [", ".join(names[:MAX_NAMED_PARTIES]) for names in groups.values() if len(names) > 1]
        return [f"{names} sent equal means and variances: do they hold the same rows?" for names in same]

    def units(self) -> list[dict[str, Any]]:
        """Return entries of the log's ``other_units``: features in another unit than at other parties."""
        return scatter_unit_entries({name: (part.head, part.diagonal()) for name, part in self.parts.items()})


@dataclass(frozen=True)
class AddedContributions:
    """Sums of random groups of parties' scatters, which replace each party's scatter and reveal impossible ones."""

    groups: RandomGroups

    def influence(self, solution: Solution, *, center: bool, limit: float) -> list[PartyInfluence]:
        """Return an empty list, or raise ContractError if the summed scatter of a group has a negative eigenvalue."""
        suspects = self.groups.indefinite_groups(solution.mean.size, float(solution.pairs.values[0]), solution.scale)
        if suspects:
            why = "their scatters add up to one with a negative eigenvalue: no rows have such a one, and it takes away "
            why += "what others have. Which of them, a run with 'max-share' tells: it keeps what each sent"
            shown = [", ".join([*names[:MAX_NAMED_PARTIES], "..."][: len(names)]) for names in suspects]
            pairs = zip(suspects, shown, strict=True)
            raise ContractError("\n".join(f"one of {len(names)} parties ({text}): {why}" for names, text in pairs))
        return []

    def equal_notes(self) -> list[str]:
        """Return an empty list: without the parties' means no equal ones can be found."""
        return []

    def units(self) -> list[dict[str, Any]]:
        """Return an empty list: without the parties' means no differing units can be found."""
        return []


def influence_measurements(parties: Sequence[PartyInfluence]) -> dict[str, float]:
    """Return the largest component share of any party and the number of components; angles are open (NaN)."""
    if not parties:
        return {}
    return {
        "influence_component_share": max(map(attrgetter("largest_share"), parties))[0],
        "influence_axis_degrees": math.nan,
        "influence_subspace_degrees": math.nan,
        "influence_components": parties[0].influence.components.size,
    }


def complete_log(log: Mapping[str, Any], parties: Sequence[PartyInfluence]) -> None:
    """Enter the parties' shares and angles, and the largest angles, into a model's log, which has places for them."""
    log["influence"][:] = [item.entry() for item in parties]
    log["measured"]["influence_axis_degrees"] = max(float(item.influence.turn.axes[0]) for item in parties)
    log["measured"]["influence_subspace_degrees"] = max(item.influence.turn.span for item in parties)


def influence_notes(parties: Sequence[PartyInfluence], variances: Array) -> list[str]:
    """Return a text for each party whose influence stands out, with the reasons; variances (k,) are the components'."""
    fits = [item.influence.fit for item in parties]
    median_text = f"of that of the median party {0.0 if np.isnan(fits).all() else float(np.nanmedian(fits)):.0%}"
    notes = []
    for item in parties:
        if not item.reasons:
            continue
        influence, (share, component) = item.influence, item.largest_share
        turns = ""
        if "share" in item.reasons and [component - 1] in near_groups(variances):  # else a turn says only that it mixes
            turns = f", and without it that turns by up to {influence.turn.axes[component - 1]:.0f} degrees"
        texts: dict[Reason, str] = {
            "rows": f"it says that it has {influence.rows:.4%} of all rows",
            "share": f"it holds {share:.0%} of component {component} with {influence.rows:.2%} of the rows{turns}",
            "spread": f"its rows vary {influence.spread:.3g} times as much as those of the median party",
            "fit": f"the components hold {influence.fit:.0%} of its variance, {median_text}",
        }
        why = "; ".join(texts[reason] for reason in item.reasons)
        notes.append(f"{item.party} stands out: {why}. If that cannot be, run without it")
    return notes


def _refuse_indefinite(parties: Sequence[str]) -> None:
    """Raise a ContractError that names the parties, whose scatters have a negative eigenvalue, if there are any."""
    if parties:
        why = "its scatter has a negative eigenvalue: no rows have such a one, and it takes away what others have"
        raise ContractError("\n".join(f"{party}: {why}" for party in parties))


def _require_below(limit: float, parties: Sequence[PartyInfluence]) -> None:
    """Raise ContractError if any party's share of a component exceeds the limit."""
    lines = [
        f"{item.party} holds {share:.2%} of component {component} with {item.influence.rows:.2%} of the rows"
        for item in parties
        for share, component in [item.largest_share]
        if share > limit
    ]
    if lines:
        raise ContractError(
            "\n".join([*lines, f"run-config: 'max-share' is {limit:g}; run without whom you do not trust, or raise it"])
        )
