"""Who takes part: exactly the expected parties."""

from __future__ import annotations

import pytest

from fedpca_flwr.errors import QuorumError
from simulations.loopback import LoopbackProxy
from tests.families import rows
from tests.harness import finish, proxy_of, server_of
from tests.refusals import refused


@pytest.mark.parametrize("more", [1, 2])
def test_one_client_too_many_is_refused(more):
    server = server_of("p-cov", [rows(30, 4), rows(20, 4)], n_components=2)
    for number in range(more):
        server.client_manager().register(LoopbackProxy(f"another {number}", proxy_of(server, 1).make))
    with refused(QuorumError, 2 + more, 2):
        finish(server)
