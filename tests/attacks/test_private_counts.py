"""Servers that want the number of rows of a site that allows only private methods, or one more run of its noise."""

import numpy as np
import pytest

from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS
from tests.hostile import HostileSession, released

PEOPLE = np.random.default_rng(3).integers(20, 90, (40, 3)).astype(float)
RUN = {"method": "dp-pca", "n-components": 2, "epsilon": 0.1, "release": "joint", "clip": 99.0}
TELLING = [{"count": "public"}, {"relation": "replace-one"}, {"relation": "replace-one", "count": "public"}]
ONLY = {"allowed-methods": "dp-pca", "min-rows": 20}


@pytest.mark.parametrize("told", TELLING, ids=str)
def test_a_run_does_not_choose_whether_counts_are_noised(tmp_path, told):
    session = HostileSession(tmp_path, PEOPLE, {**RUN, **told}, **ONLY)
    for said in (session.client.get_properties({}), session.ask("joint", [])[1]):
        assert said["error"] == "DisclosureError"
        assert "node-config 'public-count' is false" in said["message"]
    assert not (tmp_path / "journal" / "site.sqlite").exists() or released(tmp_path / "journal") == []
    permitting = HostileSession(tmp_path / "2", PEOPLE, {**RUN, **told}, **ONLY, **{"public-count": True})
    assert permitting.ask("joint", [])[0][0] / GRID_STEPS == len(PEOPLE)


def test_counts_with_noise_need_no_leave_but_a_budget(tmp_path):
    replied, _ = HostileSession(tmp_path, PEOPLE, RUN, **ONLY).ask("joint", [])
    assert replied[0] / GRID_STEPS != len(PEOPLE)
    # 150 runs of epsilon 10 average their noise away.
    run, node = {**RUN, "epsilon": 10.0}, {**ONLY, "epsilon-budget": 10.0}
    session = HostileSession(tmp_path / "2", PEOPLE, run, **{**node, "epsilon-budget": None})
    for said in (session.client.get_properties({}), session.ask("joint", [])[1]):
        assert said["error"] == "ConfigError"
        assert "names no 'epsilon-budget'" in said["message"]
    sessions = [HostileSession(tmp_path / "2", PEOPLE, run, run_id=i, **node) for i in range(3)]
    assert [bool(session.ask("joint", [])[0]) for session in sessions] == [True, False, False]
