"""Rules about repeated runs, because several runs over the same rows reveal more than a single run.

Two answers in clear over rows of which one was removed differ by that row, and so do answers with and without weights.
Two secure sums over the same rows, the second without a party, differ by that party's share. Whether rows are within a
run's `bound` is one bit, and 37 such bits are the largest value to a billionth. Products add up over runs, and enough
of them reveal all inner products. So the journal notes, before a run's first answer and beside a digest of the rows,
what the run was over (`OpenedSum`), which bounds were tried, and what it may ask for. Runs over the same rows with the
same weights and levels, or without levels, have the same moments, and may be repeated at will.

A digest of all rows recognises the same rows, and digests of single rows would let a thief test guesses. So rows that
are not the same count as overlapping if their number is nearly that of earlier rows.

Noisy replies spend a privacy budget. Each is noted before its noise is drawn: phase, noise multiplier, and the relation
of neighbouring data sets. All these are events of the journal, in one chain with the questions and answers, so that
none can go missing while the others stand.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.data.table import columns_text
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.maths.incomplete_rows import rows_by_gaps
from fedpca_flwr.maths.privacy import compose_multipliers, gaussian_epsilon
from fedpca_flwr.maths.rows import Rows, chunks, max_magnitude, row_weights
from fedpca_flwr.protocol.journal import Journal, Note, NoteDecision
from fedpca_flwr.site.rules.accounts import BoundAnswer, OpenedSum


def require_budget(
    multiplier: float,
    run_multipliers: Sequence[float],
    other_multipliers: Sequence[float],
    *,
    total_multiplier: float,
    epsilon: float,
    delta: float,
) -> None:
    """Raise DisclosureError if a noisy release would raise epsilon over all runs above the site's budget `epsilon`.

    ``total_multiplier`` is that of all phases of the run together: a run that cannot end need not begin.
    """
    run_multiplier = min(total_multiplier, compose_multipliers([*run_multipliers, multiplier]))
    spent = gaussian_epsilon(compose_multipliers(other_multipliers), delta)
    after = gaussian_epsilon(compose_multipliers([*other_multipliers, run_multiplier]), delta)
    if after > epsilon * (1 + 1e-9):
        raise DisclosureError(
            f"this site's privacy budget does not allow the run: with this run epsilon would be {after:.4g} at delta "
            f"{delta:g} ({spent:.4g} without this run), but the site allows {epsilon:g} (node-config 'epsilon-budget')"
        )


PRODUCTS_KIND = "products"  # of the journal's events that count products, and name that a counted run has stored
CLEAR_NAME, DIGEST_NAME = "clear", "digest of rows"  # that a run has stored: its answer is noted, and of its rows
MAX_BOUND_ANSWERS = 3  # to whether rows are within a bound, apart from those that follow from earlier answers
ALLOW_ADVICE = ". If this site is content with that, set repeat='allow' in its node-config"


def rows_digest(key: bytes, rows: Rows) -> str:
    """Return the HMAC-SHA256, in hexadecimal, of rows (n, d) as float64, of any dtype and layout, and their weights."""
    mac = hmac.new(key, f"{rows.shape}".encode(), "sha256")
    if (weights := row_weights(rows)) is not None:
        mac.update(weights.tobytes())
    for chunk in chunks(rows):
        mac.update(np.add(chunk, 0.0, dtype=np.float64, order="C"))  # also makes -0.0 zero
    return mac.hexdigest()


def decide_once(node: NodeConfig, entry: str, judge: Callable[[Sequence[Note], Sequence[Note]], None]) -> NoteDecision:
    """Return a function for `Journal.remember` that notes a new entry, unless `judge` refuses by other notes."""

    def decide(same: Sequence[Note], other_notes: Sequence[Note]) -> str:
        """Call `judge` according to the site's key `repeat`, and return the entry, or "" if it is already noted."""
        if node.repeat != "allow":
            judge(same, other_notes if node.repeat == "refuse" else [])
        return "" if entry in [note.content for note in same] else entry

    return decide


