"""What every model says of its own certainty: what rounding leaves of its components, in one place for all methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpca_flwr.maths.certificate import EXACT
from fedpca_flwr.maths.eigen import Eigenpairs, Resolution, resolution

SCALED, FACTORS = "scale=true", "the method 'qr-pca' with whole factors"
"""What resolves more."""


class Certainty(NamedTuple):
    """What float64 lets a model say.

    Attributes
    ----------
    exact : bool
        Whether the method is exact, and rounding turns the components by no more than `EXACT`: no basis of tied
        components is exact, since the data determine none.
    notes : list of str
    resolved : int or None
        How many components are above rounding, where not all are: a certificate is of these.
    """

    exact: bool
    notes: list[str]
    resolved: int | None = None


def certainty(pairs: Eigenpairs, *, exact: bool, ways: Sequence[str]) -> Certainty:
    """What rounding leaves of the leading components.

    Parameters
    ----------
    pairs : Eigenpairs
    exact : bool
        Whether the method is exact.
    ways : sequence of str
        What resolves more.
    """
    k, limit = pairs.values.size, resolution(pairs)
    most = k if pairs.rank is None else min(k, pairs.rank)
    found = int((pairs.values > limit.floor).sum())
    advice = f"; {' or '.join(ways)} resolves more" if ways else ""
    if found < most:
        return Certainty(False, [_unresolved(pairs, found, limit.floor) + advice], found)
    if most < k:
        text = f"the data have rank {most}: components {most + 1} to {k} have no variance and arbitrary directions"
        return Certainty(exact and limit.angle <= EXACT, [text])
    if limit.angle == 90:
        text = f"components {k} and {k + 1} have equal variance: the {k}-dimensional subspace is not unique"
        return Certainty(False, [text])
    if exact and limit.angle > EXACT:
        return Certainty(False, [_turned(limit) + advice])
    return Certainty(exact, [])


def _unresolved(pairs: Eigenpairs, found: int, floor: float) -> str:
    k, share = pairs.values.size, floor / max(float(pairs.values[0]), np.finfo(np.float64).tiny)
    which = f"component {k} is" if found + 1 == k else f"components {found + 1} to {k} are"
    return (
        f"{which} below what can be resolved beside the first component ({share:.1g} of its variance): no variance is "
        "left there, or the directions are noise of rounding"
    )


def _turned(limit: Resolution) -> str:
    return (
        f"rounding may turn the components by {limit.angle:.1g} degrees: the gap after the last variance is too small "
        "beside the first"
    )
