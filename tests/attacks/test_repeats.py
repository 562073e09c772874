"""Several runs over the same rows tell nothing by their differences; and ways round a site's rules that were open."""

import shutil
import sqlite3
from contextlib import closing, nullcontext
from functools import partial
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import encoded
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.site import local_table
from fedpca_flwr.site.readers import files as readers
from fedpca_flwr.site.rules.repeats import MAX_BOUND_ANSWERS, rows_digest
from fedpca_flwr.transports.identity import make_key
from tests.families import cut, rows
from tests.harness import at_sites, context_of, finish, proxy_of, server_of, sites_of, tamper
from tests.hostile import HostileSession, keys_of
from tests.refusals import refused, unnamed

SECURE = {"n_components": 4, "secure_aggregation": True, "bound": 20.0}
SURVIVING = {**SECURE, "survivors": 3}
PARTIES = cut(rows(250, 4) + 2, 100, 80, 50, 20)
THREE = PARTIES[:3]


def sites(folder, parties, method="p-cov", *, options=SECURE, **node):
    """Return a run of sites with a file and a journal each, which they keep from run to run."""
    nodes = sites_of(folder, parties, **{"min-parties": 2, **node})
    return at_sites(server_of(method, parties, **{**options, "min_rows": 10}), nodes)


def without(server, party):
    proxy_of(server, party).fit = Mock(side_effect=TimeoutError("no reply within its deadline of 1 s"))
    return server


def replies_to(server, phase):
    replies = []
    for party in range(len(server.client_manager().all())):
        tamper(server, party, lambda reply: replies.append(reply) or reply, phase)
    return replies


def events(folder, kind):
    with closing(sqlite3.connect(folder / "site.sqlite")) as database:
        return database.execute("SELECT about, digest FROM event WHERE kind = ?", (kind,)).fetchall()


@pytest.fixture(scope="module")
def first_sum(tmp_path_factory):
    finish(sites(folder := tmp_path_factory.mktemp("first sum"), THREE))
    return folder


