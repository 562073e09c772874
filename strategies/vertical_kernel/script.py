"""What a run of VERTICAL-KERNEL may ask: its options, and its phases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field as Limits

from fedpca_flwr.config import Count, RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.kernels import Kernel, Name
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Phase, Phases
from fedpca_flwr.statistics.column_limits import distance_limits, inner_product_limits, landmark_limits
from fedpca_flwr.statistics.columns import (
    DIRECTIONS,
    ENERGY,
    SINGULAR,
    bounded,
    keeping_phase,
    measures_phase,
    rows_phases,
)
from fedpca_flwr.statistics.columns_options import ColumnsOptions


class KernelOptions(ColumnsOptions):
    """Options of VERTICAL-KERNEL."""

    kernel: Name = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0, examples=[0.0, 0.01, 1.0])] = 0.0
    """0: 1 / (m var X)."""
    coef0: Annotated[float, Limits(examples=[0.0, 1.0, -1.0])] = 1.0
    """Of ``sigmoid`` and ``polynomial``."""
    degree: Annotated[Count, Limits(examples=[1, 2, 3])] = 3
    """Of ``polynomial``."""
    center: bool = False
    """Each party subtracts the means of its own columns first; the kernel is centred in any case."""
    landmarks: Annotated[int, Limits(ge=0, examples=[0, "k+1", "n/2", "n"])] = 0
    """Rows to which distances are taken; 0: all."""

    @property
    def function(self) -> Kernel:
        """The kernel, with ``gamma`` where it is given."""
        return Kernel(self.kernel, self.gamma, self.coef0, self.degree)

    @property
    def asked(self) -> Literal["distances", "products", "landmarks"]:
        """What the parties add up: the phase, and its field."""
        if self.landmarks:
            return "landmarks"
        return "distances" if self.function.of_distances else "products"


def phases(config: RunConfig, options: KernelOptions) -> Phases:
    """The questions of the run's kernel."""
    if options.landmarks and not options.function.semidefinite:
        raise ConfigError(
            f"run-config: 'landmarks' is {options.landmarks}, but the kernel '{options.kernel}' may have negative "
            "eigenvalues, for which the approximation is wrong without notice; set landmarks=0"
        )
    known = {
        "distances": bounded(
            config,
            Phase(reply=Payload((Field("distances", ("n(n-1)/2",)),))),
            lambda energy, asked, public: distance_limits(energy, public.rows),
        ),
        "products": bounded(
            config,
            Phase(reply=Payload((Field("products", ("n(n+1)/2",), kind="scatter"),))),
            lambda energy, asked, public: inner_product_limits("products", energy, public.rows),
        ),
        "landmarks": bounded(
            config,
            Phase(
                asked=Payload((Field("places", ("c",), "int64", kind="size"),)),
                reply=Payload((Field("landmarks", ("n", "c")),)),
                sizes=lambda public: {"c": public.options.landmarks},
            ),
            lambda energy, asked, public: landmark_limits(energy, public.rows, asked["places"].size),
        ),
    }
    measures = (ENERGY, Field("level", ()), Field("spread", (), kind="size"))
    sums = ("energy",) if options.gamma else ("energy", "sum")
    begin = rows_phases(
        config, options, measures=measures, sums=sums, centred=["energy"] * options.function.of_distances
    )
    if config.transport != "clear" and not options.gamma:
        begin = {**begin, "spread": measures_phase(options, ("spread",), Field("level", ()))}
    return {**begin, options.asked: known[options.asked], **keeping_phase(DIRECTIONS, SINGULAR)}
