"""A method: its strategy and its client."""

from __future__ import annotations

from typing import NamedTuple

from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.strategy import PCAStrategy


class Method(NamedTuple):
    """A method's two halves. How answers travel is no part of it (`fedpca_flwr.transports`)."""

    strategy: type[PCAStrategy]
    client: type[PCAClient]
