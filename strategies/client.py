"""`PCAClient`: a party's half of every method: its data, its policy, its scores, and errors that carry no data."""

from __future__ import annotations

import logging
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from numpy.typing import NDArray

from fedpca_flwr.config import NodeConfig, RunConfig
from fedpca_flwr.contract import Fields
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, FedPCAError, PartyError
from fedpca_flwr.files import site_file
from fedpca_flwr.loadings import Loadings
from fedpca_flwr.maths.moments import chunks
from fedpca_flwr.party import Table, local_table
from strategies.card import MethodCard
from strategies.reply import LONGEST_MESSAGE, UNPRINTABLE

EXPOSURES = ("nothing", "scores", "inner products")
"""What a run may show of single rows, the least first."""

logger = logging.getLogger("fedpca_flwr.client")


class PCAClient(NumPyClient):
    """Base of every method's client. A method adds `statistics`.

    Parameters
    ----------
    card : MethodCard
        Of the method that the run uses.
    context : flwr.app.Context
        Holds the run-config, this site's node-config, and state that lasts over the rounds.
    load : callable, optional
        Gives this party's rows, from its node-config and the run-config.
    """

    def __init__(
        self, card: MethodCard, context: Context, load: Callable[[NodeConfig, RunConfig], Table] = local_table
    ) -> None:
        super().__init__()
        self.card = card
        self.context = context
        self.load = load
        self.sizes: dict[str, int] = {}  # what the server asks for: the symbols in the payload's shapes

    @abstractmethod
    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        """The fields that this party returns in a phase; no row leaves."""

    def projection(self, received: list[NDArray]) -> list[NDArray]:
        """Components (k, d), mean and scale by which this party projects its rows: what the server sent."""
        return received

    def project(self, received: list[NDArray]) -> float:
        """Keep the scores of this party's own rows, and what gave them; the sum of the squared errors that are left."""
        components, mean, scale = self.projection(received)
        if self.node.loadings:
            own = Loadings(components, mean, scale if scale.size else np.ones_like(mean), columns=self.table.columns)
            own.save(self.node.loadings)
        squared, left_out = 0.0, self.table.rows[len(self.data) :]
        with score_file(self.node.scores, len(self.table.rows), len(components)) as keep:
            for scores, error in projections(self.data, components, mean, scale):
                keep(scores)
                squared += error
            for scores, _ in projections(left_out, components, mean, scale):
                keep(scores)
        return squared

    def verdict(self, squared: float, received: list[NDArray]) -> tuple[float, int, dict[str, Any]]:
        """What this party tells of the projection of its own rows, with ``squared`` the sum of the squared errors."""
        return 0.0 if self.card.private else squared, self._rows_told(), self._about()

    @cached_property
    def node(self) -> NodeConfig:
        return NodeConfig.parse(self.context.node_config, source="node-config")

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.split(self.context.run_config)[0]

    @cached_property
    def options(self) -> Any:
        """The method's own options, an instance of ``card.options``."""
        return self.card.options.parse(RunConfig.split(self.context.run_config)[1])

    @cached_property
    def table(self) -> Table:
        return self.load(self.node, self.config)

    @property
    def exposes(self) -> str:
        """What this run shows of single rows (see `MethodCard.exposes`)."""
        return self.card.exposes

    @property
    def data(self) -> NDArray:
        """This party's rows (n, d), checked: those that take part."""
        rows = self.table.rows
        if self.card.split == "columns":  # the same rows at every party
            return rows
        return rows[: len(rows) - len(rows) % self.node.round_rows]

    # What Flower calls. Nothing is ever raised through Flower: an exception's text would travel with it.

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        try:
            self._permit()
            return {**self._about(), "features": int(self.data.shape[1])}
        except Exception as error:
            return self._report(error)

    def fit(self, parameters: list[NDArray], config: dict[str, Any]) -> tuple[list[NDArray], int, dict[str, Any]]:
        try:
            self._permit()
            phase = str(config["phase"])
            self.sizes = {key: int(value) for key, value in config.items() if key != "phase"}
            if phase not in self.card.payloads:
                raise ContractError(
                    f"the server asked for '{phase[:20]}', expected one of: {', '.join(self.card.payloads)}; do all "
                    "parties run the same version?"
                )
            payload = self.card.payloads[phase]
            fields = self.statistics(phase, parameters)
            payload.check(fields, "this site's reply", {**self.sizes, "d": self.data.shape[1]})
            arrays = payload.to_arrays(fields)
            self._permit_size(arrays)
            return arrays, self._rows_told(), self._about()
        except Exception as error:
            return [], 0, self._report(error)

    def evaluate(self, parameters: list[NDArray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Project this party's own rows, keep the scores here, and return only a count and a squared error."""
        try:
            self._permit()
            squared = self.project(parameters)
            if not np.isfinite(squared):
                raise DataError(
                    "the squared error of the projection is not finite: did the data change during the run?"
                )
            return self.verdict(max(0.0, squared), parameters)
        except Exception as error:
            return 0.0, 0, self._report(error)

    # Inside

    def _rows_told(self) -> int:
        """How many rows a message says there are; Flower wants a number."""
        return 1 if self.card.private else len(self.data)

    def _about(self) -> dict[str, Any]:
        return {
            "partition-id": self.node.partition_id,
            "num-partitions": self.node.num_partitions,
            "name": self.node.name,
            "columns": self.table.columns,
            "simulated": not self.node.data,
        }

    def _permit(self) -> None:
        """The site's own policy, before anything is computed."""
        allowed = self.node.allowed_methods.replace(",", " ").split()
        if allowed and self.card.name not in allowed:
            raise DisclosureError(
                f"this site does not allow the method '{self.card.name}' (its node-config allows: {', '.join(allowed)})"
            )
        if self.node.secure_only and not self.config.secure_aggregation:
            raise DisclosureError(
                "this site answers with secure aggregation only (node-config 'secure-only'); run with "
                "secure-aggregation=true"
            )
        if self.node.epsilon_budget is not None and not self.card.noised:
            raise DisclosureError(
                f"this site has a privacy budget (node-config 'epsilon-budget'), and the method '{self.card.name}' is "
                "not differentially private"
            )
        self._permit_exposure()
        if self.table.split not in ("", self.card.split):
            raise ConfigError(
                f"the method '{self.card.name}' is for data split by {self.card.split}, but this party's are split by "
                f"{self.table.split} (node-config 'split', or in a simulation 'partition'); choose a method for these"
            )
        if self.card.split == "columns" and self.node.round_rows > 1:
            raise DisclosureError(
                f"this site tells a rounded number of rows (node-config 'round-rows' = {self.node.round_rows}), and "
                f"the method '{self.card.name}' needs all rows at every party"
            )
        if len(self.data) < self.node.min_rows:
            raise DisclosureError(
                f"this site has fewer rows than its own minimum (node-config 'min-rows' = {self.node.min_rows})"
            )

    def _permit_exposure(self) -> None:
        allowed = self.node.may_show or ("nothing" if self.node.data else EXPOSURES[-1])
        if EXPOSURES.index(self.exposes or "nothing") > EXPOSURES.index(allowed):
            raise DisclosureError(
                f"the run shows {self.exposes} of single rows, this site allows {allowed} (node-config 'may-show'; "
                f"expected one of: {', '.join(EXPOSURES)})"
            )

    def _permit_size(self, arrays: list[NDArray]) -> None:
        size = sum(array.nbytes for array in arrays)
        if size > self.node.max_reply_bytes:
            raise DisclosureError(
                f"the reply would have {size:,} bytes, this site allows {self.node.max_reply_bytes:,} "
                "(node-config 'max-reply-bytes')"
            )

    def _report(self, error: Exception) -> dict[str, Any]:
        """An error as a reply: its kind and a text without data; the rest goes to this site's own log only."""
        try:
            party, name = self.node.partition_id, self.node.name
        except ConfigError:
            party, name = -1, ""
        if isinstance(error, FedPCAError):
            logger.error("%s: %s%s", type(error).__name__, error, f" [{error.local}]" if error.local else "")
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            logger.error("%s in %s, line %s", type(error).__name__, Path(frame.filename).name, frame.lineno)
            error = PartyError(f"failed with {type(error).__name__}; see this site's own log")
        message = UNPRINTABLE.sub("?", str(error))[:LONGEST_MESSAGE]
        return {"partition-id": party, "name": name, "error": type(error).__name__, "message": message}


def projections(data: NDArray, components: NDArray, mean: NDArray, scale: NDArray) -> Iterator[tuple[NDArray, float]]:
    """Chunk by chunk, the scores (m, k) of rows and the sum of the squared errors of the reconstruction from them.

    Parameters
    ----------
    data : ndarray of shape (n, d)
    components : ndarray of shape (k, d)
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or (0,)
        Empty where the features are not scaled.
    """
    for chunk in chunks(data):
        centred = np.subtract(chunk, mean, dtype=np.float64)
        if scale.size:
            centred /= scale
        scores = centred @ components.T
        # Pythagoras, since the components are orthonormal
        yield scores, float(np.vdot(centred, centred) - np.vdot(scores, scores))


@contextmanager
def score_file(path: str, n: int, k: int) -> Iterator[Callable[[NDArray], object]]:
    """A function that appends scores to a site's own file (nowhere for an empty path), whole or not at all.

    Parameters
    ----------
    path : str
        ``.npy`` or ``.csv``; rows in the order of the site's data.
    n, k : int
        Rows and components.
    """
    target = Path(path).expanduser()
    if not path:
        yield lambda scores: None
    elif target.suffix == ".npy":
        with site_file("scores", target) as stream:
            header = {"descr": "<f8", "fortran_order": False, "shape": (n, k)}
            np.lib.format.write_array_header_1_0(stream, header)
            yield lambda scores: stream.write(scores.astype("<f8").tobytes())
    elif target.suffix == ".csv":
        with site_file("scores", target) as stream:
            stream.write((",".join(f"PC{j + 1}" for j in range(k)) + "\n").encode())
            yield lambda scores: np.savetxt(stream, scores, delimiter=",", fmt="%.17g")
    else:
        raise ConfigError(f"node-config: 'scores' ends in '{target.suffix}', expected .npy or .csv")
