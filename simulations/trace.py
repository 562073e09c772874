"""The command `trace`, which shows a run's questions and replies, their sizes, and the code that answers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from fedpca_flwr.cli import Report
from fedpca_flwr.errors import FedPCAError

if TYPE_CHECKING:
    from flwr.server.client_proxy import ClientProxy
    from numpy.typing import NDArray

    from fedpca_flwr.protocol.payload import Payload
    from fedpca_flwr.protocol.server import PCAServer

ROOT = Path(__file__).resolve().parents[1]


def main(
    method: Annotated[str, Argument()] = "p-cov",
    parties: int = 3,
    rows: int = 100,
    features: int = 5,
    n_components: int = 2,
    secure_aggregation: bool = False,
) -> Report:
    """Show each question of a run, what a party replies, how many bytes both are, and which code answers.

        fedpca trace p-cov
        fedpca trace "sub-it block-size=3" --secure-aggregation

    The run is a small one in this process, on drawn rows. It shows where a change of a method begins.

    Parameters
    ----------
    method : str
        A method, with its options as in `--methods` of `compare`.
    parties : int
        Number of parties.
    rows : int
        Rows of all parties together.
    features : int
        Number of features, of all parties together where these hold columns.
    n_components : int
        Number of components.
    secure_aggregation : bool
        Use secure sums.

    Returns
    -------
    Report
        The questions and replies.

    Raises
    ------
    FedPCAError
        If the method cannot run so. The questions until then are printed to stderr.
    """
    import numpy as np  # here: a help needs none of it

    from fedpca_flwr.simulations.loopback import assemble
    from fedpca_flwr.simulations.parties import parties_of
    from fedpca_flwr.strategies import METHODS

    split = METHODS.parse_method(method).strategy.card.split
    table = np.random.default_rng(0).normal(size=(rows, features)) * np.arange(features, 0, -1)
    shares = parties_of(np.array_split(table, parties, axis=0 if split == "rows" else 1), split)
    secure_keys = {"secure-aggregation": True, "bound": 10.0 * features} if secure_aggregation else {}
    values = {"method": method, "n-components": n_components, "clients": parties, **secure_keys}
    server = assemble(METHODS.run_config(values), shares.rows, {}, shares.names)
    first, *_ = server.client_manager().all().values()
    exchanges = trace_party(server, first)
    head = f"{method}: {parties} parties, {rows} x {features} drawn values; as party {first.cid} of {parties} meets it"
    try:
        server.fit(num_rounds=server.strategy.rounds, timeout=None)
    except FedPCAError:
        print(exchanges_text(exchanges), file=sys.stderr)
        raise
    return Report(f"{head}\n{exchanges_text(exchanges)}", exchanges)


def trace_party(server: PCAServer, proxy: ClientProxy) -> list[dict[str, Any]]:
    """Make a party's `fit` record each question and its reply in the list that is returned; a refusal has none."""
    from flwr.common import parameters_to_ndarrays

    answer = proxy.fit
    exchanges: list[dict[str, Any]] = []

    def fit(ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """Record a question, let the party answer, and record the reply."""
        phase = ins.config["phase"]
        question = server.strategy.script[phase]
        request = describe_arrays(question.request, parameters_to_ndarrays(ins.parameters))
        exchanges.append({"phase": phase, "answer": location(question.answer), "request": request})
        reply = answer(ins, timeout, group_id)
        if reply.parameters.tensors:  # none of a refusal, which ends the run
            exchanges[-1]["reply"] = describe_arrays(question.reply, parameters_to_ndarrays(reply.parameters))
        return reply

    proxy.fit = fit  # type: ignore[method-assign]
    return exchanges


def location(answer: Any) -> str:
    """Return name, file and line of the function that answers; None stands for an answer by the transport."""
    function = inspect.unwrap(getattr(answer, "func", answer))
    if function is None:
        return "the transport (fedpca_flwr/transports)"
    code = function.__code__
    path = Path(code.co_filename).resolve()
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path  # of another package
    return f"{function.__qualname__} ({place}:{code.co_firstlineno})"


def describe_arrays(payload: Payload, arrays: Sequence[NDArray[Any]]) -> list[dict[str, Any]]:
    """Return each array's ``name`` (of its field in the payload), ``shape``, ``dtype`` and ``bytes``."""
    return [
        {"name": field.name, "shape": list(array.shape), "dtype": str(array.dtype), "bytes": array.nbytes}
        for field, array in zip(payload.fields, arrays, strict=True)
    ]


def exchanges_text(exchanges: Sequence[dict[str, Any]]) -> str:
    """Write the exchanges of `trace_party` as a paragraph for each, with a line for each array."""
    lines = []
    for number, exchange in enumerate(exchanges, start=1):
        lines += ["", f"round {number}: {exchange['phase']}", f"  answered by   {exchange['answer']}"]
        for direction in ("request", "reply"):
            arrays = exchange.get(direction)
            lines += [f"  {direction:<12}  nothing"] if arrays == [] else []
            for array in arrays or []:
                shape = str(tuple(array["shape"]))
                cells = f"{array['name']:<14} {shape:<12} {array['dtype']:<8} {array['bytes']:>8,} bytes"
                lines.append(f"  {direction:<12}  {cells}")
    return "\n".join(lines)
