"""The methods: one file each, and one line in `METHODS`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import Context

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.party import Table, local_table
from fedpca_flwr.protocol.client import PCAClient as NewClient
from fedpca_flwr.protocol.strategy import PCAStrategy as NewStrategy
from fedpca_flwr.site.site import Site
from fedpca_flwr.transports.choice import party_transport, server_transport
from strategies.adaptive import Adaptive, AdaptiveClient
from strategies.approximate_covariance import ApproximateCovariance, ApproximateCovarianceClient
from strategies.approximate_stack import ApproximateStack, ApproximateStackClient
from strategies.base import PCAClient, PCAStrategy
from strategies.compressed import Compressed, CompressedClient
from strategies.dp_pca import DPPCA, DPPCAClient
from strategies.dsa import DSA, DSAClient
from strategies.fast_pca import FastPCA, FastPCAClient
from strategies.personalised import Personalised
from strategies.personalised_client import PersonalisedClient
from strategies.pooled_covariance import PooledCovariance, PooledCovarianceClient
from strategies.qr_pca import QRPCA, QRPCAClient
from strategies.sapca import SAPCA, SAPCAClient
from strategies.secure_subspace_iteration import SecureSubspaceIteration, SecureSubspaceIterationClient
from strategies.streaming import Streaming, StreamingClient
from strategies.subspace_iteration import SubspaceIteration, SubspaceIterationClient
from strategies.vertical import Vertical, VerticalClient
from strategies.vertical_kernel import VerticalKernel, VerticalKernelClient
from strategies.vertical_scores import VerticalScores, VerticalScoresClient
from strategies.vfedakpca import VFedAKPCA, VFedAKPCAClient
from strategies.vfedpca import VFedPCA, VFedPCAClient


class Method(NamedTuple):
    """A method's two halves; those with secure aggregation where the server needs sums only, and those that go on with
    the survivors where it needs one sum."""

    strategy: type[PCAStrategy]
    client: type[PCAClient]
    secure: Method | None = None
    survivors: Method | None = None


METHODS = {
    method.strategy.card.name: method
    for method in (
        Method(PooledCovariance, PooledCovarianceClient),
        Method(ApproximateCovariance, ApproximateCovarianceClient),
        Method(
            SubspaceIteration,
            SubspaceIterationClient,
            secure=Method(SecureSubspaceIteration, SecureSubspaceIterationClient),
        ),
        Method(QRPCA, QRPCAClient),
        Method(ApproximateStack, ApproximateStackClient),
        Method(Compressed, CompressedClient),
        Method(Adaptive, AdaptiveClient),
        Method(DSA, DSAClient),
        Method(FastPCA, FastPCAClient),
        Method(Streaming, StreamingClient),
        Method(DPPCA, DPPCAClient),
        Method(Personalised, PersonalisedClient),
        Method(SAPCA, SAPCAClient),
        Method(Vertical, VerticalClient),
        Method(VerticalKernel, VerticalKernelClient),
        Method(VerticalScores, VerticalScoresClient),
        Method(VFedPCA, VFedPCAClient),
        Method(VFedAKPCA, VFedAKPCAClient),
    )
}


def method_named(name: str) -> Method:
    """A method by its name.

    Raises
    ------
    ConfigError
        With the names there are.
    """
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else ""
    raise ConfigError(f"run-config: 'method' is '{name}', expected one of: {', '.join(METHODS)}. {hint}".rstrip())


def method_of(config: RunConfig) -> Method:
    """The method that a run uses.

    Raises
    ------
    ConfigError
    """
    method = method_named(config.method)
    if not config.secure_aggregation:
        return method
    if method.secure is None:
        summable = ", ".join(name for name, other in METHODS.items() if other.secure)
        raise ConfigError(
            f"run-config: 'secure-aggregation' is true, but '{config.method}' needs more than a sum of the parties' "
            f"replies; methods that do not: {summable}"
        )
    if not config.survivors:
        return method.secure
    if method.survivors is None:
        single = ", ".join(name for name, other in METHODS.items() if other.survivors)
        raise ConfigError(
            f"run-config: 'survivors' is {config.survivors}, but '{config.method}' asks for many sums, and the "
            "difference of two over different parties would show the share of those that left; with one sum: "
            f"{single} (or 'survivors' 0: everyone or no one)"
        )
    return method.survivors


def build_strategy(run_config: Mapping[str, Any]) -> PCAStrategy:
    """The server's half of the run that ``run_config`` describes.

    Raises
    ------
    ConfigError
        For an unknown method, a key that neither every run nor this method has, or a value that is not allowed.
    """
    config, rest = RunConfig.split(run_config)
    named = method_named(config.method)
    if issubclass(named.strategy, NewStrategy):
        options = named.strategy.card.options
        parsed = options.parse(rest, known=(*RunConfig.keys(), *options.keys()))
        return named.strategy(config, parsed, server_transport(config))
    strategy = method_of(config).strategy
    options = strategy.card.options
    return strategy(config, options.parse(rest, known=(*RunConfig.keys(), *options.keys())))


def build_client(context: Context, load: Callable[..., Table] = local_table) -> PCAClient:
    """A party's half of the run that ``context`` describes; ``load`` gives its rows (see `PCAClient`)."""
    config, _ = RunConfig.split(context.run_config)
    named = method_named(config.method)
    if issubclass(named.client, NewClient):
        return named.client(named.strategy.card, Site(context, load), party_transport)
    method = method_of(config)
    return method.client(method.strategy.card, context, load)
