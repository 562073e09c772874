"""Block iteration: eigenpairs of a symmetric matrix from a product with a block at a time, to a certified angle.

The matrix :math:`A` (d x d, positive semidefinite) is known only through products with blocks. Block Krylov with
Rayleigh-Ritz keeps the span of all blocks (`fedpca_flwr.maths.krylov`), and restarts a basis that is too long; the
plain iteration keeps the last block only; from an approximation, each block corrects the approximation
(`fedpca_flwr.maths.refine`). One loop serves all::

    iteration = BlockIteration(random_block(d, b, seed), k, trace=trace)
    while not iteration.add(iteration.block, A @ iteration.block):
        pass

The certificate is the sine theorem with a bound on eigenvalue k + 1 (`fedpca_flwr.maths.angle_bounds`). A random block
of more than k columns misses nothing. With a narrower block, eigenvalues that occur more often than the block has
columns could hide: nothing is certified before a fresh block found none in the rest of the matrix.

With ``noise`` the iteration also ends when the components above the edge of the noise are certified, and it is certain
that no other of the k is above the edge (`fedpca_flwr.maths.marchenko_pastur`).
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from scipy.linalg import qr

from fedpca_flwr.maths.angle_bounds import AngleBounds, Probe, describe_cuts
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES, Eigenpairs, certificate_text, principal_angles
from fedpca_flwr.maths.krylov import FirstBlock, ProductBasis, Renewal, Ritz
from fedpca_flwr.maths.marchenko_pastur import MarchenkoPastur
from fedpca_flwr.maths.refine import RefinedSketch

MAX_IDLE_ROUNDS = 3  # in a row, after which residuals that no longer fall are taken for the error of the products


class BlockIteration:
    """An iteration for the k largest eigenvalues of a positive semidefinite matrix ``A`` (d x d).

    It starts from independent random numbers (d, b) of variance 1/3 or more, or from an approximation of ``A`` with
    blocks of `width` columns. It ends at a tolerance in degrees; with `noise`, the law of the noise, also once the
    components above its edge are certified. It is block Krylov if `accelerated`, else the plain iteration. Products
    that are `rounded` have few digits, and can be had again in all of float64. `determined_count` is the number of
    components above a tie at the cut whose variance is not lost in rounding.
    """

    pairs: Eigenpairs  # the first k so far
    block: Array  # (d, b <= width) to multiply next, orthonormal but for the first; empty once the span is everything
    renewal_vectors: Array | None  # (d, k), orthonormal: their product is needed in float64
    product_count: int
    above_edge: int  # leading components that are certified to be above the noise; 0 while this is not certain
    proven: bool  # whether the last bound presumes nothing; else eigenvalues may hide
    ritz: Ritz

    def __init__(
        self,
        start: Array | RefinedSketch,
        k: int,
        *,
        width: int = 0,
        trace: float,
        tolerance: float = EXACT_ANGLE_DEGREES,
        accelerated: bool = True,
        noise: MarchenkoPastur | None = None,
        rounded: bool = False,
    ) -> None:
        self.k, self.tolerance, self.accelerated = k, tolerance, accelerated
        self._sketch = start if isinstance(start, RefinedSketch) else None
        if isinstance(start, RefinedSketch):
            self.products, self.width = start.products, width
            self.block, self.pairs = start.next_block(width), start.leading(k)
        else:
            self.products, self.width, self.block = ProductBasis(len(start)), start.shape[1], start
        self._unit = 1.0 if self._sketch else 2.0 ** np.frexp(trace)[1]  # squares of eigenvalues may overflow
        self._trace = trace / self._unit
        self._start = FirstBlock(self.block)
        self._angles = AngleBounds(k, self._trace, accelerated=accelerated, sketch=self._sketch)
        self._noise, self.above_edge = noise, 0
        self._renewal = Renewal(k, tolerance) if rounded else None
        self.renewal_vectors, self.determined_count = None, k
        self._bound, self.proven = 90.0, False
        self._probe: Probe | None = None
        self.product_count = self._probes = self._idle = 0

    def add(self, V: Array, AV: Array, *, error: float = 0.0, renewal_product: Array | None = None) -> bool:
        """Take a product of the matrix, choose the next `block`, and return whether no further product would help.

        V is `block`, or its rounded copy that was multiplied, and AV the product. `error` bounds the Frobenius norm of
        the product's error besides rounding in float64. `renewal_product` is that with `renewal_vectors`, if there are
        any.
        Shapes: V, AV (d, b), renewal_product (d, k).
        """
        if self._probe is not None:
            return self._add_to_probe(self._probe, V, AV / self._unit, error / self._unit)
        if not self.accelerated:
            self.products = ProductBasis(len(V))
        if not self.product_count:
            self._start = FirstBlock(V)  # as it was asked
        elif self.accelerated and self._sketch is None:
            self._start.make_room(self.products, self.ritz, self.block, self.k)
        self.product_count += 1
        if renewal_product is not None:
            (self._sketch or self.products).renew(self.ritz, renewal_product / self._unit)
        self.products.add(V, AV / self._unit, error=error / self._unit)
        self._start.locate_block(self.products)
        return self._decide(AV / self._unit)

    @property
    def certificate(self) -> float:
        """Bound on the largest angle of the components that float64 determines, in degrees; 90 is no bound.

        Components whose variance float64 cannot tell from that of component k + 1, or from zero, are not determined.
        """
        bound = self._bound  # first: its search says what is proven and determined
        return bound if self.proven and self.determined_count else 90.0

    @property
    def exact(self) -> bool:
        """True if the certificate is that of an exact model."""
        return self.certificate <= EXACT_ANGLE_DEGREES

    @property
    def precision_limited(self) -> bool:
        """True if the products' error makes the certificate large, which no further product mends."""
        return self._idle > 0 and self._bound > self.tolerance and (self._bound < 90 or self._idle > MAX_IDLE_ROUNDS)

    @property
    def allows_float32(self) -> bool:
        """True if the next block may be rounded to float32 before its product, at no loss.

        The plain iteration forgets all but its last block. Narrow blocks build their space over many rounds: rounding
        an early block costs later rounds (Simoncini and Szyld 2003).
        """
        return self.accelerated and self._probe is None and not (self.width <= self.k and self._bound == 90.0)

    @cached_property
    def cuts(self) -> list[tuple[int, float]]:
        """Numbers of leading components that are certified together, with their angles (`AngleBounds.cuts`)."""
        return self._angles.cuts(self.above_edge or self.k - 1, self.tolerance) if self.product_count else []

    @property
    def converged(self) -> bool:
        """True if all components are certified to the tolerance."""
        return self._bound <= self.tolerance and self.proven  # in this order: the bound, once searched, says if so

    def _decide(self, AV: Array) -> bool:
        """Return whether the products suffice; otherwise choose the next block."""
        self.ritz = self.products.ritz()
        self._angles.update(self.products, self.ritz, self._start, self.product_count)
        self._reset_bound()
        self._set_pairs()
        enough = self.ritz.values.size >= self.k
        idle = enough and self.ritz.residual_norm(self.k) <= 2 * self.ritz.error_bound(self.k)
        self._idle = self._idle + 1 if idle and not self._probes else 0  # what hid may take longer to converge
        # in most rounds the residuals alone are larger than the tolerance: the bound is not worth its search
        if enough and (self._probes or self._angles.can_reach(self.tolerance)) and self._bound <= self.tolerance:
            return self.proven or self._begin_probe()
        if self._probes and self._angles.level(self.tolerance) > self._angles.following:
            return self._begin_probe()  # what the first block shows has been found wrong
        if self._noise is not None:
            self.above_edge = self._noise.count_certified(self.ritz, self._trace, self.k, self._angles, self.tolerance)
        self._choose_block(AV)
        nothing_left = self.block.shape[1] == 0 and self.renewal_vectors is None
        return self.precision_limited or self.above_edge > 0 or nothing_left

    def _reset_bound(self) -> None:
        """Discard the certificate of the last round."""
        self.proven, self.determined_count = False, self.k
        for name in ("_bound", "cuts"):
            self.__dict__.pop(name, None)

    @cached_property
    def _bound(self) -> float:
        """Angle bound if no eigenvector hides from the blocks; for tied eigenvalues, to the nearest eigenbasis."""
        if self.ritz.values.size < self.k:
            return 90.0
        bound, self.determined_count = self._angles.leading_bound()
        self.proven = self._angles.proven
        return bound

    def _set_pairs(self) -> None:
        """Set the Ritz pairs, or the sketch's if both are within the bound of each other, which grows by the angle."""
        if self.ritz.values.size >= self.k:
            pairs = self.ritz.pairs(self.k)
            self.pairs = replace(pairs, values=self._unit * pairs.values, following=self._unit * pairs.following)
        if self._sketch is not None:
            better = self._sketch.leading(self.k)
            angle = float(principal_angles(better.vectors, self.ritz.leading_vectors(self.k)).max())
            if angle <= self._bound:
                self.pairs, self._bound = better, min(90.0, self._bound + angle)

    def _choose_block(self, AV: Array) -> None:
        """Set the next `block`, and the `renewal_vectors` (d, k) to ask for anew if their error would soon dominate.

        These are None if it would not. AV (d, b) is the last product; only the plain iteration takes its block from it.
        """
        if not self.accelerated:
            self.block = np.asarray(qr(AV, mode="economic")[0])
        elif self._sketch is not None:
            self.block = self._sketch.next_block(self.width)
        else:
            self.block = self.products.next_block(self.ritz, self.width, self.k)
        self.renewal_vectors = None
        last = self._idle > 0 or self.block.shape[1] == self.products.room
        if self._renewal is not None and self._renewal.is_due(self.ritz, last=last):
            self._idle = 0
            self.renewal_vectors = self.ritz.leading_vectors(self.k)

    def _begin_probe(self) -> bool:
        """Start a probe, a random block that looks for hidden eigenvalues; return False: products do not suffice."""
        last_pair, level = self._angles.last_pair, self._angles.level(self.tolerance)
        self._probe = Probe(self.ritz, last_pair, level, self.width, turn=self._probes)
        self._probes, self.block, self.renewal_vectors = self._probes + 1, self._probe.block, None
        return False

    def _add_to_probe(self, probe: Probe, V: Array, AV: Array, error: float) -> bool:
        """Take the product with a probe's block, end the probe once it decides, and return if products suffice."""
        self.product_count, level = self.product_count + 1, self._angles.level(self.tolerance)
        probe.add(V, AV, error=error)
        if ceilings := probe.ceilings(level):
            self._angles.add_ceilings(ceilings)
            self._probe = None
            self._reset_bound()
            _ = self._bound  # the search for the bound sets `proven`
            return True
        if probe.top_value < level:
            self.block = probe.block
            return False
        self._probe, self.products = None, probe.all_products()
        return self._decide(AV)