@dataclass(frozen=True)
class SelectedRows:
    """Rows of a site that take part, and separately their weights and indicator columns."""

    rows: Rows  # (n, d), without weights and without the columns that the run's `levels` have added
    weights: bytes = b""  # of the rows; empty if each counts once
    levels: Callable[[], tuple[str, Rows]] | None = None  # returns the text of levels, and their columns (n, m)
    name: str = ""  # of the selection within the run; empty for all rows that take part
    by_gaps: bool = False  # whether answers may tell the sums of each group of rows with the same gaps

    def opened_sum(self, key: bytes, members: Sequence[str]) -> OpenedSum:
        """Return the account of a sum of ``members`` (empty: an answer in clear) over the rows, with keyed digests."""
        levels = ""
        if self.levels:
            declared, indicators = self.levels()  # the run-config's text of levels, and the columns that these add
            levels = hmac.new(key, f"{declared} {rows_digest(key, indicators)}".encode(), "sha256").hexdigest()
        weights = hmac.new(key, self.weights, "sha256").hexdigest() if self.weights else ""
        groups = {
            hmac.new(key, gaps, "sha256").hexdigest(): (len(rows), rows_digest(key, rows))
            for gaps, rows in (rows_by_gaps(self.rows) if self.by_gaps else ())
        }
        return OpenedSum(sorted(members), len(self.rows), weights, levels, groups)


UNPROTECTED_TEXT = (
    "this site's node-config names no 'journal', so nothing protects its rows over several runs in clear: if a row is "
    "added, removed or corrected between two runs, their difference is that row"
)


def _require_same_choices(now: OpenedSum, earlier: OpenedSum, note: Note) -> None:
    """Raise DisclosureError for the same rows, but other parties, weights or levels, than before."""
    if earlier.members and now.members and earlier.members != now.members:
        raise DisclosureError(
            f"this site's rows were in a secure sum over {len(earlier.members)} parties already, and this sum is over "
            f"{len(now.members)} parties that are not the same ({_run_text(note)}): the difference of the two sums "
            "would show the part of the parties that are in only one sum. Run with the same parties" + ALLOW_ADVICE
        )
    if earlier.weights != now.weights:
        raise DisclosureError(
            f"this site has answered about the same rows with other weights, or without weights ({_run_text(note)}): "
            "the difference of the two answers would show the rows whose weights differ, perhaps a single row. Run "
            "with the same 'weights'" + ALLOW_ADVICE
        )
    if earlier.levels and now.levels and earlier.levels != now.levels:
        raise DisclosureError(
            f"this site has answered about the same rows with other levels of their categories ({_run_text(note)}): "
            "the difference of the two answers would show the rows whose levels differ, perhaps a single row. Run "
            "with the same 'levels', or without 'levels'" + ALLOW_ADVICE
        )


def _require_distinct_rows(now: OpenedSum, earlier: OpenedSum, note: Note, min_rows: int) -> None:
    """Raise DisclosureError if the number of rows, or of rows with the same gaps, changed by less than `min-rows`."""
    groups = [(earlier.groups[gaps], now.groups[gaps]) for gaps in earlier.groups.keys() & now.groups.keys()]
    changes = [(earlier.rows, now.rows), *((before[0], after[0]) for before, after in groups if before != after)]
    if any(abs(before - after) < min_rows for before, after in changes):
        where = "a secure sum" if earlier.members else "an answer in clear"
        raise DisclosureError(
            f"this site's rows, or those with the same gaps, were in {where} already but for a few, it may be fewer "
            f"than its own minimum (node-config 'min-rows' = {min_rows}; {_run_text(note)}): the difference of the two "
            "would be those few. Wait until more are new; if all are, and happen to be as many, set "
            "repeat='refuse-same' in its node-config"
        )


