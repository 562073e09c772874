"""Federated principal component analysis on Flower.

Public names are imported from here; each is loaded when it is first used, so that importing the package costs little.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca_flwr.errors import (
    ConfigError,
    ContractError,
    DataError,
    DisclosureError,
    FedPCAError,
    PartyError,
    QuorumError,
    removal_text,
)

if TYPE_CHECKING:
    from fedpca_flwr.flower import FedPCA, client_app, client_loadings
    from fedpca_flwr.model.federation import Federation
    from fedpca_flwr.model.model import PCAModel
    from fedpca_flwr.model.reference import pooled_pca, principal_angles
    from fedpca_flwr.model.second_moments import SecondMoments
    from fedpca_flwr.simulations.battery import battery
    from fedpca_flwr.simulations.comparing import compare
    from fedpca_flwr.simulations.engines import run
    from fedpca_flwr.simulations.estimator import FederatedPCA
    from fedpca_flwr.simulations.local_grid import LocalGrid
    from fedpca_flwr.site.readers.files import read
    from fedpca_flwr.strategies import METHODS
    from fedpca_flwr.strategies.adaptive import Adaptive
    from fedpca_flwr.strategies.approximate_covariance import ApproximateCovariance
    from fedpca_flwr.strategies.approximate_stack import ApproximateStack
    from fedpca_flwr.strategies.compressed.method import Compressed
    from fedpca_flwr.strategies.dp_pca.method import DPPCA
    from fedpca_flwr.strategies.dsa import DSA
    from fedpca_flwr.strategies.em.method import EM
    from fedpca_flwr.strategies.fast_pca import FastPCA
    from fedpca_flwr.strategies.personalised.method import Personalised
    from fedpca_flwr.strategies.pooled_covariance import PooledCovariance
    from fedpca_flwr.strategies.qr_pca import QRPCA
    from fedpca_flwr.strategies.robust.method import Robust
    from fedpca_flwr.strategies.sapca.method import SAPCA, SPCA
    from fedpca_flwr.strategies.streaming.method import Streaming
    from fedpca_flwr.strategies.subspace_iteration import SubspaceIteration
    from fedpca_flwr.strategies.vertical import Vertical
    from fedpca_flwr.strategies.vertical_scores import VerticalScores
    from fedpca_flwr.strategies.vfedakpca import VFedAKPCA
    from fedpca_flwr.strategies.vfedpca import VFedPCA

__version__ = "0.2.0"

if not Path(__file__).with_name("strategies").is_dir():
    # Flower's archive, and a clone on a system without symbolic links, have both other packages beside this one.
    __path__.append(str(Path(__file__).parents[1]))

PUBLIC_MODULES = {
    "FedPCA": "fedpca_flwr.flower",
    "FederatedPCA": "fedpca_flwr.simulations.estimator",
    "Federation": "fedpca_flwr.model.federation",
    "LocalGrid": "fedpca_flwr.simulations.local_grid",
    "METHODS": "fedpca_flwr.strategies",
    "battery": "fedpca_flwr.simulations.battery",
    "client_app": "fedpca_flwr.flower",
    "client_loadings": "fedpca_flwr.flower",
    "compare": "fedpca_flwr.simulations.comparing",
    "SecondMoments": "fedpca_flwr.model.second_moments",
    "PCAModel": "fedpca_flwr.model.model",
    "pooled_pca": "fedpca_flwr.model.reference",
    "principal_angles": "fedpca_flwr.model.reference",
    "read": "fedpca_flwr.site.readers.files",
    "run": "fedpca_flwr.simulations.engines",
}
"""Where each name is at home."""

__all__ = [
    "DPPCA",
    "DSA",
    "EM",
    "METHODS",
    "QRPCA",
    "SAPCA",
    "SPCA",
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
    "LocalGrid",
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
    "VerticalScores",
    "__version__",
    "battery",
    "client_app",
    "client_loadings",
    "compare",
    "pooled_pca",
    "principal_angles",
    "read",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or the strategy of a class name, on first use; raise AttributeError for any other name."""
    if name in PUBLIC_MODULES:
        return getattr(import_module(PUBLIC_MODULES[name]), name)
    strategy = None
    if name[:1].isupper():
        strategy = import_module("fedpca_flwr.strategies").METHODS.strategy_by_class(name)
    if strategy is None:
        removal = removal_text(name)
        raise AttributeError(f"module 'fedpca_flwr' has no attribute '{name}'" + (f", {removal}" if removal else ""))
    return strategy


def __dir__() -> list[str]:
    """Return the names of the module, and the public names that are imported on first use."""
    return sorted({*globals(), *__all__})
