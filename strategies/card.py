"""What a method says of itself, once, for the code, the tests and the reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field as Limits

from fedpca_flwr.config import Config, Count, Fraction
from fedpca_flwr.contract import Payload


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Attributes
    ----------
    name : str
        As in ``method='p-cov'``.
    title : str
    exact : bool
        Whether the model equals the PCA of the pooled rows up to rounding.
    summable : bool
        Whether the server needs only the sum of the replies.
    rounds : int
        At most so many rounds before the parties project their rows.
    payloads : mapping of str to Payload
        What a party returns in each phase.
    reference : str
    """

    name: str
    title: str
    exact: bool
    summable: bool
    rounds: int
    payloads: Mapping[str, Payload]
    reference: str

    def upload(self, phase: str, *, d: int, k: int) -> int:
        """Bytes that one party sends in a phase, before anything is sent."""
        return self.payloads[phase].nbytes({"d": d, "k": k})


class PCAOptions(Config):
    """Options that every method has."""

    n_components: Annotated[Count | Fraction, Limits(union_mode="left_to_right")] = 10
    """How many components, or the fraction of the variance that they must exceed."""
