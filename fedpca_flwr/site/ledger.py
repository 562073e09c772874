"""A site's privacy ledger: what it has released, at what noise, so that a budget can stop the next release.

Each entry is one noisy reply: phase, noise multiplier (standard deviation of the noise over the sensitivity), and the
relation of neighbouring data sets by which that is meant; one for replace-one holds for add-remove too. The entries are
events of the site's journal (`fedpca_flwr.site.journal`), in one chain with the questions and answers, so that none of
them can go missing while the others stand. An entry is on disk before its noise is drawn: whatever left is in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.privacy import composed, gaussian_epsilon

RELEASE = "release"
"""The kind of the ledger's events."""


@dataclass(frozen=True)
class Noted:
    """What an event of a journal is about, as the journal holds it."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Release(Noted):
    """A noisy reply."""

    phase: str
    relation: str
    multiplier: float


def require_budget(
    multiplier: float,
    of_run: Sequence[float],
    of_others: Sequence[float],
    *,
    whole_run: float,
    epsilon: float,
    delta: float,
) -> None:
    """Refuse a release with which a site would have spent more than its budget.

    Parameters
    ----------
    multiplier : float
        Of the release.
    of_run, of_others : sequence of float
        Of those before it, in its run and in all others.
    whole_run : float
        Of all phases of the run together: a run that cannot end need not begin.
    epsilon, delta : float
        The budget.

    Raises
    ------
    DisclosureError
    """
    own = min(whole_run, composed([*of_run, multiplier]))
    spent, after = (gaussian_epsilon(composed(m), delta) for m in (of_others, [*of_others, own]))
    if after > epsilon * (1 + 1e-9):
        raise DisclosureError(
            f"this site's privacy budget does not allow the run: with it epsilon would be {after:.4g} at delta "
            f"{delta:g} ({spent:.4g} without it), allowed is {epsilon:g} (node-config 'epsilon-budget')"
        )
