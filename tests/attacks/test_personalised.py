"""`personalised`: a site answers functions of counts, means and scatters of its rows, and its fold never moves."""

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.rows import validation_rows
from fedpca_flwr.protocol.journal import StateJournal
from fedpca_flwr.site.rules.accounts import HeldOut
from fedpca_flwr.site.rules.fold import held_out_rows, require_fold
from fedpca_flwr.site.rules.journal import FileJournal
from fedpca_flwr.strategies.personalised.party import HELD_OUT_PREFIX, PersonalisedClient
from tests.attacks.test_repeats import events, sites
from tests.families import rows
from tests.harness import finish
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed


@pytest.mark.parametrize(("n", "d"), [(60, 8), (25, 40)], ids=["tall", "wide"])
def test_impossible_means_and_components_are_refused(n, d, tmp_path):
    run, z, V = {"method": "personalised", "n-components": 2, "mu": 1.0}, np.zeros(d), np.eye(d, 2)[None]
    for phase, asked in (("product", [np.eye(d, 3), np.full(d, 1e300), z]), ("share", [1e9 * V, np.ones(1), z, z])):
        session = HostileSession(tmp_path / phase, rows(n, d) + 10, run)
        assert session.ask("start", [])[0]
        assert phase == "product" or session.ask("product", [np.eye(d, 3), z, z])[0]
        assert session.refusal(phase, asked).startswith("PartyError")


def test_a_block_of_the_smallest_numbers_rounds_no_row(tmp_path):
    """Beside a feature that is constant, the least positive number gave each row's value rounded to an integer."""
    X = np.random.default_rng(9).standard_normal((40, 6)) * 3
    X[:, 0] = 1.0
    session, z = HostileSession(tmp_path, X, {"method": "personalised", "n-components": 1, "mu": 1.0}), np.zeros(6)
    block = np.zeros((6, 2))
    block[:2, 0], block[1, 1] = (1.0, 5e-324), 5e-324
    product = session.client.statistics("product", {"block": block, "mean": X.mean(axis=0), "remainder": z})["product"]
    assert not product[:, 0].any()
    np.testing.assert_allclose(product[1:, 1], (np.cov(X.T, bias=True) * 40)[1:, 1] * 5e-324, atol=5e-324)


def node_of(**own):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 3, **own}, source="node-config")


def drawn(folder, X, run_id=1, repeat="refuse"):
    node = node_of(data="rows.npy", journal="there", repeat=repeat, **{"min-rows": 5})
    return held_out_rows(FileJournal(str(folder / "journal"), str(run_id), 0), node, X, run_id)


def test_every_run_holds_out_the_same_rows(tmp_path):
    X, order = rows(60, 4), np.random.default_rng(1).permutation(60)
    found = [drawn(tmp_path, X, run_id) for run_id in range(4)]
    assert (found[0].sum(), len({one.tobytes() for one in found})) == (12, 1)
    assert len(events(tmp_path / "journal", HeldOut.kind)) == 1
    assert (drawn(tmp_path, X[order], 99) == found[0][order]).all()
    assert len({drawn(tmp_path / str(site), X).tobytes() for site in range(3)}) == 3  # each site draws its own
    drawn(more := tmp_path / "more", X[:57])
    with refused(DisclosureError, "'mu'", "mu=<number>"):
        drawn(more, X, 2)
    drawn(more, X, 3, "refuse-same")
    drawn(more, rows(65, 4), 4)  # as many more as it answers about
    assert len(events(more / "journal", HeldOut.kind)) == 3


def test_a_site_without_a_journal_and_another_fold_of_the_same_rows_hold_nothing_out(tmp_path, monkeypatch):
    X = rows(60, 4)
    assert (held_out_rows(StateJournal(RecordDict()), node_of(), X, 3) == validation_rows(X, 3)).all()
    session = HostileSession(tmp_path, X, {"method": "personalised", "n-components": 1}, journal="")
    said = session.client.get_properties({})
    assert (said["error"], "'journal'" in said["message"]) == ("ConfigError", True)
    drawn(tmp_path, X)
    # As a later version might draw it.
    monkeypatch.setattr("fedpca_flwr.site.rules.fold.first_fifth", lambda digests: np.arange(60) < 12)
    with refused(DisclosureError, "'mu'"):
        drawn(tmp_path, X, 2, "refuse-same")
    drawn(tmp_path, X, 3, "allow")


@pytest.mark.engine
@pytest.mark.parametrize("secure", [False, True], ids=["clear", "masked"])
def test_runs_with_other_seeds_tell_the_same_two_sums(secure, tmp_path, monkeypatch):
    """41 of 60 rows followed from 20 secure runs whose seeds drew other folds, and all of 14 in clear."""
    options = {"n_components": 1, "iterations": 1, **({"secure_aggregation": True, "bound": 40.0} if secure else {})}
    shown = {"may-show": "distribution", "allowed-methods": "personalised"}
    seen, honest = [], PersonalisedClient.statistics

    def listen(client, phase, asked):
        if phase.endswith(("start", "sums")):
            prefix = HELD_OUT_PREFIX if phase.startswith(HELD_OUT_PREFIX) else ""
            seen.append((client.site.node.partition_id, phase, client.pass_rows(prefix).rows.sum(axis=0).tobytes()))
        return honest(client, phase, asked)

    monkeypatch.setattr(PersonalisedClient, "statistics", listen)
    for seed in range(2):
        parties = [rows(60, 6, seed=i) + i for i in range(3)]
        finish(sites(tmp_path, parties, "personalised", options={**options, "seed": seed}, **shown))
    assert (len(seen), len(set(seen))) == (12, 6)
    assert len(events(tmp_path / "journal0", HeldOut.kind)) == 1


@pytest.mark.parametrize("options", [{}, {"secure-aggregation": True, "bound": 1e4}], ids=["clear", "masked"])
def test_too_few_rows_to_hold_out_are_refused_first(options, tmp_path):
    run = {"method": "personalised", "n-components": 1, **options}
    few, *answered = (
        HostileSession(tmp_path / str(i), rows(n, 4), {**run, **more}, **{"min-rows": 10}).client.get_properties({})
        for i, (n, more) in enumerate([(49, {}), (50, {}), (49, {"mu": 1.0})])
    )
    assert few["error"] == "DisclosureError"
    assert not unnamed(few["message"], "node-config 'min-rows' = 10", "run with mu=<number>")
    assert not any("error" in said for said in answered)
    node = node_of(data="rows.npy", journal="there", **{"min-rows": 2})
    require_fold(node, 4)  # a fifth of these is none
    with refused(DisclosureError, "'min-rows' = 2"):
        require_fold(node, 5)
