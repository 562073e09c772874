"""What influence each party has on a model, where the server sees what each of them added to it.

What a party sends is its own claim: nobody can hold it against rows. But who turns a component to its liking must hold
much of it, and that shows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.adjustment import other_units
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.influence import Influence, Part, RandomGroups, Reason, indefinite, influences, told
from fedpca_flwr.maths.moments import Head, Moments
from fedpca_flwr.model.solution import Solution

UNSEEN = (
    "only sums were shown: nobody can see a site that has a feature in another unit than the others, and scaling does "
    "not mend it. Each site can compare the means and deviations of its own features with the model's 'mean_' and "
    "'scale_': with another unit somewhere they differ by several times (docs/results.md)"
)
"""What a run that scales says where the server has no site's means."""


def units_of(parties: Mapping[str, tuple[float, Array, Array]]) -> list[dict[str, Any]]:
    """Return the entries of ``model.log["other_units"]``.

    Parameters
    ----------
    parties : mapping of str to (float, ndarray of shape (d,), ndarray of shape (d,))
        By how texts name them: their rows, and the centre and the deviation of each feature there, NaN or 0 where a
        party has none.
    """
    names = list(parties)
    rows = np.array([rows for rows, _, _ in parties.values()], dtype=np.float64)
    centres, deviations = (np.stack([own[part] for own in parties.values()]) for part in (1, 2))
    return [
        {"party": names[unit.party], "feature": unit.feature, "mean": unit.mean, "mean_elsewhere": unit.others}
        for unit in other_units(rows, centres, deviations)
    ]


def units_of_scatters(parties: Mapping[str, tuple[Head, Array]]) -> list[dict[str, Any]]:
    """Return the same, of parties with count and mean, and the diagonal (d,) of the scatter about the own mean."""
    return units_of(
        {name: (head.n, head.mean, deviations_of(diagonal, head.n)) for name, (head, diagonal) in parties.items()}
    )


def deviations_of(squares: Array, rows: Array | float) -> Array:
    """Return the standard deviations (d,) of features by the sums of their squares about their means."""
    found: Array = np.sqrt(squares.clip(min=0.0) / rows)
    return found


NEGATIVE = -1e-9
"""A variance below this share of the first eigenvalue is not rounding."""

NAMED = 10
"""Parties of a group at most that a text names."""


@dataclass(frozen=True)
class PartyInfluence:
    """The influence of one party, and how texts name it."""

    party: str
    influence: Influence
    reasons: Sequence[Reason] = ()  # why a reader should be told of it, if at all

    @property
    def most(self) -> tuple[float, int]:
        """The largest share of a component, and the number of that component, from 1."""
        first = int(np.argmax(self.influence.components))
        return float(self.influence.components[first]), first + 1

    def entry(self) -> dict[str, Any]:
        """The same as JSON can hold it: an entry of ``model.log["influence"]``."""
        found = self.influence
        return {
            "party": self.party,
            "rows_share": found.rows,
            "variance_share": found.variance,
            "component_shares": found.components.tolist(),
            "angles_degrees": found.turn.axes.tolist(),
            "subspace_degrees": found.turn.span,
            "fit_share": None if math.isnan(found.fit) else found.fit,
            "spread_of_median": None if math.isnan(found.spread) else found.spread,
        }


@dataclass(frozen=True)
class Contributions:
    """What the parties added to a pooled scatter."""

    parts: Mapping[str, Part]  # by how texts name the party
    between: bool = True  # whether what lies between their means was added too

    def influence(self, solution: Solution, *, center: bool, limit: float) -> list[PartyInfluence]:
        """The influence of every party on what a method found.

        A `ContractError` names parties whose scatter no rows have, or that hold more of a component than the ``limit``
        (0: none).
        """
        self._require_semidefinite(solution)
        found = influences(
            list(self.parts.values()),
            solution.pairs,
            solution.mean,
            solution.scale,
            center=center,
            between=self.between,
        )
        reasons = told(found)
        everyone = [
            PartyInfluence(name, one, reasons.get(i, ()))
            for i, (name, one) in enumerate(zip(self.parts, found, strict=True))
        ]
        _require_no_negative(everyone, solution.pairs.values)
        if limit:
            _require_below(limit, everyone)
        return everyone

    def units(self) -> list[dict[str, Any]]:
        """Features that a party has in another unit."""
        return units_of_scatters({name: (part.head, part.diagonal()) for name, part in self.parts.items()})

    def _require_semidefinite(self, solution: Solution) -> None:
        """Refuse what takes directions of other parties away."""
        sent = {name: part for name, part in self.parts.items() if isinstance(part, Moments)}
        largest, rng = float(solution.pairs.values[0]), np.random.default_rng()
        _refuse([list(sent)[i] for i in indefinite(list(sent.values()), largest, solution.scale, rng)])


