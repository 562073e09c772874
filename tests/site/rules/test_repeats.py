"""What a site's rules refuse, of one run and of what earlier ones leave of its allowances, which stays spent."""

from contextlib import nullcontext
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import check_rows
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.maths.privacy import compose_multipliers, gaussian_epsilon, gaussian_multiplier
from fedpca_flwr.maths.rows import weight_rows
from fedpca_flwr.site.rules import policy
from fedpca_flwr.site.rules.accounts import Release
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.site.rules.journal import FileJournal
from fedpca_flwr.site.rules.repeats import RepeatRules, SelectedRows, require_budget, rows_digest
from fedpca_flwr.site.weights import separate_weights
from fedpca_flwr.strategies import METHODS
from tests.families import rows
from tests.refusals import refused


def node(**rules):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "min-rows": 10, **rules}, source="node-config")


def test_a_limit_itself_is_allowed_and_what_is_beyond_it_refused():
    card, X = METHODS["p-cov"].strategy.card, np.full((20, 2), 8.0)
    rules = node(**{"max-reply-bytes": 100, "max-epsilon": 2.0, "allowed-methods": "p-cov, em", "weights": "2"})
    policy.permit_method(rules, card, sums_only=False)
    weighted, config, order = np.hstack([X, np.ones((20, 1))]), RunConfig(weights="2"), np.arange(20.0)[:, None]
    secure = partial(policy.permit_method, node(**{"secure-only": True}), card)
    for key, permit, limit, beyond in (
        ("min-rows", partial(policy.permit_rows, rules), 10, 9),
        ("max-reply-bytes", lambda nbytes: policy.permit_size(rules, nbytes, lambda limit: ""), 100, 101),
        ("max-epsilon", lambda epsilon: policy.permit_privacy(rules, epsilon, 1.0), 2.0, 2.1),
        ("bound", lambda bound: policy.permit_site_bound(8.0, X, bound), 8.0, 7.9),
        ("min-rows", lambda few: policy.permit_levels(rules, check_rows(1.0 * (order < few), ["a"]), ["a"]), 10, 9),
        ("min-rows", lambda few: separate_weights(check_rows(weighted[:few]), rules, config), 10, 9),
        ("secure-only", lambda sums_only: secure(sums_only=sums_only), True, False),
    ):
        permit(limit)
        with refused(DisclosureError, f"'{key}'"):
            permit(beyond)
    with refused(DataError, "'bound'", 7.9):
        policy.permit_site_bound(7.9, X, 8.0)
    columns, in_weights = ("vertical", {"split": "columns"}), ("p-cov", {"split": "rows", "weights": "2"})
    for rounded, (method, words) in product((2, 10), (columns, in_weights)):
        policy.permit_split(node(), card=METHODS[method].strategy.card, **words)
        with refused(DisclosureError, "'round-rows'", rounded):
            policy.permit_split(node(**{"round-rows": rounded}), card=METHODS[method].strategy.card, **words)


def test_no_answer_is_over_few_rows_whatever_weighs_them():
    """What counts is the number of rows as heavy as the heaviest."""
    for weights, fits in (
        *((np.ones(n), n == 10) for n in (10, 9)),
        (np.full(100, 1e-200), True),
        (0.5 ** np.arange(1000.0), False),
        *((np.r_[np.ones(9), np.full(1000, weight)], weight == 1e-2) for weight in (1e-9, 1e-2)),
        *((np.r_[heavy, np.ones(n)], False) for heavy, n in ((5.0, 44), (1e200, 1000))),
    ):
        with nullcontext() if fits else refused(DisclosureError, "'min-rows'", 10):
            policy.permit_rows(node(**{"min-rows": 10}), len(weights), weights)


FILE, JOURNAL = {"data": "rows.npy"}, {"data": "rows.npy", "journal": "notes"}
DISTRIBUTION, NAMED = {**FILE, "may-show": "distribution"}, {**FILE, "allowed-methods": "some, other"}
SHOWN, BOTH = ("distribution", ""), ("distribution", "distribution")


