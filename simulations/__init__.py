"""What a person runs: one federated PCA from Python, benchmarks, deployment."""

from simulations.run import run

__all__ = ["run"]
