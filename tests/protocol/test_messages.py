"""What a client says of itself, and of an error."""

import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.protocol.admission import info_of
from tests.families import rows
from tests.harness import client_of, server_of
from tests.refusals import refused


@pytest.mark.parametrize("code", [*range(10), *range(11, 32), 127])
def test_no_control_character_of_an_error_leaves_a_site_or_is_taken(code):
    """Only a line may end: a terminal that shows the text of a stranger does nothing else."""
    client = client_of(server_of("p-cov", [rows(30, 4), rows(20, 4)], n_components=2), 0)
    said = client.site.report(ConfigError(f"one{chr(code)}two\nthree"))
    assert said["message"] == "one?two\nthree"
    assert info_of(said).message == said["message"]
    with refused(ContractError, "client 0", match="control"):
        info_of({**said, "message": f"one{chr(code)}two"})
