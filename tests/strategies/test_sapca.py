"""SPCA and SAPCA: exact where nothing is truncated, star and tree alike; else bounded; and a model that runs on."""

import itertools
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, QuorumError
from fedpca_flwr.maths.eigen import principal_angles as angles_of
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.strategies.sapca.method import sends_at_level, tree_levels
from fedpca_flwr.strategies.sapca.stream_state import RunningModel
from fedpca_flwr.strategies.sapca.streams import merge, track
from tests.families import cut, rows
from tests.harness import fail_at, finish, say, server_of, tamper_arrays
from tests.hostile import HostileSession
from tests.killed import STEPS, dies
from tests.refusals import refused, unnamed
from tests.strategies.dp_pca.test_dp_noise import ask

FILE = "running-model.sqlite"
SAPCA_ONLY = {"min-rows": 20, "allowed-methods": "sapca"}
TOO_FEW, ENOUGH = ([(199, 1e-200), (1, 0.5), (7, 0.5)], [(100, 1e-200), (1, 0.99), (199, 1.0)])


def fit(parties, method="spca", **options):
    return run(method, parties, **{"min_rows": 1, "n_components": 5, **options})


def parties(*sizes, seed=0, d=12):
    return cut(rows(sum(sizes), d, seed=seed) + np.arange(d), *sizes)


@pytest.mark.parametrize("fan_in", [2, 3, 4])
@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
def test_parties_of_a_tree_send_once(number, fan_in):
    levels = tree_levels(number, fan_in)
    senders = [p for level in range(levels) for p in range(number) if sends_at_level(p, level, number, fan_in)]
    assert sorted(senders) == list(range(number))
    assert levels == max(1, int(np.ceil(np.log(number) / np.log(fan_in) - 1e-9)))
    parts = parties(*[40] * number, d=30)
    model = fit(parts, tracked=10, topology="tree", fan_in=fan_in)
    expected = merge([track(part, 5, tracked=10) for part in parts], 10, batch=fan_in)
    assert angles_of(model.components_.T, expected.vectors[:, :5]).max() < 1e-6
    assert angles_of(fit(parts, tracked=10, merge_batch=fan_in).components_.T, model.components_.T).max() < 1e-6
    fits = [entry for entry in model.log["rounds"] if entry["phase"] != "project"]
    assert len(fits) == levels
    subspace_bytes = 8 * 10 * 30
    assert sum(up > subspace_bytes for entry in fits for up in entry["up"]) == number
    assert max(max(entry["down"]) for entry in model.log["rounds"]) < fan_in * subspace_bytes


def flat(n, size):
    basis, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 40)))
    return (np.random.default_rng(2).standard_normal((n, 40)) * np.where(np.arange(40) < size, 1, 0.05)) @ basis.T


@pytest.mark.parametrize("topology", ["star", "tree"])
def test_the_rank_by_energy_and_by_the_papers_rule(topology):
    three = cut(flat(1200, 8), 500, 400, 300)
    assert fit(three, n_components=3, topology=topology).n_components_ == 3
    model = fit(three, "sapca", n_components=0.95, topology=topology)
    assert model.n_components_ == 8
    assert model.log["measured"]["tracked_directions"] == 40  # 50, but for so few features
    unlike = [flat(600, size) for size in (3, 8, 3, 3)]  # in the tree the first has that of the second
    measured = fit(unlike, n_components=0.95, topology=topology).log["measured"]
    assert [measured[name] for name in ("smallest_rank", "largest_rank")] == [3, 8]
    assert fit(three, "sapca", n_components=3, topology=topology).n_components_ == 8
    model = fit(cut(flat(1200, 20), 500, 400, 300), "sapca", n_components=3, topology=topology)
    assert (model.n_components_, model.log["measured"]["tracked_directions"]) == (10, 20)


