"""What the soak finds wrong after a run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr.site.node.flower_command import COMPLETED_STATUS
from fedpca_flwr.site.rules.journal import FileJournal
from tests.families import cut, rows
from tests.harness import fit

pytest.importorskip("resource", reason="processes are killed and limited by what POSIX has")

from tests.deployment import soak

PARTIES = cut(rows(180, soak.FEATURES), 60, 60, 60)


class Pretended:
    """A deployment whose run ends as it is told."""

    def __init__(self, status=COMPLETED_STATUS, log="", parties=PARTIES):
        self.status, self.log, self.parties = status, log, parties
        self.processes, self.all_nodes_online = {}, None

    def run(self, config):
        if self.parties:
            output = json.loads(re.search(r"output=(\S+)", config)[1])
            fit("p-cov", self.parties, n_components=soak.COMPONENTS).save(Path(output).with_suffix(".npz"))
        return self.status, self.log

    def wait_until(self, condition, what):
        pass


def findings_of(folder, deployment, fault="none", *, lost=0):
    for site in range(3):
        FileJournal(str(folder / f"journal{site}"), "1", site).begin("mean", "", b"", lambda answered: None)
    soaking = soak.Soak(deployment, folder, PARTIES, 0)
    soaking.questions, soaking.apps = [1 + lost, 1, 1], lambda site=None: []
    soaking.faults = dict.fromkeys(soaking.faults, soaking.faults["none"])
    return " ".join(soaking._run(0, fault, "p-cov", 0).findings)


FAILED, STILL = "finished:failed", "a SuperNode stands still"
WRONG = [part + np.eye(60, 12) * 40 for part in PARTIES]


@pytest.mark.parametrize(
    ("deployment", "fault", "also", "word"),
    [
        (Pretended(), "none", {}, None),
        (Pretended(FAILED, "The run failed: ", None), STILL, {}, None),  # by a fault, with a sentence of ours
        (Pretended(parties=WRONG), "none", {}, "degrees"),
        (Pretended(FAILED, "The run failed: ", None), "none", {}, "nothing stops"),
        (Pretended(FAILED, "Traceback", None), STILL, {}, "no sentence"),
        (Pretended(FAILED, "The run failed: "), STILL, {}, "wrote a model"),
        (Pretended(), "none", {"lost": 1}, "lost lines"),
    ],
)
def test_what_is_wrong_after_a_run_is_a_finding(deployment, fault, also, word, tmp_path):
    findings = findings_of(tmp_path, deployment, fault, **also)
    assert findings == "" if word is None else word in findings
