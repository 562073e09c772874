"""A federation that lasts, as a machine of drawn runs: always the model of the current rows of all members."""

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations.engines import run
from tests.properties.checks import EXACTNESS, malformed, truth_about
from tests.properties.profiles import examples
from tests.properties.strategies import Draw

SIZES = st.lists(st.integers(2, 6), min_size=1, max_size=4)
"""Rows that each party of a run brings."""
FITS = st.fixed_dictionaries({"n_components": st.integers(1, 2), "scale": st.booleans()})


class Federation(RuleBasedStateMachine):
    """Runs of `streaming` over one state: members join, change, append, leave and fail."""

    @initialize(features=st.integers(2, 4), offset=st.sampled_from([0.0, 1e6]), seed=st.integers(0, 99))
    def begin(self, features, offset, seed):
        """Choose the features of all tables."""
        self.folder = tempfile.TemporaryDirectory()
        self.rng, self.features, self.offset = np.random.default_rng(seed), features, offset
        self.members: dict[int, np.ndarray] = {}
        self.latest: list[np.ndarray] = []

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def tables(self, sizes):
        """Return new rows of so many parties."""
        return [self.offset + self.rng.standard_normal((size, self.features)) for size in sizes]

    def run(self, parties, **options):
        """Return the model of a run of the first parties."""
        state = str(Path(self.folder.name, "state"))
        return run("streaming", parties, engine="loopback", state=state, min_rows=1, **options)

    def check(self, parties, fit, **options):
        """Run, and hold the model against that of the rows of all members."""
        model = self.run(parties, **fit, **options)
        draw = Draw("streaming", "clear", list(self.members.values()), fit, "shifted")
        truth = truth_about(draw)
        assert truth is not None
        problems = [*malformed(draw, model), *(text for law in EXACTNESS for text in law(draw, model, truth))]
        assert not problems, "\n".join(problems)
        return model.log["members"]

    @rule(sizes=SIZES, fit=FITS)
    def bring(self, sizes, fit):
        """Let members join, or replace their rows; the absent keep theirs."""
        self.latest = self.tables(sizes)
        before = set(self.members)
        self.members |= dict(enumerate(self.latest))
        changes = self.check(self.latest, fit)
        assert len(changes.get("joined", [])) == len(set(range(len(sizes))) - before)

    @precondition(lambda self: self.members)
    @rule(sizes=SIZES, fit=FITS)
    def append(self, sizes, fit):
        """Append to members' rows, or let members join."""
        parts = self.tables(sizes)
        for place, part in enumerate(parts):
            self.members[place] = np.vstack([self.members[place], part]) if place in self.members else part
        self.latest = []
        self.check(parts, fit, append=True)

    @precondition(lambda self: self.latest)
    @rule(fit=FITS)
    def repeat(self, fit):
        """Bring the same rows again, which changes nothing."""
        changes = self.check(self.latest, fit)
        assert len(changes["unchanged"]) == len(self.latest)

    @precondition(lambda self: len(self.members) > 1)
    @rule(size=st.integers(2, 6), fit=FITS)
    def leave(self, size, fit):
        """Let the last member leave, and the first replace its rows."""
        gone = max(self.members)
        del self.members[gone]
        self.latest = self.tables([size])
        self.members[0] = self.latest[0]
        self.check(self.latest, fit, leave=f"partition {gone}")

    @precondition(lambda self: self.members)
    @rule(sizes=SIZES, fit=FITS, append=st.booleans())
    def fail(self, sizes, fit, append):
        """Bring rows that are refused, which leaves the state as it is."""
        parts, before = self.tables(sizes), self.digest()
        parts[-1][-1, -1] = np.nan
        with pytest.raises(FedPCAError):
            self.run(parts, append=append, **fit)
        assert self.digest() == before

    def digest(self):
        """Return a digest of all files of the state."""
        files = sorted(path for path in Path(self.folder.name).rglob("*") if path.is_file())
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.mark.engine
def test_every_run_is_of_the_current_rows_of_all_members():
    run_state_machine_as_test(Federation, settings=settings(examples(4), stateful_step_count=8))
