"""What a model tells of its own error, as numbers: the only place where its texts are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fedpca_flwr.model import PCAModel

PRINTED = 1.06
"""Two digits of a number may be so much less than the number."""


@dataclass(frozen=True)
class Told:
    """Angles in degrees, None where nothing is told.

    Attributes
    ----------
    certificate : float or None
        The certified angle.
    presumed : int or None
        So often at most a variance must occur for the certificate to hold.
    certified : int or None
        The certificate is of so many of the first components; None: of all.
    bound : float or None
        The angle bound.
    to_exact : float or None
        The angle to the exact components, as the server computed it.
    squared_error : float or None
        Per row, as the parties measured it.
    fixed_point : float
        What rounding of secure sums may cost, as a share of the variance.
    above_noise : int or None
        Components that a private run says are no noise.
    """

    certificate: float | None
    presumed: int | None
    certified: int | None
    bound: float | None
    to_exact: float | None
    squared_error: float | None
    fixed_point: float
    above_noise: int | None

    @property
    def at_most(self) -> float | None:
        """The smallest angle that the model says the true one does not exceed."""
        whole = self.certificate if self.certified is None else None
        angles = [angle for angle in (whole, self.bound) if angle is not None]
        return min(angles) * PRINTED if angles else None


def told_by(model: PCAModel) -> Told:
    measured = model.log["measured"]
    presumed = re.search(r"more than (\d+) times", str(measured.get("certified angle", "")))
    certified = re.search(r"of the first (\d+) components", str(measured.get("certified angle", "")))
    above = _number(measured.get("above the noise"))
    return Told(
        certificate=_number(measured.get("certified angle")),
        presumed=int(presumed[1]) if presumed else None,
        certified=int(certified[1]) if certified else None,
        bound=_number(measured.get("angle bound")),
        to_exact=_number(measured.get("angle to exact")),
        squared_error=_number(measured.get("squared error per row")),
        fixed_point=_fixed_point(measured),
        above_noise=None if above is None else int(above),
    )


def _number(told: Any) -> float | None:
    """The number that a measurement is, or begins with."""
    if told is None or isinstance(told, int | float):
        return told
    found = re.match(r"[-+0-9.e]+|inf", str(told))
    return float(found[0]) if found else None


def _fixed_point(measured: dict[str, Any]) -> float:
    found = re.search(r"rounds off ([-+0-9.e]+)", str(measured.get("fixed point", "")))
    return float(found[1]) if found else 0.0
