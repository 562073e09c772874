"""Federated principal component analysis on Flower.

What people use is imported from here; it is loaded where it is first named, so that importing the package costs little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpca_flwr.errors import (
    ConfigError,
    ContractError,
    DataError,
    DisclosureError,
    FedPCAError,
    PartyError,
    QuorumError,
)

if TYPE_CHECKING:
    from fedpca_flwr.federation import Federation
    from fedpca_flwr.flower import FedPCA, client_app
    from fedpca_flwr.metrics import principal_angles
    from fedpca_flwr.model import PCAModel
    from fedpca_flwr.reference import pooled_pca
    from fedpca_flwr.second_moments import SecondMoments
    from simulations.comparing import compare
    from simulations.engines import run
    from simulations.estimator import FederatedPCA
    from strategies import METHODS

__version__ = "0.1.0"

HOMES = {
    "FedPCA": "fedpca_flwr.flower",
    "FederatedPCA": "simulations.estimator",
    "Federation": "fedpca_flwr.federation",
    "METHODS": "strategies",
    "client_app": "fedpca_flwr.flower",
    "compare": "simulations.comparing",
    "SecondMoments": "fedpca_flwr.second_moments",
    "PCAModel": "fedpca_flwr.model",
    "pooled_pca": "fedpca_flwr.reference",
    "principal_angles": "fedpca_flwr.metrics",
    "run": "simulations.engines",
}
"""Where each name is at home."""

__all__ = [
    "METHODS",
    "ConfigError",
    "ContractError",
    "DataError",
    "DisclosureError",
    "FedPCA",
    "FedPCAError",
    "FederatedPCA",
    "Federation",
    "PCAModel",
    "PartyError",
    "QuorumError",
    "SecondMoments",
    "__version__",
    "client_app",
    "compare",
    "pooled_pca",
    "principal_angles",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'fedpca_flwr' has no attribute '{name}'")
    from fedpca_flwr.packages import module

    home = HOMES[name]
    return getattr(import_module(home) if home.startswith("fedpca_flwr.") else module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
