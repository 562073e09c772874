"""What earlier runs leave of a site's allowances, in closed form."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.errors import DataError, DisclosureError
from fedpca_flwr.maths.privacy import composed, gaussian_epsilon
from fedpca_flwr.site.journal import FileJournal
from fedpca_flwr.site.repeats import Bounded, Repeats, require_budget, rows_digest
from tests.families import rows
from tests.refusals import refused


def repeats(folder, run, X, rule="refuse"):
    return Repeats(FileJournal(str(folder), run, 0), SimpleNamespace(repeat=rule, min_rows=5, journal="x"), X)


@pytest.mark.parametrize("more", [1, 4, -4])
def test_a_sum_over_nearly_the_same_rows_is_refused_below_the_minimum_only(more, tmp_path):
    repeats(tmp_path, "1", rows(20)).permit_sum(["a", "b"], split="rows")
    with refused(DisclosureError, "'min-rows' = 5"):
        repeats(tmp_path, "2", rows(20 + more, seed=1)).permit_sum(["a", "b"], split="rows")
    repeats(tmp_path, "3", rows(25, seed=1)).permit_sum(["a", "b"], split="rows")


def test_a_sum_with_another_in_the_place_of_a_member_is_refused(tmp_path):
    repeats(tmp_path, "1", rows(20)).permit_sum(["a", "b"], split="rows")
    repeats(tmp_path, "2", rows(20)).permit_sum(["b", "a"], split="rows")
    with refused(DisclosureError, 2):
        repeats(tmp_path, "3", rows(20)).permit_sum(["a", "c"], split="rows")


@pytest.mark.parametrize(("within", "told", "open_"), [(True, (5.0, 6.0), 4.0), (False, (5.0, 4.0), 6.0)])
def test_of_which_bounds_one_tells(within, told, open_):
    known = Bounded(5.0, within)
    assert all(known.tells(bound) for bound in told)
    assert not known.tells(open_)


def test_a_site_tells_of_three_bounds(tmp_path):
    X = np.full((20, 2), 8.0)
    for run, bound in enumerate((5, 7)):
        with refused(DataError, "'bound'", bound):
            repeats(tmp_path, str(run), X).permit_bound(bound)
    repeats(tmp_path, "2", X).permit_bound(8.0)
    repeats(tmp_path, "3", X).permit_bound(9.0)
    with refused(DisclosureError, 3, "'bound'"):
        repeats(tmp_path, "4", X).permit_bound(7.5)


def test_a_budget_is_spent_to_its_end_and_not_beyond():
    """Of a run its whole, though it has told a part; with what others have told."""
    whole, others = 2.0, [3.0, 4.0]
    spent = gaussian_epsilon(composed([*others, whole]), 1e-5)
    given = {"of_run": [9.0], "of_others": others, "whole_run": whole, "delta": 1e-5}
    require_budget(8.0, **given, epsilon=spent)
    with refused(DisclosureError, "'epsilon-budget'"):
        require_budget(8.0, **given, epsilon=spent * (1 - 1e-6))


def test_rows_are_known_by_their_shape_and_values_alone():
    X = rows(6, 4)
    known = rows_digest(b"key", X)
    assert rows_digest(b"key", np.asfortranarray(X)) == known
    whole = np.round(X)
    assert rows_digest(b"key", whole.astype(np.float32)) == rows_digest(b"key", whole + 0.0)
    assert len({known, rows_digest(b"other", X), rows_digest(b"key", X.reshape(8, 3))}) == 3
