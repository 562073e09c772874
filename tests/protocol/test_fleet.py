"""What a site asks Flower outside any run: what a config says, and whether a SuperLink knows the site's key."""

import sys
from functools import partial
from unittest.mock import Mock

import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.error import ApiErrorCode

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.protocol import fleet
from fedpca_flwr.site.node.certificates import make_certificates, make_node_key
from tests.refusals import refused

KNOWN, FAILED = ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL, ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED


def test_a_superlink_is_asked_for_a_key_and_activates_no_node(tmp_path, monkeypatch):
    """It complains of the heartbeat only to a node that it knows."""
    link, key, superlink = "127.0.0.1:9092", tmp_path / "site", Mock()
    make_certificates(tmp_path, ["127.0.0.1"])
    make_node_key(key)
    client = Mock(side_effect=partial(httpx.Client, transport=httpx.MockTransport(superlink)))
    monkeypatch.setattr(httpx, "Client", client)

    def ask(answer, certificate=None):
        superlink.side_effect = [answer]
        fleet.require_registered(link, certificate, key)

    for certificate, url in ((None, f"http://{link}/"), (tmp_path / "ca.crt", f"https://{link}/")):
        ask(httpx.Response(400, json={"code": KNOWN, "detail": ""}), certificate)
        (request,) = superlink.call_args.args
        assert str(request.url).startswith(url)
        assert {"flwr-component-name", "flwr-signature"} <= request.headers.keys()
        assert ActivateNodeRequest.FromString(request.content).heartbeat_interval == 0
    assert len(client.call_args.kwargs["verify"].get_ca_certs()) == 1, "that of the coordinator, and no other"
    for answer in ({"json": {"code": FAILED, "detail": ""}}, {"text": "no JSON"}):
        with refused(FedPCAError, link, key, "site.pub"):
            ask(httpx.Response(400, **answer))
    with refused(FedPCAError, link, "ConnectError"):
        ask(httpx.ConnectError("nobody there"))
    monkeypatch.setitem(sys.modules, "flwr.supernode.fleet_http_client", None)
    with refused(FedPCAError, "'flwr supernode list'"):
        ask(httpx.Response(200))


def test_contexts_hold_both_configs():
    context = fleet.make_context({"partition-id": 1}, {"method": "p-cov"})
    assert (context.node_config, context.run_config) == ({"partition-id": 1}, {"method": "p-cov"})
    with refused(ConfigError, "node-config", "FileNotFoundError"):
        fleet.parse_config_text("no file.toml", "node-config")