def test_a_run_shows_no_more_than_a_site_allows():
    for rules, exposes, permitted in (
        ({}, ("scores", "inner products"), True),  # rows that are no site's own
        ({"may-show": "nothing"}, ("scores", ""), False),
        *((FILE, exposes, not any(exposes)) for exposes in (("", ""), SHOWN, SHOWN[::-1])),
        *((DISTRIBUTION, exposes, exposes == BOTH) for exposes in (BOTH, (SHOWN[0], "scores"), ("scores", SHOWN[0]))),
        # who names a method allows what it shows of the distribution, and no more
        *((NAMED, exposes, exposes == SHOWN) for exposes in (SHOWN, BOTH, ("scores", ""))),
    ):
        card = SimpleNamespace(name="some", exposes=exposes[0], beyond_moments="")
        with nullcontext() if permitted else refused(DisclosureError, "'may-show'"):
            policy.permit_exposure(node(**rules), card, SimpleNamespace(exposes=exposes[1]))
    sums = SimpleNamespace(sum_disclosures={"other": "its size", "another": "its mean"})
    for rules, sums_only, unpermitted in (
        *(({}, True, []), (FILE, False, []), (FILE, True, ["'other'", "'another'"]), (NAMED, True, ["'another'"])),
        ({**FILE, "allowed-methods": "some, other, another"}, True, []),
    ):
        with refused(DisclosureError, "'allowed-methods'", *unpermitted) if unpermitted else nullcontext():
            policy.permit_sums(node(**rules), card, sums, sums_only=sums_only)


def test_a_run_is_as_private_as_a_site_demands_and_has_a_journal_and_a_budget():
    for rules, epsilon, delta, key in (
        ({}, 1e3, 0.5, ""),
        ({"max-epsilon": 2.0}, 3.0, 0.5, "max-epsilon"),
        (FILE, 10.0, 1e-5, ""),
        (FILE, 10.1, 1e-5, "max-epsilon"),
        (FILE, 1.0, 1.1e-5, "max-delta"),
        ({**FILE, "max-epsilon": 20.0}, 15.0, 1e-5, ""),  # what the site says stands for what is usual
        ({**FILE, "max-epsilon": 2.0}, 3.0, 1e-5, "max-epsilon"),
        ({**FILE, "max-delta": 1e-3}, 1.0, 1e-4, ""),
        ({**FILE, "max-delta": 1e-7}, 1.0, 1e-6, "max-delta"),
    ):
        with refused(DisclosureError, f"'{key}'") if key else nullcontext():
            policy.permit_privacy(node(**rules), epsilon, delta)
    for own, private, sums_only, need in (
        ({}, True, True, ""),
        *((FILE, *form, "journal" if any(form) else "") for form in product((False, True), repeat=2)),
        *((JOURNAL, *form, "epsilon-budget" if form[0] else "") for form in ((False, True), (True, False))),
        ({**JOURNAL, "epsilon-budget": 1.0}, True, False, ""),
    ):
        card = SimpleNamespace(name="some", differentially_private=private)
        with refused(ConfigError, f"'{need}'") if need else nullcontext():
            policy.require_journal(node(**own), card, sums_only=sums_only)
    for key, value in (("epsilon-budget", 1.0), ("metrics", "numbers"), ("ledger", "ledger.json")):
        with refused(ConfigError, key, "'journal'"):
            node(**{key: value})


def test_all_files_that_a_site_could_not_write_are_named(tmp_path):
    (tmp_path / "file").touch()
    scores, loadings = (str(tmp_path / "file" / name) for name in ("scores.npy", "loadings.npz"))
    (tmp_path / "model.npz").mkdir()
    for unwritable in (scores, *(str(tmp_path / f"scores.{suffix}") for suffix in ("txt", "eigenvec"))):
        with refused(ConfigError, "'scores'", "'loadings'", "'model'"):
            policy.require_files(node(scores=unwritable, loadings=loadings, model=str(tmp_path)))
    policy.require_files(node(scores=str(tmp_path / "scores.eigenvec"), data="people.bed"))


@pytest.mark.parametrize(("rounded", "n_excluded", "min_values"), [(1, 0, 10), (10, 0, 13), (1, 4, 14), (10, 4, 23)])
def test_rows_that_take_no_part_may_be_those_with_values(rounded, n_excluded, min_values, monkeypatch):
    """Rounding leaves out 3 of 103 rows: of 13 rows with values, at least 10 are in the sums."""
    rules, every = node(**{"round-rows": rounded}), slice(None)
    monkeypatch.setattr(policy, "PAIR_BLOCK_FEATURES", 1)

    def observed(*places):
        X = np.full((103, len(places)), np.nan)
        for feature, place in enumerate(places):
            X[place, feature] = 1.0
        return check_rows(X)._replace(excluded=np.arange(103) < n_excluded)

    for enough in (0, min_values):
        policy.permit_values(rules, observed(every, slice(enough)))
        policy.permit_pairs(rules, observed(every, slice(50), slice(50 - enough, None)))
    with refused(DisclosureError, "min-rows", 10) as caught:
        policy.permit_values(rules, observed(every, slice(min_values - 1)))
    assert caught.value.local == "columns (from 0): [1]"
    with refused(DisclosureError, "min-rows"):
        policy.permit_pairs(rules, observed(every, slice(50), slice(51 - min_values, None)))


