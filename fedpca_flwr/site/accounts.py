"""Accounts: the contents of a journal's events about rows, releases and sums (`fedpca_flwr.site.repeats`)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from typing_extensions import override


@dataclass(frozen=True)
class Account:
    """Content of a journal's event, which the journal stores as JSON with the names of the fields."""

    kind: ClassVar[str]  # of the events

    def text(self) -> str:
        """Format the account as JSON without its empty fields.

        Returns
        -------
        str
            JSON, with spaces in place of underscores in the names.
        """
        return json.dumps({name.replace("_", " "): value for name, value in asdict(self).items() if value != ""})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an account from the text of an event.

        Parameters
        ----------
        text : str
            JSON as `text` writes.

        Returns
        -------
        Account
            The account.
        """
        return cls(**{name.replace(" ", "_"): value for name, value in json.loads(text).items()})

    def sentence(self) -> str:
        """Describe the account for people.

        Returns
        -------
        str
            A phrase.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Release(Account):
    """A noisy reply.

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
    multiplier: float

    @override
    def sentence(self) -> str:
        return f"{self.phase}, noise multiplier {self.multiplier:.6g}, {self.relation}"


@dataclass(frozen=True)
class HeldOut(Account):
    """Rows that were held out of some sums (`fedpca_flwr.site.fold`).

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
    rows: int
    held_out: int
    subset: str

    @override
    def sentence(self) -> str:
        return f"{self.held_out} of {self.rows} rows held out"


@dataclass(frozen=True)
class OpenedSum(Account):
    """A secure sum that may contain this site's rows, or an answer in clear, which has this site's rows alone.

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
    rows: int
    weights: str = ""  # their digest; empty: each row counts once
    levels: str = ""  # digest of the levels that the run has declared, and of what rows have of them; empty: none

    @override
    def sentence(self) -> str:
        return f"{self.rows} rows {f'in a sum over {len(self.members)} parties' if self.members else 'in clear'}"


@dataclass(frozen=True)
class BoundAnswer(Account):
    """An answer to whether this site's rows are within a bound.

    Parameters
    ----------
    bound : float
        The bound of the run.
    within : bool
        Whether no value is larger in size.
    """

    kind = "bound"
    bound: float
    within: bool

    @override
    def sentence(self) -> str:
        return f"rows {'within' if self.within else 'beyond'} {self.bound:g}"

    def implies(self, bound: float) -> bool:
        """Check that this answer implies the answer about another bound.

        Parameters
        ----------
        bound : float
            The other bound.

        Returns
        -------
        bool
            Whether the other answer follows.
        """
        return self.bound <= bound if self.within else bound <= self.bound


ACCOUNTS: dict[str, type[Account]] = {kind.kind: kind for kind in (Release, HeldOut, OpenedSum, BoundAnswer)}


def event_text(kind: str, text: str) -> str:
    """Describe an event of a journal for people.

    Parameters
    ----------
    kind : str
        Kind of the event.
    text : str
        Content of the event.

    Returns
    -------
    str
        A phrase; the content itself if its kind has no account.
    """
    return ACCOUNTS[kind].parse(text).sentence() if kind in ACCOUNTS else text
