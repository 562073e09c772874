"""What a method says of itself, once, for the code, the tests and the reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field as Limits

from fedpca_flwr.config import Config, Count, Fraction
from fedpca_flwr.contract import Payload


class PCAOptions(Config):
    """Options that every method has."""

    n_components: Annotated[Count | Fraction, Limits(union_mode="left_to_right")] = 10
    """How many components, or the fraction of the variance that they must exceed."""


class CountOptions(PCAOptions):
    """Options of a method that cannot tell in advance how many components a fraction of the variance needs."""

    n_components: Count = 10  # type: ignore[assignment]
    """How many components."""


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Attributes
    ----------
    name : str
        As in ``method='p-cov'``.
    title : str
    exact : bool
        Whether the model equals the PCA of the pooled rows up to rounding.
    rounds : int
        At most so many rounds before the parties project their rows.
    options : type
        The method's own options.
    payloads : mapping of str to Payload
        What a party returns in each phase.
    reference : str
    upload : str
        What a party sends, in float64 values of d features, k components, n rows.
    server_sees : str
    result : str
        What a reader must know of the result besides `exact`.
    in_rounds : str
        What is usual, where `rounds` is only a limit.
    private : bool
        Whether nothing exact may leave a party: then its messages tell no row count, and the last round no squared
        error.
    noised : bool
        Whether all that leaves a party is differentially private.
    split : {"rows", "columns"}
        What the parties' data are: some rows of all features, or all rows of some features.
    exposes : {"", "scores", "inner products"}
        What is shown of single rows, beyond what the model of pooled rows tells: their scores (with products of the
        same kind), or all inner products or distances between them.
    """

    name: str
    title: str
    exact: bool
    rounds: int
    options: type[PCAOptions]
    payloads: Mapping[str, Payload]
    reference: str
    upload: str
    server_sees: str
    result: str = ""
    in_rounds: str = ""
    private: bool = False
    noised: bool = False
    split: Literal["rows", "columns"] = "rows"
    exposes: Literal["", "scores", "inner products"] = ""