def repeats(folder, run, X, *selection, repeat="refuse"):
    rules = SimpleNamespace(repeat=repeat, min_rows=5, journal="x")
    return RepeatRules(FileJournal(str(folder), run, 0), rules, X, *selection)


@pytest.mark.parametrize("surplus", [1, 4, -4])
def test_nearly_equal_sums_are_refused_below_the_minimum(surplus, tmp_path):
    for run, members in (("1", ["a", "b"]), ("2", ["b", "a"])):  # which have no order
        repeats(tmp_path, run, rows(20)).permit_sum(members, split="rows")
    with refused(DisclosureError, 2):
        repeats(tmp_path, "3", rows(20)).permit_sum(["a", "c"], split="rows")
    with refused(DisclosureError, "'min-rows' = 5"):
        repeats(tmp_path, "4", rows(20 + surplus, seed=1)).permit_sum(["a", "b"], split="rows")
    repeats(tmp_path, "5", rows(25, seed=1)).permit_sum(["a", "b"], split="rows")
    repeats(tmp_path, "6", rows(20 + surplus, seed=1)).permit_sum(["a", "b"], split="columns")


def ask(folder, run, X, *, noted=True, repeat="refuse", **selection):
    """Let a site answer a run in clear; ``selection`` has the weights and columns that the run adds."""
    repeats(folder, run, X, SelectedRows(X, **selection), repeat=repeat).permit_clear(is_noted=noted)


def levels(declared, *cells):
    return {"levels": lambda: (declared, np.array(cells, float)[:, None])}


@pytest.mark.parametrize("change", ["one more", "one less", "one corrected", "another order", "a column more"])
@pytest.mark.parametrize("first", ["clear", "secure"])
def test_nearly_the_same_rows_are_refused_in_clear(first, change, tmp_path):
    X = rows(20)
    other = {"one more": rows(21), "one less": X[1:], "another order": X[::-1], "a column more": np.c_[X, X[:, 0]]}
    other["one corrected"] = X + (np.arange(20) == 7)[:, None]
    if first == "clear":
        ask(tmp_path, "71", X)
    else:
        repeats(tmp_path, "71", X).permit_sum(["a", "b"], split="rows")
    for noted in (False, True):
        with refused(DisclosureError, "'min-rows' = 5", 71):
            ask(tmp_path, "72", other[change], noted=noted)
    with refused(DisclosureError, "'min-rows' = 5", 71):
        repeats(tmp_path, "73", other[change]).permit_sum(["a", "b"], split="rows")
    ask(tmp_path, "74", X)  # the same rows, as often as anybody likes
    repeats(tmp_path, "75", X).permit_sum(["a", "b"], split="rows")
    ask(tmp_path, "76", rows(25))
    ask(tmp_path / "2", "1", X, noted=False)  # only told beforehand, which does not count
    ask(tmp_path / "2", "2", rows(21))
    with refused(DisclosureError, "'min-rows' = 5", 2):
        ask(tmp_path / "2", "1", X)


def test_other_weights_of_the_same_rows_are_refused(tmp_path):
    X, unit_weights, weights, half = rows(20), np.ones(20).tobytes(), np.arange(1.0, 21.0), [0, 1] * 9
    for rule in ("refuse", "refuse-same"):
        run = partial(ask, tmp_path / rule, X=X, repeat=rule)
        run("1")
        with refused(DisclosureError, "'weights'", 1):
            run("2", weights=unit_weights)
        for number in ("3", "4"):
            run(number, **levels("{a}", *half, 0, 1))  # whose moments without the levels are those of run 1
        run("9")  # nor the other way round
        for number, other in (("5", levels("{b}", *half, 0, 1)), ("6", levels("{a}", *half, 1, 1))):
            with refused(DisclosureError, "'levels'", 3):
                run(number, **other)
    ask(tmp_path / "refuse-same", "7", X, repeat="allow", weights=unit_weights)
    weighted = weight_rows(X, weights), weight_rows(X, weights[::-1])
    assert len({rows_digest(b"key", weighting) for weighting in (X, *weighted)}) == 3
    gaps, run = rows(20), partial(ask, tmp_path / "gaps", by_gaps=True)
    gaps[:10, 0] = np.nan
    run("1", gaps)
    run("2", np.vstack([gaps[10:], rows(20, seed=1)]))  # no row with the same gaps
    with refused(DisclosureError, "'min-rows' = 5"):  # a row more with the same gaps
        run("3", np.vstack([gaps, gaps[:1] + 1, rows(25, seed=1)]))


