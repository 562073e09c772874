"""Accounts: the contents of a journal's events about rows, releases and sums (`fedpca_flwr.site.rules.repeats`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import override

from fedpca_flwr.state.store import DamageError

Count = Annotated[int, Field(ge=0, le=2**62)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Account:
    """Base of the records about rows, releases and sums, which a site's journal stores as JSON."""

    kind: ClassVar[str]  # of the events
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", alias_generator=lambda name: name.replace("_", " ")
    )

    def text(self) -> str:
        """Return the account as JSON without what is empty, with spaces in place of underscores in the names."""
        values = {name.replace("_", " "): value for name, value in asdict(self).items()}
        return json.dumps({name: value for name, value in values.items() if value not in ("", {})})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the JSON that `text` writes into an account of this class; raise DamageError for any other content."""
        try:
            account: Self = VALIDATORS[cls.kind].validate_json(text)
            return account
        except ValueError:
            raise DamageError(f"an event of kind '{cls.kind}' does not hold what this version writes there") from None

    def sentence(self) -> str:
        """Describe the account in a phrase for a reader of the journal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Release(Account):
    """Account of a reply with noise."""

    kind = "release"
    phase: str  # question that was answered with noise
    relation: str  # of neighbouring data sets: replace-one or add-remove
    multiplier: Finite  # standard deviation of the noise over the sensitivity

    @override
    def sentence(self) -> str:
        """Describe phase, noise multiplier and neighbouring relation."""
        return f"{self.phase}, noise multiplier {self.multiplier:.6g}, {self.relation}"


@dataclass(frozen=True)
class HeldOut(Account):
    """Account of how many rows a site held out of some sums."""

    kind = "held out"
    rows: Count  # all rows
    held_out: Count
    subset: str  # digest of the set of held-out rows

    @override
    def sentence(self) -> str:
        """Describe the numbers of held-out rows and of all rows."""
        return f"{self.held_out} of {self.rows} rows held out"


@dataclass(frozen=True)
class OpenedSum(Account):
    """Account of a sum that reaches the server: secure and over several parties, or in clear from this site."""

    kind = "opened"
    members: Sequence[str]  # sorted, in words that mean the same in every run; empty: an answer in clear
    rows: Count  # of this site
    weights: str = ""  # their digest; empty: each row counts once
    levels: str = ""  # digest of the levels that the run has declared, and of what rows have of them; empty: none
    groups: Mapping[str, tuple[Count, str]] = field(default_factory=dict)
    """Number and digest of rows with the same gaps, by the keyed digest of these, if answers may tell their sums."""

    @override
    def sentence(self) -> str:
        """Describe the number of rows, and of parties in the sum."""
        return f"{self.rows} rows {f'in a sum over {len(self.members)} parties' if self.members else 'in clear'}"


@dataclass(frozen=True)
class BoundAnswer(Account):
    """Account of an answer whether all values of this site's rows are at most a bound in absolute value."""

    kind = "bound"
    bound: Finite
    within: bool

    @override
    def sentence(self) -> str:
        """Describe whether the rows are within the bound."""
        return f"rows {'within' if self.within else 'beyond'} {self.bound:g}"

    def implies(self, bound: float) -> bool:
        """Return whether this answer decides another bound: within a smaller bound, or beyond a larger one."""
        return self.bound <= bound if self.within else bound <= self.bound


ACCOUNTS: dict[str, type[Account]] = {kind.kind: kind for kind in (Release, HeldOut, OpenedSum, BoundAnswer)}
VALIDATORS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in ACCOUNTS.items()}


def event_text(kind: str, text: str) -> str:
    """Describe the content of an event; without an account of this kind, or if damaged, return the content itself."""
    try:
        return ACCOUNTS[kind].parse(text).sentence() if kind in ACCOUNTS else text
    except DamageError:
        return text
