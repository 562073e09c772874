"""When products that came in few digits should be had again in full: of the answer alone, and once if possible.

Products in float32 take half the bytes, but what they round off stays in the residuals of all Ritz vectors, and the
certificate stands still there. It is enough to know the products of the first k in full: the others count only as far
as later vectors are made of them, and then their error is multiplied by an angle that is small by that time
(`fedpca_flwr.maths.krylov.KnownProducts.renew`).
"""

from __future__ import annotations

from fedpca_flwr.maths.krylov import Ritz


class Renewal:
    """Looks out for the round in which that brings the first k vectors to a tolerance.

    Parameters
    ----------
    k : int
    tolerance : float
        Wanted angle, in degrees.
    """

    def __init__(self, k: int, tolerance: float) -> None:
        self.k, self.tolerance = k, tolerance
        self._angle = 90.0

    def wanted(self, ritz: Ritz, *, last: bool) -> bool:
        """Whether it should be asked for next; ``last`` if no further block will tell more.

        Before the residuals are as small as wanted, so that it costs no round: as soon as two more rounds at the
        present rate would do.
        """
        if ritz.values.size <= self.k:
            return False
        angle, wrong = ritz.angles(self.k)
        before, self._angle = self._angle, angle
        mends = wrong > self.tolerance and ritz.error_of(self.k) > 2 * ritz.fine_error
        return mends and (last or angle * (angle / before) ** 2 <= self.tolerance)
