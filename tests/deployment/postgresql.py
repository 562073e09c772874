"""A PostgreSQL server of one's own, for measurements and tests: on loopback, in a temporary folder, with a password."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fedpca_flwr.site.node.deployment import free_port

USER = "site"


class Server(NamedTuple):
    """A server that runs; libpq finds its password in a file that PGPASSFILE names."""

    url: str  # with a user and without a password
    password: str
    passfile: Path


def programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs, the newest, if it is installed."""
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return Path(found).parent if found else debian[-1].parent if debian else None


@contextmanager
def running() -> Iterator[Server]:
    """Return a server; root starts it as 'postgres' or 'nobody', as it refuses to be root's."""
    folder = programs()
    if folder is None:
        raise SystemExit("PostgreSQL's server is not installed (Debian's package 'postgresql')")
    with TemporaryDirectory() as home:
        data, password, passfile = Path(home, "data"), secrets.token_urlsafe(16), Path(home, "passfile")
        own: dict[str, Any] = {"check": True, "capture_output": True, "cwd": home}
        Path(home, "password").write_text(password, encoding="utf-8")
        if hasattr(os, "getuid") and os.getuid() == 0:
            import pwd  # not on Windows, where nobody is root

            users = {user.pw_name for user in pwd.getpwall()}
            own["user"] = next(name for name in ("postgres", "nobody") if name in users)
            for path in (home, Path(home, "password")):
                shutil.chown(path, own["user"])
        port = free_port()
        passfile.touch(0o600)
        passfile.write_text(f"127.0.0.1:{port}:*:{USER}:{password}\n", encoding="utf-8")
        options = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories='' -p {port} -c fsync=off"
        secret = ["--no-sync", "--auth=scram-sha-256", f"--pwfile={home}/password"]
        subprocess.run(
            [str(folder / "initdb"), "-D", str(data), "-U", USER, "-E", "UTF8", "--no-locale", *secret], **own
        )
        own |= {"capture_output": False, "stdout": subprocess.DEVNULL}  # the server keeps what it inherits open
        control = [str(folder / "pg_ctl"), "-D", str(data), "-w"]
        subprocess.run([*control, "-l", f"{home}/log", "-o", options, "start"], **own)
        try:
            yield Server(f"postgresql://{USER}@127.0.0.1:{port}/postgres", password, passfile)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **{**own, "check": False})