def test_parties_send_a_subspace_and_in_a_tree_at_their_turn_only():
    """The party counts the levels itself; the server's question has none."""
    measures = {(0, 1, 0, 2): "2.22507e-308", (60, -1, 0, 2): -1, (60, 1, -1, 2): -1, (60, 1, 0, 0): "rank is 0"}
    false = [(1, np.array(numbers, float), named) for numbers, named in measures.items()]
    for place, array, named in [(-1, np.empty((0, 0)), "'directions'"), *false]:
        server = server_of("spca", parties(100, 80, 60), n_components=2)
        tamper_arrays(server, 2, lambda arrays, at=place, new=array: [*arrays[:at], new, *arrays[at:][1:]])
        with refused(ContractError, "client 2", named):
            finish(server)
    server = server_of("spca", parties(*[40] * 8, d=12), n_components=2, topology="tree")
    nothing = [np.empty((0, 4)), np.empty((0, 0)), np.empty((0, 0)), np.empty((0, 0, 0))]
    for party, turn in ((1, 0), (6, 1), (4, 2)):
        sent = [ask(server, "summary", party=party)[0]]
        sent += [ask(server, "merged", nothing, party=party)[0] for _ in range(2)]
        assert [reply[-1].size > 0 for reply in sent] == [level == turn for level in range(3)]
        assert not any(array.any() for reply in sent[1:] if not reply[-1].size for array in reply[1:])
    assert not unnamed(ask(server, "merged", nothing, party=4)[2]["message"], "'merged'", 3, 2)


def test_rows_are_merged_once_by_their_weights(tmp_path):
    first, second, options = parties(100, 80), parties(60, 40, 30, seed=1), {"tracked": 12, "state": str(tmp_path)}
    fit(first, **options)
    model = fit(second, **options)
    truth = pooled_pca(np.vstack([*first, *second]), 5)
    assert principal_angles(model, truth).max <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(model.mean_, truth.mean_, rtol=1e-12)
    running = [model.log["measured"][f"running_model_{name}"] for name in ("rows", "revision")]
    assert [model.n_samples_, *running] == [310, 310, 2]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    options = {"tracked": 12, "state": str(tmp_path / "2"), "center": False}
    fit(first, **options)
    model = fit(second, **options, old_weight=0.5, new_weight=2.0)
    weighted = np.vstack([0.5 * np.vstack(first), 2.0 * np.vstack(second)])
    assert angles_of(model.components_.T, np.linalg.svd(weighted)[2][:5].T).max() < 1e-6
    before = (tmp_path / FILE).read_bytes()
    with refused(ConfigError, tmp_path):
        fit([first[1], rows(50)], **options)
    assert (tmp_path / FILE).read_bytes() == before


def test_runs_that_fail_or_come_late_leave_the_model_as_it_was(tmp_path):
    fit(parties(100, 80), state=str(tmp_path))
    before = (tmp_path / FILE).read_bytes()
    server, late = (server_of("spca", parties(50, 50, seed=2), state=str(tmp_path), n_components=2) for _ in range(2))
    fail_at(server, 1, "project")
    with refused(QuorumError, "client 1"):
        finish(server)
    assert (tmp_path / FILE).read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    fit(parties(60, 60, seed=3), state=str(tmp_path))
    with refused(ContractError, tmp_path):
        finish(late)


def test_torn_earlier_and_unfit_models_are_named(tmp_path):
    (tmp_path / "file").touch()
    for place in ("file", "file/deeper"):
        with refused(ConfigError, tmp_path / place):
            fit(parties(100, 80), state=str(tmp_path / place))
    (tmp_path / "subspace").write_text("old")
    with refused(ContractError, tmp_path / "subspace", "0.1.0"):
        fit(parties(50, 50), state=str(tmp_path))
    (tmp_path / "subspace").unlink()
    for seed, columns in enumerate(["ab" * 8, None, "cd" * 8]):
        server = server_of("spca", parties(50, 40, seed=seed), state=str(tmp_path / "columns"), n_components=2)
        say(say(server, 0, columns=columns), 1, columns=columns)
        with refused(ConfigError, tmp_path / "columns") if seed == 2 else nullcontext():
            finish(server)
    mean, file = fit(parties(100, 80), state=str(tmp_path)).mean_[:2].tobytes(), tmp_path / FILE
    with refused(ContractError, 11, 12):
        fit(parties(50, 50, d=11), state=str(tmp_path))
    with refused(ConfigError, "'center'"):
        fit(parties(50, 50, seed=2), state=str(tmp_path), center=False)
    file_bytes, merged = file.read_bytes(), RunningModel(tmp_path).content.merged[0].encode()
    for content in (file_bytes[:-5000], file_bytes.replace(mean, mean[::-1]), file_bytes.replace(merged, merged[::-1])):
        assert content != file_bytes
        file.write_bytes(content)
        with refused(ContractError, file):
            fit(parties(50, 50, seed=2), state=str(tmp_path))


