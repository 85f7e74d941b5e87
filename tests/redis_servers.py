"""Real Redis and Valkey servers on loopback: alone, with TLS. Clusters and Sentinel are in redis_groups.py.

Nothing here sleeps for luck: what must become true is asked for again until its deadline. Every server is killed at
the end of its `with` block or fixture, whatever the test did to it.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority, Files
from tests.programs import program

POLL_S = 0.01
Options = Mapping[str, str | int]


class Tls(NamedTuple):
    """A server's certificate, and who signed it."""

    authority: Authority
    files: Files

    @property
    def options(self) -> dict[str, str | int]:
        return {
            "tls-cert-file": str(self.files.certificate),
            "tls-key-file": str(self.files.key),
            "tls-ca-cert-file": str(self.authority.file),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
            "tls-cluster": "yes",
        }


def make_tls(folder: Path) -> Tls:
    """Make an authority and a certificate for this machine's loopback names."""
    authority = Authority(folder)
    return Tls(authority, authority.issue("127.0.0.1", "localhost"))


def until(true: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Ask until the answer is true. A server that does not answer yet counts as "not yet"."""
    end = time.monotonic() + deadline_s
    last: object = None
    while time.monotonic() < end:
        try:
            if true():
                return
        except (redis.RedisError, OSError) as problem:
            last = problem
        time.sleep(POLL_S)
    raise TimeoutError(f"not within {deadline_s:g} s: {what} ({last})")


def free_port() -> int:
    """Find a port below those that the system hands to clients, so that no client takes it before the server does."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """One process of redis-server or valkey-server."""

    def __init__(self, path: str, folder: Path, options: Options, tls: Tls | None = None) -> None:
        self.port = free_port()
        self.tls = tls
        self.folder = folder
        self._path = path
        self._options = dict(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    @property
    def name(self) -> str:
        """Name of the program: redis-server or valkey-server."""
        return Path(self._path).name

    @property
    def password(self) -> str:
        return str(self._options.get("requirepass", ""))

    @property
    def url(self) -> str:
        """As in the settings: scheme, password, address, and for TLS the authority to trust."""
        auth = f":{self.password}@" if self.password else ""
        if self.tls:
            return f"rediss://{auth}127.0.0.1:{self.port}/0?ca_file={self.tls.authority.file}"
        return f"redis://{auth}127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """A redis-py client that gives up after its deadline; closed with the server."""
        merged: dict[str, Any] = {"port": self.port, "password": self.password or None, "socket_timeout": DEADLINE_S}
        merged["retry"] = Retry(NoBackoff(), 0)
        if self.tls:
            merged |= {"ssl": True, "ssl_ca_certs": str(self.tls.authority.file)}
        made = redis.Redis(host="127.0.0.1", **merged | options)
        self._clients.append(made)
        return made

    def start(self) -> None:
        """Start and wait until it answers; a port that somebody took meanwhile is changed, on the first start only."""
        for attempt in range(5):
            self._spawn()
            try:
                until(self._ready_or_ended, f"an answer on {self.port}")
            except BaseException:
                self.kill()
                raise
            if not self._ended():
                return
            if "in use" not in self.log or attempt == 4:
                break
            self.port = free_port()
        raise RuntimeError(f"{self._path} ended at once: {self.log[-2000:]}")

    def pause(self) -> None:
        """Make it hang: connections stay open and nothing is answered."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def restart(self, *, empty: bool = True) -> None:
        """Start again on the same port: without its data, or with what was on disk (which it is asked to save)."""
        if not empty and not self._ended():
            with suppress(redis.RedisError), self.client() as client:
                client.save()
        self.kill()
        if empty:
            for path in self.folder.iterdir():
                if path.suffix == ".rdb" or path.name.startswith("appendonly"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.start()

    def close(self) -> None:
        """End it, with every client that was made for it."""
        for client in self._clients:
            client.close()
        self.kill()

    def option(self, name: str) -> str | int:
        """What it was started with."""
        return self._options[name]

    def arguments(self) -> list[str]:
        """The command line after the program's name."""
        plain, encrypted = (0, self.port) if self.tls else (self.port, 0)
        options: dict[str, str | int] = {"port": plain, "bind": "127.0.0.1", "save": "", "dir": str(self.folder)}
        options |= {"daemonize": "no", "dbfilename": "dump.rdb", "repl-diskless-sync-delay": 0}
        if self.tls:
            options |= {"tls-port": encrypted} | self.tls.options
        return [part for name, value in (options | self._options).items() for part in (f"--{name}", str(value))]

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _ready_or_ended(self) -> bool:
        if self._ended():
            return True
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True

    def _spawn(self) -> None:
        with (self.folder / "log").open("wb") as log:
            # In a session of its own: the kernel resumes a paused process if its group is orphaned by another one's end.
            self._process = subprocess.Popen(
                [self._path, *self.arguments()], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )


@contextmanager
def running(options: Options | None = None, *, name: str = "redis-server", tls: Tls | None = None) -> Iterator[Server]:
    """Start one server with these options of redis.conf, e.g. `{"requirepass": "secret", "maxmemory": "2mb"}`."""
    path = program(name)
    with tempfile.TemporaryDirectory(prefix="redis-", ignore_cleanup_errors=True) as folder:
        server = Server(path, Path(folder), options or {}, tls)
        try:
            server.start()
            yield server
        finally:
            server.close()


@pytest.fixture(scope="session")
def _redis_session() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def redis_server(_redis_session: Server) -> Server:
    """A standalone Redis, shared by the session and emptied for each test; do not pause or kill this one."""
    with _redis_session.client() as client:
        client.flushall()
        client.script_flush()
    return _redis_session


@pytest.fixture
def own_redis() -> Iterator[Server]:
    """A standalone Redis of this test's own: to be paused, killed, restarted."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A standalone Redis that speaks only TLS."""
    with running(tls=make_tls(tmp_path_factory.mktemp("tls"))) as server:
        yield server


@pytest.fixture(scope="session")
def _valkey_session() -> Iterator[Server]:
    with running(name="valkey-server") as server:
        yield server


@pytest.fixture(params=["redis-server", "valkey-server"])
def any_server(request: pytest.FixtureRequest) -> Server:
    """Redis, then Valkey; shared by the session and emptied for each test."""
    server: Server = request.getfixturevalue(
        "_valkey_session" if request.param == "valkey-server" else "_redis_session"
    )
    with server.client() as client:
        client.flushall()
        client.script_flush()
    return server