@pytest.fixture
def summed(first_sum, tmp_path):
    return shutil.copytree(first_sum, tmp_path, dirs_exist_ok=True)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("parties", "others", "options"),
    [(PARTIES[1:], PARTIES[1:3], SECURE), (PARTIES, PARTIES, SURVIVING)],
    ids=["masked", "surviving"],
)
def test_without_the_rule_two_sums_reveal_a_share(tmp_path, parties, others, options):
    """The attack, by the code that people run."""
    whole, again = (sites(tmp_path, there, options=options, repeat="allow") for there in (parties, others))
    sums = []  # of models with all components: rows, the rows' sum, and that of their products
    for model in (finish(whole), finish(without(again, 3) if parties is others else again)):
        count, scatter = model.n_samples_, (model.components_.T * model.explained_variance_) @ model.components_
        sums.append((count, count * model.mean_, (count - 1) * scatter + count * np.outer(model.mean_, model.mean_)))
    n, total, square = (mine - other for mine, other in zip(*sums, strict=True))
    assert n == 20
    np.testing.assert_allclose(total / n, parties[-1].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(square / n - np.outer(total, total) / n**2, np.cov(parties[-1].T, bias=True), atol=1e-11)


COLUMNS = [np.ascontiguousarray(part) for part in np.split(rows(20, 9), [4, 7], axis=1)]
SHIFTED, OTHER_COLUMNS = ([part + 1 for part in parties] for parties in (THREE, COLUMNS))
RUNS = {
    "another method": ([(THREE, "ap-cov"), (THREE[:2], "sub-it")], {}),
    "another, personalised": ([(THREE, "personalised mu=1.0"), (THREE[:2], "ap-cov")], {}),
    "batches": ([(THREE, "p-cov"), (SHIFTED, "p-cov"), (THREE[:2], "p-cov")], {"repeat": "refuse-same"}),
    # A sum of columns over as many other rows is answered: there, every party has as many.
    "columns": (
        [(COLUMNS, "vertical"), (OTHER_COLUMNS, "vertical"), (OTHER_COLUMNS[:2], "vertical solver=gram")],
        {"split": "columns", "may-show": "inner products", "allowed-methods": ""},
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize(("runs", "node"), RUNS.values(), ids=RUNS)
def test_a_second_sum_without_a_party_is_refused(tmp_path, runs, node):
    given = {"options": {**SECURE, "n_components": 2}, "allowed-methods": "p-cov ap-cov sub-it personalised", **node}
    for run in runs[:-1]:
        finish(sites(tmp_path, *run, **given))
    with refused(DisclosureError, "client 0", 3):
        finish(sites(tmp_path, *runs[-1], **given))


@pytest.mark.engine
def test_every_site_refuses_and_tells_nothing_but_why(summed):
    """Nobody sends a word of the second sum, whoever is asked first; the text holds no number of rows."""
    replies = replies_to(server := sites(summed, THREE[:2]), "moments")
    with pytest.raises(DisclosureError):
        finish(server)
    (text,) = {reply.metrics["message"] for reply in replies}
    assert [reply.parameters.tensors for reply in replies] == [[]] * 2
    assert unnamed(text, *map(len, PARTIES)) == [len(part) for part in PARTIES]


@pytest.mark.engine
def test_sums_of_other_survivors_are_refused_first(tmp_path):
    finish(sites(tmp_path, PARTIES, options=SURVIVING))
    server = without(sites(tmp_path, PARTIES, options=SURVIVING), 3)
    replies = replies_to(server, "reveal")
    with refused(DisclosureError, 4, 3):
        finish(server)
    assert [(reply.metrics["error"], reply.parameters.tensors) for reply in replies] == [("DisclosureError", [])] * 3
    # Four sums of three of four parties each are four equations for four shares; the same three tell nothing new.
    for _ in range(2):
        finish(without(sites(tmp_path / "2", PARTIES, options=SURVIVING), 3))
    with refused(DisclosureError, "client 0", 3):
        finish(without(sites(tmp_path / "2", PARTIES, options=SURVIVING), 2))


def test_a_sum_with_a_replaced_member_is_refused(summed):
    """As many parties, by the same numbers: the keys in the sites' lists say that one is another."""
    server, own = sites(summed, THREE), str(summed / "another")
    lines = Path(context_of(server, 0).node_config["identities"]).read_text(encoding="utf-8").splitlines()
    (summed / "list").write_text("\n".join([*lines[:2], make_key(own, 2)]))
    for party in range(3):
        context_of(server, party).node_config["identities"] = str(summed / "list")
    context_of(server, 2).node_config["identity"] = own
    with refused(DisclosureError, "client 0", 3):
        finish(server)


@pytest.mark.engine
@pytest.mark.parametrize(("parties", "options"), [(THREE, SECURE), (PARTIES, SURVIVING)], ids=["masked", "surviving"])
def test_the_same_parties_may_ask_for_as_much_as_they_like(tmp_path, parties, options):
    """What their sums tell is of all of them together; and a run that nobody joined tells nothing."""
    with refused(DisclosureError, "min-parties"):
        finish(sites(tmp_path, parties[:-1], **{"min-parties": 4}))
    finish(sites(tmp_path, parties, options=options))
    finish(sites(tmp_path, parties, "ap-cov", options={**options, "n_components": 1}, **{"allowed-methods": "ap-cov"}))
    assert len(events(tmp_path / "journal0", "opened")) == 1


@pytest.mark.engine
def test_runs_that_tell_no_share_are_not_refused(summed):
    # What a release costs is in the ledger, whoever else is in the sum.
    options = {"secure_aggregation": True, "n_components": 2, "noise_seed": 0, "release": "joint", "clip": 5.0}
    for parties in (THREE, THREE[:2]):
        finish(sites(summed / "2", parties, "dp-pca", options=options, **{"epsilon-budget": 10.0}))
    assert events(summed / "2" / "journal0", "opened") == []
    finish(sites(summed, [np.vstack([THREE[0], THREE[0][:10] + 1]), *THREE[1:]]))


def test_a_sum_over_nearly_the_same_rows_is_refused(summed):
    """One row more at one site, and the difference of two sums is that row; or less of the rows used."""
    for own, node in ((np.vstack([THREE[0], THREE[0][:1] + 1]), {}), (THREE[0], {"round-rows": 8})):
        with refused(DisclosureError, "client 0"):
            finish(sites(summed, [own, *THREE[1:]], **node))


def test_equal_numbers_are_equal_rows_in_any_storage():
    own, key = np.arange(12.0).reshape(4, 3) - 5, b"k" * 32
    same = [own.astype(np.float32), np.asfortranarray(own), own.astype(np.int8), np.where(own == 0, -0.0, own)]
    assert {rows_digest(key, other) for other in same} == {rows_digest(key, own)}
    others = [own[::-1], own.reshape(3, 4), own[:3], own + 1e-12]
    assert len({rows_digest(key, other) for other in [own, *others]}) == 5
    assert rows_digest(b"l" * 32, own) != rows_digest(key, own)


@pytest.mark.engine
def test_no_run_changes_the_digest_of_rows_that_it_puts_in_order(tmp_path):
    """Ids are ordered by digests with the run's seed for salt."""
    parties, nodes = np.split(rows(40, 9), [4, 6], axis=1), []
    people = pd.Index([f"p{row}" for row in range(40)], name="id")
    for party, part in enumerate(parties):
        pd.DataFrame(part, people, [f"c{column}" for column in range(part.shape[1])]).to_csv(tmp_path / f"{party}.csv")
        files = {"data": str(tmp_path / f"{party}.csv"), "journal": str(tmp_path / f"journal{party}")}
        nodes.append({**files, "ids": "id", "split": "columns", "may-show": "inner products"})
    for seed in (1, 2):
        finish(at_sites(server_of("vertical", parties, **{**SECURE, "n_components": 1}, seed=seed), nodes))
    assert len(events(tmp_path / "journal0", "opened")) == 1


def first_answer(folder, own, run_id, method="p-cov", *, frame=None, run=MappingProxyType({}), **node):
    """Return what a site in clear replies to a run's first question: whether it answers, and what is said beside."""
    session = HostileSession(folder, own, {"method": method, "n-components": 2, **run}, run_id=run_id, **node)
    if frame is not None:
        frame.to_csv(folder / "rows.csv", index=False)
        session.context.node_config["data"] = str(folder / "rows.csv")
    arrays, said = session.ask(next(iter(session.client.script)), [])
    return bool(arrays), said.get("message", "")


@pytest.mark.parametrize("second", ["p-cov", "sub-it", "qr-pca", "ap-stack", "em"])
def test_a_row_less_is_refused_by_any_method(second, tmp_path):
    X = rows(200, 4) + 2
    asked = [(X, 11), (X, 12, second), (X[1:], 13, second), (X[1:], 14, second), (X, 15, second)]
    answers = [first_answer(tmp_path, *given) for given in asked]
    assert [answered for answered, _ in answers] == [True, True, False, False, True]
    assert ["run 11 of 2" in said for _, said in answers] == [False, False, True, True, False]
    assert len(events(tmp_path / "journal", "opened")) == 1


def test_answers_with_and_without_weights_are_not_both_had(tmp_path):
    """A row of weight 0 was the difference of the two."""
    X = np.column_stack([rows(200, 4) + 2, np.arange(200) != 123])
    weights = {"weights": "4"}
    for runs in (({}, weights, {}), (weights, {}, weights)):
        answers = [first_answer(tmp_path / str(runs), X, i, run=run, **weights) for i, run in enumerate(runs, start=1)]
        assert [answered for answered, _ in answers] == [True, False, True]
        assert "run 1 of 2" in answers[1][1]


def test_levels_may_be_left_out_and_not_be_others_and_a_site_without_a_journal_warns(tmp_path, caplog):
    table = pd.DataFrame(rows(90, 2), columns=["a", "b"]).assign(kind=[*"xyz"] * 30)
    given = {"frame": table, "categories": "kind", "method": "p-cov scale=true"}
    declared = [{}, {"levels": '{"kind": ["x", "y", "z"]}'}, {"levels": '{"kind": ["x"]}'}]
    answered = [first_answer(tmp_path, rows(9), 1 + i, run=run, **given)[0] for i, run in enumerate(declared)]
    assert answered == [True, True, False]
    given["frame"] = table.assign(kind=[*"xxz", *"xyz" * 29])  # one cell corrected
    assert not first_answer(tmp_path, rows(9), 4, run=declared[1], **given)[0]
    assert "nothing protects its rows over several runs" not in caplog.text
    assert first_answer(tmp_path, rows(200, 4), 5, journal="")[0]
    assert "nothing protects its rows over several runs" in caplog.text


def at_bound(folder, bound, /, **node):
    """Let two sites be asked to join a run with a bound: whoever may not take part in it says so here."""
    server = sites(folder, THREE[:2], options={**SECURE, "bound": bound}, **node)
    server.strategy.quorum.gather(server.client_manager())


def largest_by_bisection(folder, **node):
    """Return the interval in which the server knows the largest value of site 1 after 12 runs, and its refusals."""
    low, high, refused = 0.0, 2.0**12, 0
    for _ in range(12):
        bound = (low + high) / 2
        try:
            at_bound(folder, bound, **node)
            high = bound
        except DataError:
            low = bound
        except DisclosureError:
            refused += 1
    return low, high, refused


@pytest.mark.engine
def test_runs_learn_few_bits_of_the_largest_value(tmp_path):
    low, high, refused = largest_by_bisection(tmp_path, repeat="allow")
    assert low < max(np.abs(part).max() for part in THREE[:2]) <= high
    assert (high - low, refused) == (1.0, 0)
    low, high, refused = largest_by_bisection(tmp_path / "2")
    assert (high - low, refused) == (2.0 ** (12 - MAX_BOUND_ANSWERS), 12 - MAX_BOUND_ANSWERS)
    assert largest_by_bisection(tmp_path / "3", bound=2.0**10) == (0.0, 2.0**10, 10)


@pytest.mark.engine
def test_bounds_that_tell_nothing_new_are_not_counted(tmp_path):
    """Larger than one that was accepted, or not larger than one that was not."""
    run = partial(at_bound, tmp_path)
    for bound in (100.0, 100.0, 200.0, 300.0, 400.0, 1.0, 0.5, 0.25, 1.0, 50.0):
        with refused(DataError, "'bound'", f"{bound:g}") if bound <= 1 else nullcontext():
            run(bound)
    with refused(DisclosureError, "'bound'", MAX_BOUND_ANSWERS):
        run(40.0)
    run(60.0)
    assert len(events(tmp_path / "journal0", "bound")) == MAX_BOUND_ANSWERS
    run(40.0, repeat="allow")
    run(40.0)


@pytest.mark.engine
def test_a_public_bound_is_answered_whatever_was_tried_before(tmp_path):
    """Three tiny bounds locked a site out of secure sums until somebody changed its node-config."""
    for bound in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3):
        with refused(DisclosureError, "'bound'", 1000):
            at_bound(tmp_path, bound, bound=1000.0)
    for bound in (1000.0, 2000.0):
        finish(sites(tmp_path, THREE[:2], options={**SECURE, "bound": bound}, bound=1000.0))
    said = set()
    for bound in (0.5, 7.0, 2.0**30):
        with refused(DataError, "'bound'", 0.5) as caught:
            at_bound(tmp_path, bound, bound=0.5)
        said.add(str(caught.value))
    assert len(said) == 1
    assert events(tmp_path / "journal0", "bound") == []
    # It could not remember how often it did.
    with refused(ConfigError, "'journal'"):
        finish(sites(tmp_path / "2", THREE[:2], options={**SECURE, "bound": 0.1}, journal=""))


@pytest.mark.engine
def test_the_journal_tells_nothing_of_the_rows(summed):
    finish(sites(summed / "twin", THREE))
    ((about, own),), ((same, twin),) = (events(folder / "journal0", "opened") for folder in (summed, summed / "twin"))
    assert about == same
    assert own != twin
    content = (summed / "journal0" / "site.sqlite").read_bytes()
    assert not any(np.float64(value).tobytes() in content for value in THREE[0].ravel())


SUMS = {"n-components": 2, "secure-aggregation": True, "bound": 100.0}
MASKED = {**SUMS, "method": "sub-it", "n-components": 1, "block-size": 2, "max-rounds": 9}


def together(folder, run, *, run_id=1):
    """Three sites of a masked run that have exchanged their keys, and sent what comes before the scatter."""
    session = [HostileSession(folder / str(i), rows(60, 4, seed=i), run, index=i, run_id=run_id) for i in range(3)]
    keys = keys_of(session)
    assert all(site.ask("sums" if run is MASKED else "moments", keys)[0] for site in session)
    return session


def test_two_chips_do_not_isolate_a_shared_person(tmp_path):
    """Each variant was typed in 41 people; every pair across the two chips in one, whose products the scatter is."""
    G = np.random.default_rng(0).binomial(2, 0.4, (81, 12)).astype(float)
    G[:40, 6:] = G[40:80, :6] = np.nan
    run, node = {"method": "p-cov", "n-components": 2, "genotypes": True}, {"min-rows": 10, "gaps": "all"}
    refusal = HostileSession(tmp_path / "shared", G, run, **node).refusal("alleles", [])
    assert "pairs of features that have values together in fewer rows" in refusal
    G[80] = np.nan  # nobody on both: the pair tells nothing
    assert HostileSession(tmp_path / "apart", G[:80], run, **node).ask("alleles", [])[0]


@pytest.mark.parametrize("rare", [1, 4, 9])
@pytest.mark.parametrize("empty", [0, 3, 11])
def test_runs_of_other_levels_differ_by_many_rows(rare, empty):
    """Their sums would differ by the sums over these rows: of a level that one row has, by the row."""
    cells = ["a"] * 40 + ["b"] * 25 + ["c"] * 12 + ["d"] * 10 + ["x"] * rare + ["y"] * (rare - 1) + [None] * empty
    frame = pd.DataFrame({"kind": cells})
    declared = [own for size in range(1, 7) for own in combinations("abcdxy", size)]
    tables = [np.asarray(encoded(frame, {"kind": own}, "site", min_rows=10).rows) for own in declared]
    seen = np.unique(np.hstack(tables), axis=1).astype(int).T
    apart = (seen[:, None] > seen[None]).sum(axis=2)  # rows in one indicator, and not in the other
    assert seen.sum(axis=1).max() > 10
    assert not ((apart > 0) & (apart < 10)).any()


def test_a_file_that_gains_a_row_during_a_run_ends_it_and_is_another_while_it_is_read(tmp_path, monkeypatch):
    """The difference of two sums of the same block was that row, also where both had the same digest."""
    asking, asked = together(tmp_path, MASKED), [np.zeros(4), np.full(4, 100.0)]
    assert all(site.ask("product", [*asked, np.eye(4)[:, :2]])[0] for site in asking)
    np.save(tmp_path / "1" / "rows.npy", np.vstack([rows(60, 4, seed=1), rows(1, 4, seed=9)]))
    assert [bool(site.ask("product", [*asked, np.eye(4)[:, 2:]])[0]) for site in asking] == [True, False, True]
    file, honest = tmp_path / "rows.npy", readers.read
    np.save(file, rows(60, 4))

    def overtaken(*given, **more):
        table = honest(*given, **more)
        np.save(file, rows(61, 4))
        return table

    monkeypatch.setattr(local_table, "read", overtaken)
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file)})
    first, then = (local_table.local_table(node, RunConfig()).digest for _ in range(2))
    assert first != then


