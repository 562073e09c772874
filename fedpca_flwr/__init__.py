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
    from fedpca_flwr.flower import FedPCA, client_app
    from fedpca_flwr.model.federation import Federation
    from fedpca_flwr.model.model import PCAModel
    from fedpca_flwr.model.reference import pooled_pca, principal_angles
    from fedpca_flwr.model.second_moments import SecondMoments
    from fedpca_flwr.site.readers import read
    from simulations.battery import battery
    from simulations.comparing import compare
    from simulations.engines import run
    from simulations.estimator import FederatedPCA
    from strategies import METHODS
    from strategies.adaptive import Adaptive
    from strategies.approximate_covariance import ApproximateCovariance
    from strategies.approximate_stack import ApproximateStack
    from strategies.compressed import Compressed
    from strategies.dp_pca.method import DPPCA
    from strategies.dsa import DSA
    from strategies.em import EM
    from strategies.fast_pca import FastPCA
    from strategies.personalised.method import Personalised
    from strategies.pooled_covariance import PooledCovariance
    from strategies.qr_pca import QRPCA
    from strategies.robust.method import Robust
    from strategies.sapca import SAPCA
    from strategies.streaming import Streaming
    from strategies.subspace_iteration import SubspaceIteration
    from strategies.vertical import Vertical
    from strategies.vertical_kernel import VerticalKernel
    from strategies.vertical_scores import VerticalScores
    from strategies.vfedakpca import VFedAKPCA
    from strategies.vfedpca import VFedPCA

__version__ = "0.2.0"

HOMES = {
    "FedPCA": "fedpca_flwr.flower",
    "FederatedPCA": "simulations.estimator",
    "Federation": "fedpca_flwr.model.federation",
    "METHODS": "strategies",
    "battery": "simulations.battery",
    "client_app": "fedpca_flwr.flower",
    "compare": "simulations.comparing",
    "SecondMoments": "fedpca_flwr.model.second_moments",
    "PCAModel": "fedpca_flwr.model.model",
    "pooled_pca": "fedpca_flwr.model.reference",
    "principal_angles": "fedpca_flwr.model.reference",
    "read": "fedpca_flwr.site.readers",
    "run": "simulations.engines",
}
"""Where each name is at home."""

__all__ = [
    "DPPCA",
    "DSA",
    "EM",
    "METHODS",
    "QRPCA",
    "SAPCA",
    "Adaptive",
    "ApproximateCovariance",
    "ApproximateStack",
    "Compressed",
    "ConfigError",
    "ContractError",
    "DataError",
    "DisclosureError",
    "FastPCA",
    "FedPCA",
    "FedPCAError",
    "FederatedPCA",
    "Federation",
    "PCAModel",
    "PartyError",
    "Personalised",
    "PooledCovariance",
    "QuorumError",
    "Robust",
    "SecondMoments",
    "Streaming",
    "SubspaceIteration",
    "VFedAKPCA",
    "VFedPCA",
    "Vertical",
    "VerticalKernel",
    "VerticalScores",
    "__version__",
    "battery",
    "client_app",
    "compare",
    "pooled_pca",
    "principal_angles",
    "read",
    "run",
]


def __getattr__(name: str) -> Any:
    from fedpca_flwr.packages import module

    if name in HOMES:
        home = HOMES[name]
        return getattr(import_module(home) if home.startswith("fedpca_flwr.") else module(home), name)
    strategy = module("strategies").METHODS.strategy_named(name) if name[:1].isupper() else None
    if strategy is None:
        raise AttributeError(f"module 'fedpca_flwr' has no attribute '{name}'")
    return strategy


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
