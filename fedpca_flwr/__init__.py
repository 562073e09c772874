"""Federated principal component analysis on Flower."""

from fedpca_flwr.errors import (
    ConfigError,
    ContractError,
    DataError,
    DisclosureError,
    FedPCAError,
    PartyError,
    QuorumError,
)
from fedpca_flwr.model import PCAModel

__all__ = [
    "ConfigError",
    "ContractError",
    "DataError",
    "DisclosureError",
    "FedPCAError",
    "PCAModel",
    "PartyError",
    "QuorumError",
]