def _run_text(note: Note) -> str:
    """Return number and date of the run that wrote a note, for error texts."""
    return f"run {note.run} of {note.time[:10]}"


class RepeatRules:
    """Rules of a site that compare a run with earlier runs over the same or nearly the same rows.

    The rows (n, d) are in the site's order. ``selection`` has them before the run weighs rows and adds columns.
    """

    def __init__(self, journal: Journal, node: NodeConfig, rows: Rows, selection: SelectedRows | None = None) -> None:
        self.journal, self.node, self.rows = journal, node, rows
        self.selection = selection or SelectedRows(rows)

    def permit_clear(self, *, is_noted: bool) -> bool:
        """Return whether the run's answer had no note yet; write one if `is_noted`, or raise DisclosureError."""
        name = f"{CLEAR_NAME} {self.selection.name}"
        if self.journal.load_secret(name) is not None:
            return False
        self.permit_sum([], split="rows", is_noted=is_noted)
        if is_noted:
            self.journal.store_secret(name, b"noted")
        return True

    def permit_sum(self, members: Sequence[str], *, split: str, is_noted: bool = True) -> None:
        """Note a sum if `is_noted`; raise DisclosureError if with earlier ones it reveals a party's share or few rows.

        ``members`` mean the same in every run, none for an answer in clear. A journal without a key compares nothing.
        """
        key = self.journal.data_key
        if not key:  # a simulation, or a site without a journal
            return
        now = self.selection.opened_sum(key, members)

        def judge(same: Sequence[Note], near: Sequence[Note]) -> None:
            """Raise DisclosureError for other parties, weights or levels of the same rows, and nearly equal rows."""
            for note in same:
                _require_same_choices(now, OpenedSum.parse(note.content), note)
            for note in near if split == "rows" else ():
                _require_distinct_rows(now, OpenedSum.parse(note.content), note, self.node.min_rows)

        def decide(same: Sequence[Note], other_notes: Sequence[Note]) -> str:
            """Return the new entry for the journal, or "" if known or not to be noted."""
            entry = decide_once(self.node, now.text(), judge)(same, other_notes)
            return entry if is_noted else ""

        name = f"{DIGEST_NAME} {self.selection.name}"
        digest = self.journal.load_secret(name)  # once a run
        if digest is None:
            digest = rows_digest(key, self.selection.rows).encode()
            self.journal.store_secret(name, digest)
        self.journal.remember(OpenedSum.kind, digest.decode(), decide)

    def permit_bound(self, bound: float, names: Sequence[str] = ()) -> None:
        """Note the answer; raise DataError for rows beyond the bound, DisclosureError after `MAX_BOUND_ANSWERS`."""
        now, node = BoundAnswer(bound, within=max_magnitude(self.rows) <= bound), self.node

        def decide(same: Sequence[Note], other_notes: Sequence[Note]) -> str:
            """Return the answer to note, or "" if earlier ones imply it; raise DisclosureError for too many bounds."""
            earlier_answers = [BoundAnswer.parse(note.content) for note in same]
            if any(earlier.implies(bound) for earlier in earlier_answers):
                return ""
            near = other_notes if node.repeat == "refuse" else []
            tried = {BoundAnswer.parse(note.content).bound for note in (*same, *near)} - {bound}
            if node.repeat != "allow" and max(len(earlier_answers), len(tried)) >= MAX_BOUND_ANSWERS:
                raise DisclosureError(
                    f"this site has told of {MAX_BOUND_ANSWERS} values of 'bound' whether its rows are within them, "
                    "and does not answer again: enough such answers would show its largest value. Run with a 'bound' "
                    "that the site has accepted; a generous 'bound' costs nothing" + ALLOW_ADVICE
                )
            return now.text()

        bound_text = repr(bound).encode()
        if self.journal.data_key and self.journal.load_secret("bound") != bound_text:  # else this run was told
            self._remember(BoundAnswer.kind, decide)
            self.journal.store_secret("bound", bound_text)
        if not now.within:
            fault = f"this site's data have values larger in size than the run's 'bound' = {bound:g}"
            columns = np.any([(abs(X) > bound).any(axis=0) for X in chunks(self.rows)], axis=0)
            raise DataError(f"{fault}; run with a larger 'bound'", local=columns_text(columns, names))

    def permit_slopes(self, slopes_digest: str) -> None:
        """Raise DisclosureError for other slopes over the same rows: several harmonised sums reveal every share."""
        self._require_same(
            "harmonised",
            slopes_digest,
            lambda note: (
                "this site's rows were in a secure sum with harmonise='variances' and other slopes or deviations: "
                "several such sums together would show each party's part. Run with the same 'adjust-for' and 'bound'"
            ),
        )

    def permit_blind(self, settings: str) -> None:
        """Raise DisclosureError for a blind run with other settings: two spectra of rows give squared loadings."""
        self._require_same(
            "blind",
            settings,
            lambda note: (
                f"this site's rows were in a blind run with other settings ({_run_text(note)}): the variances "
                "of both runs together would show squared loadings. Run with the same options and keys; "
                "'n-components' and 'seed' may differ"
            ),
        )

    def permit_products(self, product_columns: int, *, columns: int, is_counted: bool) -> None:
        """Raise DisclosureError if products with ``X X'`` over all runs could reveal all inner products.

        ``product_columns`` is the most that the run may ask for; ``columns`` are the site's own, in a sum those of
        others too. With ``is_counted`` the journal counts them. Raise ConfigError without a journal.
        """
        rank = min(len(self.rows) - 1, columns)

        def decide(same: Sequence[Note], other_notes: Sequence[Note]) -> str:
            """Return the note, "" if not counted; raise DisclosureError if all columns reach the rank of the rows."""
            earlier_columns = sum(int(note.content.partition(" ")[0]) for note in same)
            if earlier_columns + product_columns >= rank:
                earlier = f" (earlier runs over the same rows for {earlier_columns})" if earlier_columns else ""
                raise DisclosureError(
                    f"the run may ask for {product_columns} columns of products{earlier}, and {rank} tell all inner "
                    f"products of the rows ({len(self.rows)} rows, {columns} columns); this site allows scores only. "
                    "Lower what the run may ask for ('max-rounds' times 'block-size', 'rank' or 'n-components') below "
                    f"{rank - earlier_columns}, or set may-show='inner products' in the node-config"
                    + (ALLOW_ADVICE if earlier_columns else "")
                )
            return f"{product_columns} columns of products" if is_counted else ""

        decide([], [])
        if self.node.repeat == "allow":
            return
        if not self.node.journal:
            raise ConfigError(
                "this site's node-config names no 'journal', the folder in which a site counts the questions "
                "about its rows; with may-show='scores' a site needs a journal"
            )
        if self.journal.load_secret(PRODUCTS_KIND) is None:  # else this run is counted
            self._remember(PRODUCTS_KIND, decide)
            if is_counted:
                self.journal.store_secret(PRODUCTS_KIND, b"counted")

    def _require_same(self, kind: str, entry: str, fault: Callable[[Note], str]) -> None:
        """Note an entry, if the journal has a key; raise DisclosureError if the same rows have a note of another."""

        def judge(same: Sequence[Note], near: Sequence[Note]) -> None:
            """Raise DisclosureError, with the text of `fault`, for the first note of another entry."""
            for note in same:
                if note.content != entry:
                    raise DisclosureError(fault(note) + ALLOW_ADVICE)

        if self.journal.data_key:
            self._remember(kind, decide_once(self.node, entry, judge))

    def _remember(self, kind: str, decide: NoteDecision) -> None:
        """Note the decision in the journal under the digest of the run's rows."""
        self.journal.remember(kind, rows_digest(self.journal.data_key, self.rows), decide)