def certificate_measurements(iteration: BlockIteration) -> dict[str, float]:
    """Return a finished iteration's certificate by the names of `fedpca_flwr.model.measurements`."""
    degrees, above = iteration.certificate, iteration.above_edge
    if degrees < 90 and not above:
        return {"certified_angle_degrees": degrees, "certified_components": iteration.determined_count}
    first, degrees = iteration.cuts[-1] if iteration.cuts else (0, 90.0)
    measurements = {"certified_angle_degrees": degrees, "certified_components": first}
    return {**measurements, "standing_out_components": above} if above else measurements


def shortfall_notes(iteration: BlockIteration, limit_text: str) -> list[str]:
    """Return notes for the user on why an iteration ended before all components were certified; empty if all were.

    `limit_text` names the limit that ended the iteration if nothing else did, after the words "stopped after".
    """
    if iteration.converged:
        return []
    if iteration.above_edge:
        first, k = iteration.above_edge, iteration.k
        rest = f"component {k} lies" if first + 1 == k else f"components {first + 1} to {k} lie"
        return [f"{first} of {k} components certified: {describe_cuts(iteration.cuts)}; {rest} in the noise"]
    reason = limit_text
    if iteration.precision_limited:
        relative = iteration.ritz.error / float(iteration.ritz.values[0])
        reason = f"reaching the products' precision, {relative:.1g} of the largest variance,"
    elif not iteration.products.room and iteration.accelerated:
        reason = "asking for all directions"
    every = None if iteration.determined_count == iteration.k else iteration.determined_count
    certificate = certificate_text(iteration.certificate, first=every)
    angle = "no bound on the angle" if iteration.certificate >= 90 else f"an angle of {certificate}"
    notes = [f"stopped after {reason} with {angle}; wanted {iteration.tolerance:.2g} degrees"]
    if iteration.certificate >= 90 and iteration.cuts:
        notes.append(f"{iteration.cuts[-1][0]} of {iteration.k} components certified: {describe_cuts(iteration.cuts)}")
    return notes
