"""`site doctor` asks a SuperLink whether it knows a key, and no node becomes active by it."""

import pytest

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.protocol.fleet import require_registered
from fedpca_flwr.site.certificates import make_node_key
from fedpca_flwr.site.deployment import HOST
from tests.deployment.lab import Lab
from tests.refusals import refused

pytestmark = pytest.mark.engine


def test_a_key_is_known_once_it_is_registered(tmp_path):
    with Lab(tmp_path / "lab", []) as lab:
        link, key = f"{HOST}:{lab.port}", lab.folder / "site"
        public = make_node_key(key)
        with refused(FedPCAError, link, key, "site.pub"):
            require_registered(link, lab.folder / "ca.crt", key)
        lab.flwr("supernode", "register", str(public), "lab")
        require_registered(link, lab.folder / "ca.crt", key)
        assert [node["status"] for node in lab.flwr.listed("supernode", "list", "lab")["nodes"]] != ["online"]
