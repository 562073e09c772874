"""Accounts: the contents of a journal's events about rows, releases and sums (`fedpca_flwr.site.repeats`)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import override

from fedpca_flwr.state.store import DamageError

Count = Annotated[int, Field(ge=0, le=2**62)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Account:
    """Base of the records that a site's journal stores about rows, releases and sums, as JSON."""

    kind: ClassVar[str]  # of the events
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", alias_generator=lambda name: name.replace("_", " ")
    )

    def text(self) -> str:
        """Return the account as JSON for the journal, without empty fields."""
        return json.dumps({name.replace("_", " "): value for name, value in asdict(self).items() if value != ""})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the account of this class that a journal stores as JSON."""
        try:
            account: Self = VALIDATORS[cls.kind].validate_json(text)
            return account
        except ValueError:
            raise DamageError(f"an event of kind '{cls.kind}' does not hold what this version writes there") from None

    def sentence(self) -> str:
        """Return the account as words for a reader of the journal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Release(Account):
    """Account of a reply with noise: its phase, noise multiplier, and relation of neighbouring data sets.

    Parameters
    ----------
    phase : str
        Question that was answered with noise.
    relation : str
        Relation of neighbouring data sets: replace-one or add-remove.
    multiplier : float
        Standard deviation of the noise over the sensitivity.
    """

    kind = "release"
    phase: str
    relation: str
    multiplier: Finite

    @override
    def sentence(self) -> str:
        """Return phase, noise multiplier and neighbouring relation as words for a reader of the journal."""
        return f"{self.phase}, noise multiplier {self.multiplier:.6g}, {self.relation}"


@dataclass(frozen=True)
class HeldOut(Account):
    """Account of how many rows a site held out of some sums, with a digest of the set of the rows.

    Parameters
    ----------
    rows : int
        Number of all rows.
    held_out : int
        Number of held-out rows.
    subset : str
        Digest of the held-out rows.
    """

    kind = "held out"
    rows: Count
    held_out: Count
    subset: str

    @override
    def sentence(self) -> str:
        """Return the numbers of held-out rows and of all rows as words for a reader of the journal."""
        return f"{self.held_out} of {self.rows} rows held out"


@dataclass(frozen=True)
class OpenedSum(Account):
    """Account of a sum that reaches the server: secure and over several parties, or in clear from this site.

    Parameters
    ----------
    members : sequence of str
        Parties of the sum, sorted, in words that mean the same in every run; empty: an answer in clear.
    rows : int
        Number of this site's rows.
    weights : str
        Digest of the rows' weights; empty: each row counts once.
    levels : str
        Digest of the levels that the run declares and of the rows' levels; empty: none.
    """

    kind = "opened"
    members: Sequence[str]
    rows: Count
    weights: str = ""  # their digest; empty: each row counts once
    levels: str = ""  # digest of the levels that the run has declared, and of what rows have of them; empty: none

    @override
    def sentence(self) -> str:
        """Return the number of rows, and of parties in the sum, as words for a reader of the journal."""
        return f"{self.rows} rows {f'in a sum over {len(self.members)} parties' if self.members else 'in clear'}"


@dataclass(frozen=True)
class BoundAnswer(Account):
    """Account of an answer whether all values of this site's rows are at most a bound in absolute value.

    Parameters
    ----------
    bound : float
        The bound of the run.
    within : bool
        Whether no value is larger in size.
    """

    kind = "bound"
    bound: Finite
    within: bool

    @override
    def sentence(self) -> str:
        """Return whether the rows are within the bound as words for a reader of the journal."""
        return f"rows {'within' if self.within else 'beyond'} {self.bound:g}"

    def implies(self, bound: float) -> bool:
        """Return whether this answer already shows whether the rows are within another bound."""
        return self.bound <= bound if self.within else bound <= self.bound


ACCOUNTS: dict[str, type[Account]] = {kind.kind: kind for kind in (Release, HeldOut, OpenedSum, BoundAnswer)}
VALIDATORS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in ACCOUNTS.items()}


def event_text(kind: str, text: str) -> str:
    """Return the text of a journal's event in words; JSON of an account is turned into a sentence."""
    try:
        return ACCOUNTS[kind].parse(text).sentence() if kind in ACCOUNTS else text
    except DamageError:
        return text
