"""A real PostgreSQL on loopback, in a folder of its own, without waiting for the disk; ended with the session.

The server refuses to run as root: then it runs as `postgres`, or as whoever owns least.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.deadlines import DEADLINE_S
from tests.programs import program
from tests.redis_servers import free_port

POLL_S = 0.02
PASSWORD = "pg-password-of-tests"
_VERSIONS = Path("/usr/lib/postgresql")  # where Debian puts every version's programs


def _folder() -> Path:
    """Where the server's programs are, the newest ones."""
    found = sorted(_VERSIONS.glob("*/bin/postgres"), key=lambda path: int(path.parents[1].name))
    return found[-1].parent if found else Path(program("postgres")).resolve().parent


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run it as; None: oneself."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("there is nobody but root to run PostgreSQL as")


class PostgresServer:
    """One server."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._programs = _folder()
        self._folder = folder
        self._owner = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As in the settings."""
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def execute(self, *statements: str) -> None:
        """Do something beside whoever is tested."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def make(self) -> None:
        """Make its data folder."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD, encoding="ascii")
        if self._owner is not None:
            for path in (self._folder, secret):
                os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        command: list[str | Path] = [self._programs / "initdb", "-D", self._folder / "data", "-U", "postgres"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync", "--auth=scram-sha-256", f"--pwfile={secret}"]
        done = subprocess.run(command, capture_output=True, check=False, **self._as_owner())
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    def start(self) -> None:
        """Start, and wait until it answers."""
        options: dict[str, object] = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
        }
        options |= {"full_page_writes": "off", "max_connections": 60, "shared_buffers": "64MB"}
        command: list[str | Path] = [self._programs / "postgres", "-D", self._folder / "data"]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **self._as_owner())
        end = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it at once; what was committed is there after the next start."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(DEADLINE_S)

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _as_owner(self) -> dict[str, Any]:
        """Arguments of the process."""
        if self._owner is None:
            return {"cwd": self._folder}
        return {
            "cwd": self._folder,
            "user": self._owner.pw_uid,
            "group": self._owner.pw_gid,
            "extra_groups": [],
        }


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Make a server and start it."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = PostgresServer(folder)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _postgres_session() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture
def postgres_server(_postgres_session: PostgresServer) -> PostgresServer:
    """A PostgreSQL, shared by the session and emptied for each test; do not stop this one."""
    _postgres_session.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return _postgres_session


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test's own: to be stopped and started."""
    with running() as server:
        yield server
