"""Graph of parties that share masks: complete up to `MAX_COMPLETE_PARTIES`, else random and chosen by no party.

Bell, Bonawitz, Gascon, Lepoint and Raykova, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (CCS
2020): masks with O(log K) neighbours hide what masks with all K parties hide while the honest parties are connected in
the graph of neighbours. They are but with probability 2^-40 where at most two thirds of the parties collude with the
server (`fedpca_flwr.maths.secure`), and did so before the graph was known.

The graph is a ring in an order that follows from all public keys of the run, and each party derives it itself. So that
nobody can choose a key for the order that it gives, a party first commits to its key (SHA-256), and opens the
commitment once it has those of all. A server that shows parties different commitments gets an order for each list; all
these together have no more arcs in the mean than the one list, since an arc must lie among those that were shown its
list.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.secure import min_degree
from fedpca_flwr.transports.pairwise_masks import digest_pieces, keystream
from fedpca_flwr.transports.signed import NO_ANSWER_TEXT

MAX_COMPLETE_PARTIES = 50
"""Largest number of parties for which masks with every other party cost less than one more round."""

MAX_COLLUDING_SHARE = Fraction(2, 3)
"""Largest share of the parties that may collude with the server."""

SECURITY_BITS = 40
"""The honest parties are apart with a probability of at most 2^-40."""


@lru_cache
def degree(parties: int) -> int:
    """Return the number of other parties with whom each party shares masks: all, or an even number of them."""
    if parties <= MAX_COMPLETE_PARTIES:
        return parties - 1
    return min(min_degree(parties, int(MAX_COLLUDING_SHARE * parties), SECURITY_BITS), parties - 1)


def commitment(party: int, public: bytes) -> bytes:
    """Return the hash of a party's number and public key, which commits the party to the key and hides the key."""
    return hashlib.sha256(b"fedpca commitment" + party.to_bytes(8, "little") + public).digest()


def require_opened(commitments: Sequence[bytes], publics: Sequence[bytes]) -> None:
    """Raise DisclosureError, with the parties, if public keys differ from the commitments in the same order."""
    opened = enumerate(zip(commitments, publics, strict=True))
    mismatched = [str(party) for party, (committed, public) in opened if commitment(party, public) != committed]
    if mismatched:
        raise DisclosureError(
            f"the public keys of parties {', '.join(mismatched)} are not those to which they committed before they "
            f"saw the others': by such keys the server could choose who shares masks with whom; {NO_ANSWER_TEXT}"
        )


def graph_seed(context: bytes, publics: Sequence[bytes]) -> bytes:
    """Return the hash of the run and all public keys that seeds the random ring of parties."""
    return digest_pieces(b"fedpca neighbours", context, b"".join(publics))


def neighbours(seed: bytes, parties: int, party: int) -> list[int]:
    """Return the partitions, sorted, with whom a party shares masks: the nearest on a ring ordered by ChaCha20."""
    words = np.frombuffer(keystream(seed).update(bytes(16 * parties)), "<u8").reshape(parties, 2)
    order = np.lexsort(words.T)
    position, half = int(np.flatnonzero(order == party)[0]), degree(parties) // 2
    sides = [*range(position - half, position), *range(position + 1, position + half + 1)]
    return sorted(int(order[side % parties]) for side in sides)
