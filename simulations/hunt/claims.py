"""What a model tells of its own error."""

from __future__ import annotations

from dataclasses import dataclass

from fedpca_flwr.model.model import PCAModel


@dataclass(frozen=True)
class Claims:
    """Angles in degrees, None where nothing is told.

    Attributes
    ----------
    certificate : float or None
        The certified angle.
    certified : int
        The certificate is of so many of the first components.
    every : bool
        Whether these are all.
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
    certified: int
    every: bool
    bound: float | None
    to_exact: float | None
    squared_error: float | None
    fixed_point: float
    above_noise: int | None

    @property
    def at_most(self) -> float | None:
        """The smallest angle that the model says the true one does not exceed."""
        whole = self.certificate if self.every else None
        angles = [angle for angle in (whole, self.bound) if angle is not None]
        return min(angles) if angles else None


def claims_of(model: PCAModel) -> Claims:
    measured = model.log["measured"]
    certified = measured.get("certified_components", 0)
    return Claims(
        certificate=_angle(measured.get("certified_angle_degrees")),
        certified=certified,
        every=certified == model.n_components_,
        bound=_angle(measured.get("angle_bound_degrees")),
        to_exact=measured.get("angle_to_exact_max_degrees"),
        squared_error=measured.get("squared_error_per_row"),
        fixed_point=measured.get("fixed_point_variance_share", measured.get("fixed_point_size_share", 0.0)),
        above_noise=measured.get("components_above_noise"),
    )


def _angle(bound: float | None) -> float | None:
    """A bound that says something."""
    return None if bound is None or bound >= 90 else bound