def test_a_kill_leaves_the_old_model_or_the_new_one(tmp_path):
    fit(parties(100, 80), state=str(tmp_path / "first"))
    for killed in itertools.count():
        folder = shutil.copytree(tmp_path / "first", tmp_path / str(killed))
        running = RunningModel(folder)
        died = dies(STEPS * killed, running.save, replace(running.content, revision=2, rows=500, merged=("a", "b")))
        left = RunningModel(folder).content
        assert (left.revision, left.rows) == ((1, 180) if died else (2, 500))
        if not died:
            break
    assert killed > 1


def test_models_that_truncate_or_forget_rows_are_not_exact():
    parts = parties(300, 200, 100, d=30)
    model, truth = fit(parts, n_components=3, tracked=6), pooled_pca(np.vstack(parts), 3)
    assert not model.log["exact"]
    assert 0 < principal_angles(model, truth).max <= model.log["measured"]["angle_bound_degrees"]
    assert (model.explained_variance_ <= truth.explained_variance_ * (1 + 1e-12)).all()
    short, twice = (fit(parts, n_components=4, **options) for options in ({}, {"tracked": 8}))
    assert short.components_.tobytes() == twice.components_.tobytes()
    assert short.log["rounds"][0]["up"] == [8 * (8 * 30 + 30 + 5) + 5 * 128] * 3
    model = fit(parts[2:], n_components=3, tracked=6, block_size=100)
    values = np.linalg.svd(parts[2] - parts[2].mean(axis=0), compute_uv=False) ** 2
    assert model.log["measured"]["truncated_variance_share"] == pytest.approx(values[6:].sum() / values.sum(), rel=1e-9)
    # Every direction is tracked, but each block of 50 rows lowers the weight of the rows before.
    for forgetting, exact in [(1.0, True), (0.8, False)]:
        parts = parties(90, 60)
        model = fit(parts, tracked=12, forgetting=forgetting)
        assert model.log["exact"] is exact
        weights = np.concatenate([np.where(np.arange(len(part)) < 50, forgetting**2, 1.0) for part in parts])
        X = np.vstack(parts)
        values = np.linalg.eigvalsh(np.cov(X.T, aweights=weights, ddof=0))[::-1]
        np.testing.assert_allclose(model.mean_, np.average(X, axis=0, weights=weights), rtol=1e-12)
        np.testing.assert_allclose(model.explained_variance_, values[:5] * 150 / 149, rtol=1e-10)
        np.testing.assert_allclose(model.explained_variance_ratio_, values[:5] / values.sum(), rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "node", "answers"),
    [  # the fault: the last row alone had a weight, and the answer was that row
        *(({"block-size": size, "forgetting": rate}, SAPCA_ONLY, False) for size, rate in TOO_FEW),
        *(({"block-size": size, "forgetting": rate}, SAPCA_ONLY, True) for size, rate in ENOUGH),
        # the order of rows, and the blocks that a run chooses, are in the answer
        *(({}, {"may-show": shown}, False) for shown in ("", "nothing")),
        *(({}, {"may-show": shown}, True) for shown in ("distribution", "scores")),
        *(({}, {"may-show": "", "allowed-methods": f"p-cov, {name}"}, name == "sapca") for name in ("em", "sapca")),
    ],
    ids=str,
)
def test_answers_of_few_rows_and_beyond_moments_need_permission(options, node, answers, tmp_path):
    run = {"method": "sapca", "n-components": 2, **options}
    replied, metrics = HostileSession(tmp_path, rows(200, 6), run, **node).ask("summary", [])
    assert bool(replied) == answers
    assert answers or metrics["error"] == "DisclosureError"
    assert answers or not options or not unnamed(metrics["message"], "'min-rows'", 20)
