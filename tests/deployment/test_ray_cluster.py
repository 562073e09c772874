"""A simulation on a Ray cluster of several nodes, which somebody else has started."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedpca_flwr.site.deployment import HOST, free_port

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

PROGRAM = """
import sys, time
from pathlib import Path

import ray

from simulations import ray_engine, run
from tests.families import cut, rows

honest, folder = ray_engine._client_fn, sys.argv[1]


def noted(*arguments):
    make = honest(*arguments)

    def client_fn(context):
        Path(folder, ray.get_runtime_context().get_node_id()).touch()
        return make(context)

    return client_fn


def has_two_nodes():
    try:
        ray.init(log_to_driver=False)
        return sum(node["Alive"] for node in ray.nodes()) == 2
    except ConnectionError:
        return False
    finally:
        ray.shutdown()


while not has_two_nodes():
    time.sleep(0.5)
ray_engine._client_fn = noted
parties = cut(rows(400), 100, 100, 100, 100)
one, other = (run("p-cov", parties, n_components=3, engine=engine) for engine in ("ray", "loopback"))
assert one.components_.tobytes() == other.components_.tobytes()
"""


@contextlib.contextmanager
def cluster(environment):
    """A head and a worker of one core each, as processes of their own; the address."""
    address = f"{HOST}:{free_port()}"
    folder = tempfile.mkdtemp(prefix="ray")  # Ray's sockets need short paths
    common = ["--num-cpus=1", "--block", "--disable-usage-stats", f"--node-ip-address={HOST}"]
    head = ["--head", f"--port={address.split(':')[1]}", "--include-dashboard=false", f"--temp-dir={folder}"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = []
    try:
        for kind in (head, [f"--address={address}"]):
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *kind, *common]
            started.append(subprocess.Popen(command, env=environment, start_new_session=True, **silent))
        yield address
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_both_nodes_of_a_cluster_work_and_the_bits_are_those_of_loopback(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    with cluster(environment) as address:
        command, given = [sys.executable, "-c", PROGRAM, str(tmp_path)], {**environment, "RAY_ADDRESS": address}
        done = subprocess.run(command, env=given, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.iterdir())) == 2
