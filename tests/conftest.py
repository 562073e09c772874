"""What holds for all tests.

One BLAS thread for each process: pytest has a worker for each core, and more threads only wait. Tests for the night run
where `-m` names them, whatever else it says. Deployments run one after another, since they have one process for each
site and message, and two at once starve each other; as they also wait, `-n auto` has one worker more for them.

What code draws from the operating system has a seed here, in this process and for each test: who guesses from released
noise, in the tests of attacks, is right as often today as tomorrow.
"""

import gc
import os
import random
import sys
from collections.abc import Generator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from threadpoolctl import threadpool_limits
from xdist.scheduler import LoadFileScheduling

from fedpca_flwr.protocol.card import method_questions

DEPLOYMENTS = "tests/deployment/"
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of the processes that tests start
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # which images set: each process would compile all modules
    BYTECODE = TemporaryDirectory()
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = BYTECODE.name
    sys.dont_write_bytecode = False


def pytest_configure() -> None:
    import scipy.linalg  # noqa: F401  # its BLAS is limited only when it is there

    threadpool_limits(1, user_api="blas")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give each test its own numbers as the operating system's, also as those of `secrets`."""
    draw = random.Random(item.nodeid).randbytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", draw)
        patch.setattr(random, "_urandom", draw)
        return (yield)


@pytest.fixture(autouse=True)
def forget_scripts() -> Generator[None]:
    """Forget the questions of runs after each test: some shrink constants from which they were made."""
    yield
    method_questions.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without the garbage collector: what is imported stays, and a sixth of the time went into looking at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deployments first, then the files of this folder, which install and build: no worker is left with one alone."""
    late = {item for item in items if item.get_closest_marker("nightly") and "nightly" not in config.option.markexpr}
    config.hook.pytest_deselected(items=[*late])
    items[:] = [item for item in items if item not in late]
    items.sort(key=lambda item: (not item.nodeid.startswith(DEPLOYMENTS), item.nodeid.partition("::")[0].count("/")))


class DeploymentsInTurn(LoadFileScheduling):
    """A worker for each file but for those of deployments, which have one together."""

    def _split_scope(self, nodeid: str) -> str:
        return DEPLOYMENTS if nodeid.startswith(DEPLOYMENTS) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return DeploymentsInTurn(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    cores = yield
    return cores if "not engine" in config.option.markexpr else cores + 1