@dataclass(frozen=True)
class AddedContributions:
    """What is left of contributions that were added as they came: no influence, but a check of groups."""

    groups: RandomGroups

    def influence(self, solution: Solution, *, center: bool, limit: float) -> list[PartyInfluence]:
        """Nobody's; a `ContractError` where what a group of parties sent together is no scatter of any rows."""
        found = self.groups.indefinite(solution.mean.size, float(solution.pairs.values[0]), solution.scale)
        if found:
            lines = [
                f"one of {len(names)} parties ({', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}): "
                "their scatters add up to one with a negative eigenvalue: no rows have such a one, and it takes away "
                "what others have. Which of them, a run with 'max-share' tells: it keeps what each sent"
                for names in found
            ]
            raise ContractError("\n".join(lines))
        return []

    def units(self) -> list[dict[str, Any]]:
        """None: nobody's means are kept."""
        return []


def largest_of(everyone: Sequence[PartyInfluence]) -> dict[str, float]:
    """The most that any party has, by the names of `fedpca_flwr.model.measurements`."""
    if not everyone:
        return {}
    return {
        "influence_component_share": max(one.most[0] for one in everyone),
        "influence_axis_degrees": max(float(one.influence.turn.axes[0]) for one in everyone),
        "influence_subspace_degrees": max(one.influence.turn.span for one in everyone),
        "influence_components": everyone[0].influence.components.size,
    }


def notes_on(everyone: Sequence[PartyInfluence]) -> list[str]:
    """What a reader must know of parties that stand out."""
    fits = [one.influence.fit for one in everyone]
    usual = 0.0 if all(map(math.isnan, fits)) else float(np.nanmedian(fits))
    return [_note(one, usual) for one in everyone if one.reasons]


def _note(one: PartyInfluence, usual: float) -> str:
    found, (share, component) = one.influence, one.most
    texts: dict[Reason, str] = {
        "rows": f"it says that it has {found.rows:.4%} of all rows",
        "share": (
            f"it holds {share:.0%} of component {component} with {found.rows:.2%} of the rows, and without it that "
            f"turns by up to {found.turn.axes[component - 1]:.0f} degrees"
        ),
        "spread": f"its rows vary {found.spread:.3g} times as much as those of the median party",
        "fit": f"the components hold {found.fit:.0%} of its variance, of that of the median party {usual:.0%}",
    }
    why = "; ".join(texts[reason] for reason in one.reasons)
    return f"{one.party} stands out: {why}. If that cannot be, run without it"


def _require_no_negative(everyone: Sequence[PartyInfluence], values: Array) -> None:
    """Refuse a party that holds less than nothing of a component; rounding is a share of the first eigenvalue."""
    weights = values / values[0]
    shares = {one.party: one.influence.components for one in everyone}
    _refuse([party for party, held in shares.items() if (held * weights[: held.size]).min() < NEGATIVE])


def _refuse(parties: Sequence[str]) -> None:
    if parties:
        why = "its scatter has a negative eigenvalue: no rows have such a one, and it takes away what others have"
        raise ContractError("\n".join(f"{party}: {why}" for party in parties))


def _require_below(limit: float, everyone: Sequence[PartyInfluence]) -> None:
    """Refuse a model of which one party holds more than it may."""
    lines = [
        f"{one.party} holds {share:.2%} of component {component} with {one.influence.rows:.2%} of the rows"
        for one in everyone
        for share, component in [one.most]
        if share > limit
    ]
    if lines:
        raise ContractError(
            "\n".join([*lines, f"run-config: 'max-share' is {limit:g}; run without whom you do not trust, or raise it"])
        )
