"""What runs at a site needs nothing that Windows lacks: played here by taking it away, and by other encodings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.genetics.bed_file import read_bim
from fedpca_flwr.site.node import deployment
from fedpca_flwr.transports.identity import read_member_keys

ROOT = Path(__file__).parents[2]

WITHOUT = """
import importlib, os, pkgutil, signal, sys
from pathlib import Path
import numpy as np
def load():
    import fedpca_flwr.simulations.compare, tests.harness
    for module in pkgutil.walk_packages(fedpca_flwr.__path__, "fedpca_flwr."):
        if not module.name.endswith("__main__") and not module.name.startswith("fedpca_flwr.simulations."):
            importlib.import_module(module.name)
load()
ours = [name for name in sys.modules if name.split(".")[0] in ("fedpca_flwr", "tests")]
for name in ours:  # other libraries have their ways on Windows
    del sys.modules[name]
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog"):
    sys.modules[name] = None
gone = "fork forkpty getuid geteuid getgid getegid getpgid setsid setuid killpg chown fchown fchmod sysconf uname"
for name in gone.split():
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "SIGSTOP", "alarm", "setitimer"):
    delattr(signal, name)
load()
from fedpca_flwr.cli import main
from tests.harness import at_sites, finish, server_of
folder = Path(sys.argv[1])
main(["site", "certificates", str(folder), "--host", "localhost"])
main(["site", "node-key", str(folder / "site")])
main(["site", "ids-secret", str(folder / "salt")])
X = np.random.default_rng(0).normal(size=(60, 5))
nodes = []
for i, part in enumerate(np.split(X, [30])):
    np.savetxt(folder / f"{i}.csv", part, delimiter=",")
    nodes.append({"data": str(folder / f"{i}.csv"), "scores": str(folder / f"scores{i}.csv"), "min-parties": 2})
    nodes[-1]["journal"] = str(folder / f"journal{i}")
server = server_of("p-cov", np.split(X, [30]), n_components=2, secure_aggregation=True, bound=10.0)
print(finish(at_sites(server, nodes)).n_samples_)
sys.exit(main(["site", "journal", str(folder / "journal0"), "--check"]))
"""


@pytest.mark.engine
def test_sites_need_nothing_of_posix(tmp_path):
    command, environment = [sys.executable, "-c", WITHOUT, str(tmp_path)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "\n60\n" in done.stdout
    assert (tmp_path / "scores1.csv").exists()


@pytest.mark.engine
def test_a_site_is_killed_on_systems_without_process_groups(monkeypatch):
    monkeypatch.delattr(os, "killpg")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    deployment.kill_process(process)
    assert process.poll() is not None


def test_lists_of_identities_and_of_variants_are_read_in_every_encoding(tmp_path, monkeypatch):
    """`>` of Windows PowerShell writes UTF-16, and editors a mark before UTF-8; both with their line ends."""
    members, variants = tmp_path / "identities", tmp_path / "common.bim"
    with open(members, "w", encoding="cp1252") as printed:  # the command writes UTF-8 all the same
        monkeypatch.setattr(sys, "stdout", printed)
        main(["site", "keys", str(tmp_path / "0"), "--partition-id", "0", "--name", "Łódź Zürich"])
    assert "Łódź Zürich" in members.read_text(encoding="utf-8")
    assert len(read_member_keys(str(members), 1)) == 1
    keys = [f"{i} {i:063x}7  # hospital {i}" for i in range(3)]
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        members.write_bytes("\r\n".join(keys).encode(encoding))
        assert len(read_member_keys(str(members), 3)) == 3
        variants.write_bytes("1\ta\t0\t7\tA\tG\r\n2\tb\t0\t9\tC\tT\r\n".encode(encoding))
        assert [str(variant) for variant in read_bim(variants)] == ["1:7:A:G", "2:9:C:T"]