def test_bounds_count_once_a_run(tmp_path):
    X = np.full((20, 2), 8.0)
    for bound in (11.0, 10.0, 9.0):
        repeats(tmp_path, "1", X).permit_bound(bound)
    repeats(tmp_path, "2", X[:19]).permit_bound(10.0)
    for run, rows_of_run in (("1", X), ("3", X[:19])):
        with refused(DisclosureError, 3, "'bound'"):
            repeats(tmp_path, run, rows_of_run).permit_bound(8.5)
    repeats(tmp_path, "4", X).permit_bound(9.0)  # whose answer was had
    for bound in (1.0, 2.0, 3.0, 4.0):  # each beyond the one before, so each tells something new
        with refused(DisclosureError if bound == 4 else DataError, "'bound'"):
            repeats(tmp_path / "2", str(bound), X).permit_bound(bound)


@pytest.mark.parametrize(
    ("kind", "permit"), [("harmonised", RepeatRules.permit_slopes), ("blind", RepeatRules.permit_blind)]
)
def test_what_a_journal_holds_of_the_same_rows_refuses_another_choice(kind, permit, tmp_path):
    """Events by another name would lose what the journals of earlier versions hold."""
    X, journal = rows(20), FileJournal(str(tmp_path), "1", 0)
    journal.remember(kind, rows_digest(journal.data_key, X), lambda same, rest: "before")
    with refused(DisclosureError, "repeat='allow'"):
        permit(repeats(tmp_path, "2", X), "now")
    permit(repeats(tmp_path, "3", X), "before")
    permit(repeats(tmp_path, "4", X[1:]), "now")
    permit(repeats(tmp_path, "5", X, repeat="allow"), "now")


def test_a_budget_is_spent_to_its_end_and_not_beyond(tmp_path):
    """A run counts with its total, even after a part, together with the releases of other runs."""
    total, earlier = 2.0, [3.0, 4.0]
    spent = gaussian_epsilon(compose_multipliers([*earlier, total]), 1e-5)
    budget = {"run_multipliers": [9.0], "other_multipliers": earlier, "total_multiplier": total, "delta": 1e-5}
    require_budget(8.0, **budget, epsilon=spent)
    before = gaussian_epsilon(compose_multipliers(earlier), 1e-5)
    with refused(DisclosureError, "'epsilon-budget'", f"{spent:.4g} at", f"({before:.4g}"):
        require_budget(8.0, **budget, epsilon=spent * (1 - 1e-6))
    unit = gaussian_multiplier(1.0, 1e-5)
    stages = {"centre": unit / 0.05**0.5, "products": unit / 0.95**0.5}

    def release(multiplier, folder=tmp_path, run="1", phase="centre", epsilon=1.0, party=0):
        permit = partial(require_budget, multiplier, total_multiplier=unit, epsilon=epsilon, delta=1e-5)
        FileJournal(str(folder), run, party).record_release(phase, "add-remove", multiplier, permit)

    for phase, multiplier in stages.items():
        release(multiplier, phase=phase)
    for second in ({"run": "2"}, {"party": 1}):
        with refused(DisclosureError, "epsilon-budget", "1.465", "1e-05", 1):
            release(stages["centre"], **second)
    with refused(DisclosureError, "epsilon-budget"):  # no run that cannot end begins
        release(unit * 100, tmp_path / "2", epsilon=0.9)
    recorded = [event[2:6] for event in audit(str(tmp_path)).events]
    accounts = [Release(phase, "add-remove", noise).text() for phase, noise in stages.items()]
    assert recorded == [("1", 0, "release", account) for account in accounts]
    release(stages["centre"], run="2", epsilon=1.5)