@pytest.mark.engine
def test_other_slopes_for_the_same_rows_are_refused(tmp_path):
    """What is divided by each party's own deviations is no sum of shares: a few such sums told every share."""
    run = {**SUMS, "method": "p-cov", "harmonise": "variances", "adjust-for": "0"}
    for run_id, slope in ((1, 0.25), (2, 0.25), (3, 0.5)):
        asked = [np.array([[0.0, slope, 0.0, 0.0]]), np.full(4, 3.0)]
        for site in together(tmp_path, run, run_id=run_id):
            assert bool(site.ask("harmonised", asked)[0]) == (slope == 0.25)


@pytest.mark.parametrize(("repeat", "sets"), [("refuse", 1), ("refuse-same", 4)])
def test_a_row_more_does_not_buy_more_bounds(repeat, sets, tmp_path):
    """Unless the site says that such rows are all new."""
    answered = 0
    for number in range(4 * MAX_BOUND_ANSWERS):
        X = np.vstack([rows(60, 3), np.zeros((number // MAX_BOUND_ANSWERS, 3))])
        run = {**SUMS, "method": "p-cov", "bound": 100.0 - number}
        session = HostileSession(tmp_path, X, run, run_id=number + 1, repeat=repeat)
        answered += "error" not in session.client.get_properties({})
    assert answered == sets * MAX_BOUND_ANSWERS


@pytest.mark.parametrize("columns", [3, 4, 20])
def test_em_answers_no_more_directions_than_the_run_has_factors(columns, tmp_path):
    """With as many as features the products were the whole expected covariance."""
    X = rows(60, 20)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    site = HostileSession(tmp_path, X, {"method": "em", "n-components": 2, "model": "factors", "factors": 3})
    _, _, values, totals = site.ask("observed", [])[0]
    asked = [np.asarray(60), totals / values]
    assert site.ask("deviations", asked)[0]
    asked += [np.ones(20), np.zeros(20), np.eye(20)[:, :columns], np.full(columns, 2.0), np.asarray(1.0)]
    assert bool(site.ask("products", asked)[0]) == (columns <= 3)
