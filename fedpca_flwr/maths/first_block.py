r"""What a random first block S shows of eigenvectors, as a thick restart gives up a part of the span that held it.

Every eigenvector x of :math:`\lambda` obeys :math:`(\lambda - \theta_i) u_i^T x = r_i^T x` for each Ritz pair, and the
residuals of a block Krylov space are :math:`R = V C`, with V the next block. So the Ritz vectors that are given up,
whose values :math:`\theta_i` lie below :math:`\lambda`, show of x what V shows::

    S'x = S(lambda)'x,    S(lambda) = U U'S + V C (lambda - T)^-1 W'S

with U the Ritz vectors that are kept, and W, T those that are not: again a block in the span, which depends on the
eigenvalue. The same holds for S(lambda) at the next restart. Nothing of it is as large as a vector of features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import KnownProducts, Ritz

BASIS_BYTES = 2**30
"""Of an orthonormal basis and its products: a longer one is restarted."""


@dataclass(frozen=True)
class Restart:
    """One restart of m Ritz vectors.

    Attributes
    ----------
    turn : ndarray of shape (m, c)
        From coordinates of the block before to coordinates of these Ritz vectors.
    values : ndarray of shape (g,)
        Of those that are given up, the last ones.
    into : ndarray of shape (b, g)
        C: what their residuals have of the next block.
    wrong : float
        Bound on what else is in their residuals (spectral norm).
    place : ndarray of shape (m - g + b, b)
        Where the next block lies in the basis.
    outside : float
        How much of it does not, as it was rounded on its way.
    """

    turn: Array
    values: Array
    into: Array
    wrong: float
    place: Array
    outside: float = 0.0


class FirstBlock:
    """A random block (d, b), as it was asked."""

    def __init__(self, block: Array) -> None:
        self.block, self.columns = block, block.shape[1]
        self.restarts: list[Restart] = []
        self._outside = 0.0
        self._next: Array | None = None
        self._last: tuple[Ritz, Array, float] | None = None  # before any restart

    def seen(self, ritz: Ritz, eigenvalue: float) -> tuple[Array, float]:
        """What S(eigenvalue) has of each Ritz vector, (m, b), and a bound on what it has besides (spectral norm).

        ``eigenvalue`` is larger than all Ritz values that were given up.
        """
        if not self.restarts:
            if self._last is None or self._last[0] is not ritz:
                seen = ritz.vectors.T @ self.block
                self._last = ritz, seen, float(np.linalg.norm(self.block - ritz.vectors @ seen))
            return self._last[1:]
        assert ritz.rotation is not None
        held, outside = np.eye(self.columns), self._outside
        for restart in self.restarts:
            seen = restart.turn @ held
            kept = len(seen) - restart.values.size
            shown = seen[kept:] / (eigenvalue - restart.values)[:, None]
            into = restart.into @ shown
            outside += restart.wrong * float(np.linalg.norm(shown, 2))
            outside += restart.outside * float(np.linalg.norm(into, 2))
            held = restart.place @ into
            held[:kept] += seen[:kept]
        return ritz.rotation[: len(held)].T @ held, outside

    def make_room(self, known: KnownProducts, ritz: Ritz, block: Array, k: int) -> None:
        """Restart a basis that would be too long with the next block (d, b)."""
        most, kept = columns_kept(len(block), k, self.columns)
        if known.Q.shape[1] + block.shape[1] > most:
            self.restart(ritz, kept, block)
            known.keep(ritz, kept)

    def restart(self, ritz: Ritz, kept: int, block: Array) -> None:
        """All Ritz vectors but the first are given up, and ``block`` (d, b) is asked next."""
        residuals = ritz.residuals[:, kept:]
        into = block.T @ residuals
        wrong = float(np.linalg.norm(residuals - block @ into, 2)) + ritz.error
        if self.restarts:
            assert ritz.rotation is not None
            turn = ritz.rotation[: len(self.restarts[-1].place)].T
        else:
            turn, self._outside = self.seen(ritz, np.inf)
            self.block, self._last = np.empty((len(block), 0)), None
        self.restarts.append(Restart(turn, ritz.values[kept:], into, wrong, np.empty((0, 0))))
        self._next = block

    def asked(self, known: KnownProducts) -> None:
        """The product with that block is ``known``."""
        if self._next is not None:
            place = known.Q.T @ self._next
            outside = float(np.linalg.norm(self._next - known.Q @ place))
            self.restarts[-1] = replace(self.restarts[-1], place=place, outside=outside)
            self._next = None


def columns_kept(d: int, k: int, width: int) -> tuple[int, int]:
    """At most so many columns has a basis of vectors of length d, and so many after a restart.

    Ten blocks at least: what the first block shows is lost where restarts follow each other closely.
    """
    most = max(BASIS_BYTES // (2 * np.float64().nbytes * d), 2 * k + 10 * width)
    return most, most // 2
