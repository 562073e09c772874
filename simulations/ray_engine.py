"""The simulation engine: Flower's Ray backend, called from Python."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from flwr import app, serverapp, simulation
from scipy import sparse

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.flower import MakeClient, PCAClientApp, run_on
from fedpca_flwr.maths.rows import Blocks, Rows, join_blocks, to_array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.simulations.loopback import site_of_party
from fedpca_flwr.simulations.parties import Parties
from fedpca_flwr.site.readers.files import read
from fedpca_flwr.strategies import FACTORY, METHODS

BACKEND: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"log_to_driver": False, "include_dashboard": False, "logging_level": WARNING},
}


def on_ray(run_config: dict[str, Any], parties: Parties, site: dict[str, Any]) -> PCAModel:
    """Run a method in Flower's simulation on Ray, and return the model; ``site`` is as of `on_loopback`.

    The rows go to the worker processes through temporary files. Raise FedPCAError if Ray does not start.
    """
    strategy = FACTORY.strategy(run_config)
    with TemporaryDirectory(prefix="fedpca-") as folder:
        for i, rows in enumerate(parties.rows):
            save(Path(folder, str(i)), rows)
        server_app = serverapp.ServerApp()

        @server_app.main()
        def main(grid: serverapp.Grid, context: app.Context) -> None:
            run_on(grid, strategy)

        client_app = PCAClientApp(_make_client(run_config, site, folder, parties))
        with running_ray():
            simulation.run_simulation(server_app, client_app, len(parties.rows), backend_config=BACKEND)
    return strategy.model


@contextmanager
def running_ray() -> Iterator[None]:
    """Start Ray for all runs inside a with statement, or leave a Ray that runs already; or raise a FedPCAError.

    Flower itself would shut Ray down after each run, and wait until the join-deadline if Ray does not start.
    """
    with _environment("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"):  # else a warning that concerns GPUs only
        try:
            import ray

            was_running = ray.is_initialized()
            if not was_running:
                search_path = os.pathsep.join(sys.path)  # workers have this process's environment, and not its path
                ray.init(runtime_env={"env_vars": {"PYTHONPATH": search_path}}, **BACKEND["init_args"])
        except ImportError as error:
            raise FedPCAError(
                f"Ray, which simulates parties as processes, cannot be imported ({error}): install "
                "'flwr[simulation]', or use engine=\"loopback\", which gives the same bits in this process"
            ) from error
        except Exception as error:  # whatever Ray raises
            raise FedPCAError(
                f"Ray, which simulates parties as processes, did not start ({type(error).__name__}: {error}): see "
                "whether memory and /dev/shm have room and whether a RAY_ADDRESS is set that nobody answers at, or "
                'use engine="loopback", which gives the same bits in this process'
            ) from error
        try:
            with mock.patch.object(ray, "shutdown"):
                yield
        finally:
            if not was_running:
                ray.shutdown()


def _make_client(run_config: dict[str, Any], site: dict[str, Any], folder: str, parties: Parties) -> MakeClient:
    """Return the function that makes a client in a worker process."""
    names, places = parties.names, parties.places  # workers are sent these, and not the rows
    method = METHODS.class_of(METHODS.parse_method(run_config["method"]).strategy.card.name)

    def load(node: NodeConfig, config: RunConfig) -> Table:
        number = node.partition_id
        (site_config,) = Path(folder).glob(f"{number}.*")
        return read(str(site_config), site=True)._replace(names=names[number], row_positions=places[number])

    def make_client(pca_context: app.Context, context: app.Context) -> PCAClient | RefusingClient:
        site_config = site_of_party(site, int(context.node_config["partition-id"]))
        node_config = {**context.node_config, "may-show": "inner products", **site_config}
        party_context = replace(pca_context, node_config=node_config, run_config=run_config)
        # the worker's own factory: in a copy of this process's, methods would have lost their stages
        strategies = import_module("fedpca_flwr.strategies")
        strategies.METHODS.name_of(method)
        client: PCAClient | RefusingClient = strategies.FACTORY.client(party_context, load)
        return client

    return make_client


def save(stem: Path, rows: Rows) -> None:
    """Write rows (n, d) to ``stem`` with the suffix ``.npy``, or ``.npz`` if the rows are sparse."""
    if isinstance(rows, Blocks) and rows.sparse:
        sparse.save_npz(stem.with_suffix(".npz"), join_blocks(list(rows.read())), compressed=False)
    else:
        np.save(stem.with_suffix(".npy"), to_array(rows), allow_pickle=False)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside a with statement, and restore its old value afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
