"""What a person runs: one federated PCA from Python, benchmarks, deployment."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpca_flwr.simulations.engines import run

__all__ = ["run"]

ENGINES = ("loopback", "ray")
"""Where a run's parties are: in this process, or in Flower's simulation."""


def __getattr__(name: str) -> Any:
    """`run` is loaded where it is first named: a command's help needs neither Flower nor SciPy."""
    if name != "run":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from fedpca_flwr.simulations.engines import run

    return run
