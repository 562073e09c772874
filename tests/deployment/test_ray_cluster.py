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

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

PROGRAM = """
import sys
from pathlib import Path

import numpy as np

from simulations import ray_engine, run
from tests.families import cut, rows

honest, folder = ray_engine._client_fn, sys.argv[1]


def noted(*arguments):
    make = honest(*arguments)

    def client_fn(context):
        import ray

        Path(folder, ray.get_runtime_context().get_node_id()).touch()
        return make(context)

    return client_fn


ray_engine._client_fn = noted
parties = cut(rows(400), 100, 100, 100, 100)
one, other = (run("p-cov", parties, n_components=3, engine=engine) for engine in ("ray", "loopback"))
assert one.components_.tobytes() == other.components_.tobytes()
"""


WAIT = """
import ray, time

while True:
    try:
        ray.init("{address}", log_to_driver=False)
        if sum(node["Alive"] for node in ray.nodes()) == 2:
            break
    except ConnectionError:
        pass
    ray.shutdown()
    time.sleep(0.5)
"""


@contextlib.contextmanager
def cluster(environment):
    """A head and a worker of one core each, as processes of their own; the address."""
    address = f"{HOST}:{free_port()}"
    folder = tempfile.mkdtemp(prefix="ray")  # Ray's sockets need short paths
    common = ["--num-cpus=1", "--block", "--disable-usage-stats", f"--node-ip-address={HOST}"]
    kinds = (
        ["--head", f"--port={address.split(':')[1]}", "--include-dashboard=false", f"--temp-dir={folder}"],
        [f"--address={address}"],
    )
    started = []
    try:
        for kind in kinds:
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *kind, *common]
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
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
        wait = WAIT.format(address=address)
        given = {**environment, "RAY_ADDRESS": address}
        subprocess.run([sys.executable, "-c", wait], env=environment, check=True, capture_output=True, timeout=300)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], env=given, check=False, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.iterdir())) == 2
