"""A ClientApp whose SuperNode has ended, as processes are: started by a SuperExec that the SuperNode has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.site.test_rehearsal import lives

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux' list of processes")

CLIENT = """
import time
from fedpca_flwr.site import outlived
outlived.LOOKS = outlived.GRACE = 0.05
outlived.end_with_node()
print("watches 0", flush=True)
time.sleep(600)
"""
EXEC = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print("client", child.pid, flush=True)
time.sleep(600)
"""
NODE = """
import os, subprocess, sys
middle = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], "--parent-pid", str(os.getpid())])
print("exec", middle.pid, flush=True)
middle.wait()
"""


@pytest.mark.parametrize("elder", ["node, which nobody fetches", "exec"])
def test_a_client_ends_with_its_node_and_with_what_is_between_them(elder):
    with subprocess.Popen([sys.executable, "-c", NODE, EXEC, CLIENT], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout
        told = dict(node.stdout.readline().split() for _ in range(3))
        client, middle = int(told["client"]), int(told["exec"])
        try:
            assert lives(client)
            os.kill(node.pid if elder.startswith("node") else middle, signal.SIGKILL)  # not waited for: it is a zombie
            until = time.monotonic() + 60
            while lives(client):
                assert time.monotonic() < until
                time.sleep(0.05)
        finally:
            for process in filter(lives, [client, middle, node.pid]):
                os.kill(process, signal.SIGKILL)
