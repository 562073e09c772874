"""Requests of a site to Flower outside any run: reading a config as Flower does, and asking a SuperLink for a key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args

from fedpca_flwr.errors import ConfigError, FedPCAError


def parse_config_text(text: str, what: str) -> dict[str, Any]:
    """Parse ``key=value key='text'``, or the TOML file of a path, as Flower does; raise ConfigError naming `what`."""
    try:
        return dict(parse_config_args([text]))
    except Exception as error:  # of the command line or of a file
        kind = type(error).__name__
        raise ConfigError(f"the {what} cannot be read ({kind}): expected key=value key='text'") from None


def make_context(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Context:
    """Return a Flower context with a site's configs, run 0, node 0 and no state, for checks outside any run."""
    return Context(run_id=0, node_id=0, node_config=dict(node_config), state=RecordDict(), run_config=dict(run_config))


def require_registered(superlink: str, certificate: Path | None, key: Path) -> None:
    """Raise FedPCAError unless a SuperLink answers and knows this SuperNode's key; ConfigError for a wrong key file.

    The SuperLink is asked to activate the node with a heartbeat interval that it does not allow. It complains of the
    interval only if it knows the key; no node becomes active. Without a certificate the connection has no TLS.
    """
    try:
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.error import ApiErrorCode, FlowerError
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    except ImportError as error:
        raise FedPCAError(
            f"this version of Flower does not answer the question ({error}); 'flwr supernode list' shows the nodes"
        ) from None
    private = _load_private_key(key)
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    interceptors = (version, NodeAuthHttpInterceptor(private, private.public_key()))
    root_certificates = None if certificate is None else certificate.read_bytes()
    with FleetHttpClient.from_server_address(
        superlink, certificate is None, root_certificates, interceptors=interceptors
    ) as client:
        try:
            client.ActivateNode(ActivateNodeRequest(public_key=public_key_to_bytes(private.public_key())))
        except httpx.HTTPStatusError as error:
            flower_error = FlowerError.from_json(error.response.text)
            if flower_error and flower_error.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
                return
        except httpx.HTTPError as error:
            raise FedPCAError(f"{superlink} does not answer ({type(error).__name__}): is it a SuperLink?") from None
    raise FedPCAError(
        f"{superlink} does not know the key {key}: ask the coordinator to run 'flwr supernode register {key.name}.pub'"
    )


def _load_private_key(key: Path) -> ec.EllipticCurvePrivateKey:
    """Load the private elliptic-curve key of a SuperNode from an SSH key file; raise ConfigError for any other file."""
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the key {key} cannot be read ({type(error).__name__}): 'site node-key' makes one") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"the key {key} is not a key that Flower accepts: 'site node-key' makes one")
    return private
