"""How many neighbours on a ring keep honest parties together, where those who collude stand anywhere on it.

Parties sit on a ring in a random order, and each is tied to the ``k / 2`` next ones on either side: Harary's graph on
permuted places, as in Bell, Bonawitz, Gascon, Lepoint and Raykova, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead (CCS 2020), section 3.3. They bound the probability that the honest are not connected; where
nobody drops out it follows exactly. Two honest parties with only colluders between them are tied unless these are
``k / 2`` or more, a *gap*. One gap leaves a path; two or more cut the honest into arcs.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from math import comb


def expected_arcs(parties: int, colluding: int, degree: int) -> Fraction:
    """Mean number of arcs of honest parties from one gap to another one, a bound on the probability of any.

    The h honest parties leave h intervals between them, over which the colluders are spread, every way as likely as
    every other (stars and bars). For each of the h (h - 1) ordered pairs of intervals the probability that both
    are gaps is that of the ways in which these hold ``k / 2`` colluders each and the rest is anywhere.

    Parameters
    ----------
    parties, colluding : int
    degree : int
        k, even.
    """
    honest, free = parties - colluding, colluding - degree
    if honest < 2 or free < 0:
        return Fraction(0)
    ways = comb(free + honest - 1, honest - 1)
    return Fraction(honest * (honest - 1) * ways, comb(colluding + honest - 1, honest - 1))


def least_degree(parties: int, colluding: int, bits: int) -> int:
    """The smallest even degree with which fewer than ``2**-bits`` arcs are expected."""
    return next(k for k in count(2, 2) if expected_arcs(parties, colluding, k) * 2**bits <= 1)
