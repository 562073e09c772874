"""Who may read what a site writes, whatever umask its account has."""

import os
import stat
import sys

import numpy as np
import pytest

from fedpca_flwr import FedPCA, LocalGrid, run, site_app
from fedpca_flwr.cli import main
from fedpca_flwr.site.node.deployment import make_site_configs, write_site_files
from tests.families import cut, rows
from tests.harness import identities, sites_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")


@pytest.fixture(autouse=True, params=[0o022, 0])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder):
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def assert_private(folder, *, readable=()):
    found = modes(folder)
    assert found
    expected = {name: 0o700 if (folder / name).is_dir() else 0o600 for name in found}
    assert found == {**expected, **dict.fromkeys(readable, 0o644)}


@pytest.mark.engine
@pytest.mark.parametrize("blind", [True, False])
def test_the_files_of_a_run_are_the_sites_alone(blind, tmp_path):
    """The model is the one secret of a blind run, since its server does not have it."""
    made, nodes = tmp_path / "made", sites_of(tmp_path / "sources", cut(rows(180, 4), 60, 60, 60))
    names = {"journal": "deep/journal", "scores": "scores/s.csv", "loadings": "loadings.npz", "metrics": "m/numbers"}
    names |= {"model": "deep/er/models"} if blind else {}
    for party, node in enumerate(nodes):
        node |= {key: str(made / f"site{party}" / name) for key, name in names.items()} | identities(3)[party]
        node |= {"may-show": "distribution", "allowed-methods": "p-cov"}
    options = {"secure_aggregation": True, "bound": 1e5, "blind": True} if blind else {"outliers": "sites"}
    strategy = FedPCA("p-cov", n_components=2, **options)
    config = strategy.strategy.config.model_dump(by_alias=True)
    config["method"] = "p-cov" if blind else "p-cov outliers='sites'"
    strategy.start(LocalGrid(site_app.app, nodes, config))
    readable = [f"site{party}/m/numbers.{suffix}" for party in range(3) for suffix in ("prom", "jsonl")]
    for party in range(3):
        (made / f"site{party}" / "m").chmod(0o700)  # readable, as its files
    assert_private(made, readable=readable)
    assert len(list(made.glob("site*/deep/er/models/model-*.npz"))) == 3 * blind


@pytest.mark.engine
def test_what_commands_of_a_site_and_rehearsals_write_is_private_but_for_certificates(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir(0o700)
    monkeypatch.chdir(home)
    np.savetxt(tmp_path / "rows.csv", rows(60, 4), delimiter=",", header="a,b,c,d", comments="")
    main(["site", "keys", "key", "--partition-id", "0"])
    main(["site", "node-key", "node"])
    main(["site", "ids-secret", "salt"])
    for flags in ([], ["--renew"]):
        main(["site", "certificates", "new/link", "--host", "localhost", "--authority", "new/authority", *flags])
    (node,) = sites_of(tmp_path / "site", [rows(60, 4)])
    make_site_configs(home / "sites", "hospital", write_site_files(home / "sites", ["a", "b"], [rows(20, 2)] * 3))
    config = f"partition-id=0 num-partitions=2 data='{node['data']}'"
    words = ["--rows", "100", "--node-config", config, "--run-config", "n-components=2"]
    assert main(["site", "worth", *words, "--output", "pages/worth.html"]) == 0
    assert_private(home, readable=["new/link/ca.crt", "new/link/server.pem", "node.pub"])
    assert "pages/worth.html" in modes(home)


def test_a_servers_model_may_be_read_and_a_folder_keeps_its_mode(tmp_path):
    model, folder = run("p-cov", [rows(20, 2)], n_components=1), tmp_path / "models"
    folder.mkdir(0o755)
    before = modes(tmp_path)
    model.save(folder / "model", private=True)
    model.save(tmp_path / "model")
    assert modes(tmp_path) == {**before, "models/model.npz": 0o600, "model.npz": 0o644}
