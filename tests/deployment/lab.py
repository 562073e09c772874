"""A laboratory on loopback: a SuperLink and its SuperNodes with TLS and node authentication, as operators run it."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from strategies import run_config_of

ROOT = Path(__file__).parents[2]

LONGEST = 1800.0
"""Seconds after which something hangs: a net only, whatever else the machine has to do."""


def told(method: str, **values: Any) -> str:
    """A method, its options and keys of the run as `--run-config` takes them."""
    config = run_config_of({"method": method, **{key.replace("_", "-"): value for key, value in values.items()}})
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def identified(folder: Path, sites: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sites, each with an identity of its own and the list of all, made as the guide says."""
    lines = []
    for i, site in enumerate(sites):
        site |= {"identity": str(folder / f"site{i}.identity"), "identities": str(folder / "identities")}
        made = [site["identity"], "--partition-id", str(i), "--name", site["name"]]
        command = [sys.executable, "-m", "fedpca_flwr.site", "keys", *made]
        lines.append(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    (folder / "identities").write_text("".join(lines))
    return sites


class Lab:
    """Starts everything on entry, and stops it on exit.

    Parameters
    ----------
    folder : Path
        Empty; holds keys, certificates, logs and Flower's own state.
    node_configs : list of dict
        One SuperNode each.
    """

    def __init__(self, folder: Path, node_configs: list[dict[str, object]]) -> None:
        self.folder = folder
        self.node_configs = node_configs
        self.processes: dict[str, subprocess.Popen] = {}
        self.port = _free_port()
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> Lab:
        try:
            self._start_link()
            for i in range(len(self.node_configs)):
                self.start_node(i)
            self._until(self._all_online, "SuperNodes online")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def start_node(self, i: int) -> None:
        key = self.folder / f"node{i}"
        _node_key(key)
        self.flwr("supernode", "register", f"{key}.pub", "lab")
        config = " ".join(f"{k}={json.dumps(v)}" for k, v in self.node_configs[i].items())
        self._spawn(
            f"node{i}",
            ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", "ca.crt"]
            + ["--host", "127.0.0.1", "--port", str(_free_port())]
            + ["--auth-supernode-private-key", str(key), "--node-config", config],
        )

    def run(self, run_config: str, *options: str) -> tuple[str, str]:
        """Run the app; its final status and its log."""
        log = self.flwr("run", str(ROOT), "lab", "--run-config", run_config, "--stream", *options)
        started = re.search(r"started run (\d+)", log)
        if not started:
            raise RuntimeError(f"flwr run: {log}")
        status = ""

        def finished() -> bool:
            nonlocal status
            listed = self.flwr("ls", "lab", "--run-id", started[1], "--format", "json")
            status = json.loads(listed[listed.index("{") :])["runs"][0]["status"]
            return status.startswith("finished")

        self._until(finished, "the run")  # a moment after its last line
        return status, log

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            ["flwr", *arguments], env=self.environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _start_link(self) -> None:
        (self.folder / "flwr").mkdir(parents=True)
        _certificates(self.folder)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder}/ca.crt"\n'
        )
        self._spawn(
            "link",
            ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth"]
            + ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"],
        )
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        url = f"https://127.0.0.1:{self.port}/health"
        self._until(lambda: urllib.request.urlopen(url, context=trust, timeout=20).status == 200, "SuperLink healthy")

    def _all_online(self) -> bool:
        listed = self.flwr("supernode", "list", "lab", "--format", "json")
        nodes = json.loads(listed[listed.index("{") :])["nodes"]
        return sum(node["status"] == "online" for node in nodes) == len(self.node_configs)

    def _spawn(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}: {self.log_of(name)[-2000:]}")
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                if condition():
                    return
            time.sleep(0.3)
        raise TimeoutError(what)


class SimulationLab(Lab):
    """A SuperLink that simulates its nodes with Ray, as ``flwr run`` starts one for itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [])

    def _start_link(self) -> None:
        (self.folder / "flwr").mkdir(parents=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self._spawn(
            "link",
            ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(self.port)],
        )
        url = f"http://127.0.0.1:{self.port}/health"
        self._until(lambda: urllib.request.urlopen(url, timeout=20).status == 200, "SuperLink healthy")

    def _all_online(self) -> bool:
        return True


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _node_key(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def _certificates(folder: Path) -> None:
    """A certificate authority and a server certificate for loopback, valid for two days."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab-ca")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    root = (
        _certificate(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .add_extension(_signing_only(), critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        _certificate(subject, issuer, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(
        server.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def _signing_only() -> x509.KeyUsage:
    usages = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        **dict.fromkeys(usages, False), key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
    )
