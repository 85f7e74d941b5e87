"""Shared fixtures, hypothesis profiles, and a guard that keeps every test on this machine and off the default ports."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from breakloop.clock import FakeClock
from breakloop.store.sqlite import SqliteFile
from tests.histories import history, past, sqlite_past  # noqa: F401 - fixtures
from tests.postgres_servers import _postgres_session, own_postgres, postgres_server  # noqa: F401 - fixtures
from tests.programs import program
from tests.redis_groups import _cluster_session, redis_cluster, redis_sentinel  # noqa: F401 - fixtures
from tests.redis_servers import (  # noqa: F401 - fixtures
    _redis_session,
    _valkey_session,
    any_server,
    own_redis,
    redis_server,
    redis_tls,
)
from tests.redis_store import new_redis_store, new_sharded_store, new_store  # noqa: F401 - fixtures

# `ci` gives the same examples on every run, so that a red build is red for everybody; `dev` looks for new ones,
# and so does `nightly`, for longer.
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def clock() -> FakeClock:
    """A clock that moves only when told."""
    return FakeClock()


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return a function that finds a TCP port nobody listens on, for programs that cannot take port 0."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return find


@pytest.fixture(scope="session")
def nginx_path() -> str:
    """Path of a real nginx."""
    return program("nginx")


class OutsideNetworkError(RuntimeError):
    """A test tried to leave this machine."""


class FixedPortError(RuntimeError):
    """A test tried to listen on a port that a server on this machine may have."""


_DEFAULT_PORTS = frozenset((8787, 8788, 8789))  # of `breakloop serve`
_attempts: list[str] = []


def _is_local(host: str) -> bool:
    """Loopback, the wildcard (which connects to loopback), and names that can never resolve are local."""
    name = host.partition("%")[0].rstrip(".").lower()
    if name in {"", "localhost"} or name.endswith((".localhost", ".invalid")):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def refuse_outside(host: object) -> None:
    """Raise unless `host` is this machine, and remember it: the code under test may swallow the error."""
    text = host.decode("idna") if isinstance(host, bytes) else str(host or "")
    if not _is_local(text):
        _attempts.append(text)
        raise OutsideNetworkError(f"tests may not connect to {text}")


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """Watch Python's own sockets. Unix sockets have a path, not a tuple, for an address."""
    if event in {"socket.connect", "socket.sendto"}:
        address = arguments[1]
        if isinstance(address, tuple):
            refuse_outside(address[0])
    elif event == "socket.getaddrinfo":
        refuse_outside(arguments[0])
    elif event == "socket.bind":
        address = arguments[1]
        if isinstance(address, tuple) and address[1] in _DEFAULT_PORTS:
            _attempts.append(f"port {address[1]}")
            raise FixedPortError(f"tests may not listen on port {address[1]}: use port 0")


def _guard_uvloop() -> None:
    """uvloop connects and resolves in C, past the audit hook, so its doors are watched one by one."""
    uvloop = pytest.importorskip("uvloop")
    connect = uvloop.Loop.create_connection
    resolve = uvloop.Loop.getaddrinfo

    async def create_connection(self, factory, host=None, port=None, **options):  # type: ignore[no-untyped-def]
        refuse_outside(host)
        return await connect(self, factory, host, port, **options)

    async def getaddrinfo(self, host, port, **options):  # type: ignore[no-untyped-def]
        refuse_outside(host)
        return await resolve(self, host, port, **options)

    uvloop.Loop.create_connection = create_connection
    uvloop.Loop.getaddrinfo = getaddrinfo


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is imported out of the sight of the garbage collector, which would look through it many times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Files of the longest tests first, so that at the end no process has a long one while the others have none. Processes take
# files in this order (`--no-loadscope-reorder`).
_LONGEST_FIRST = ("e2e", "torture", "typing", "deploy", "property", "contract")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.nodeid.split("/", 2)[1], len(order)))


def pytest_configure() -> None:
    """Put the guard up once per process; an audit hook cannot be taken down again, and need not be."""
    sys.addaudithook(_audit)
    _guard_uvloop()
    _open_files.watch()


class OpenFiles:
    """The database files that a test opened. Many tests load a runtime or a store and never run it, and what would close
    it is the end of the run: Python 3.13 warns of each connection that is dropped without being closed.
    """

    def __init__(self) -> None:
        self._open = SqliteFile._open
        self._files: list[SqliteFile] = []

    def watch(self) -> None:
        opened = self

        def _open(file: SqliteFile) -> sqlite3.Connection:
            opened._files.append(file)
            return opened._open(file)

        SqliteFile._open = _open  # type: ignore[assignment, method-assign]

    def close(self) -> None:
        while self._files:
            self._files.pop().close()


_open_files = OpenFiles()


@pytest.fixture
def outside_attempts() -> list[str]:
    """The hosts this test tried to reach; a test of the guard itself clears it."""
    return _attempts


@pytest.fixture(autouse=True)
def _stay_on_this_machine() -> Iterator[None]:
    """Fail a test that tried to leave this machine, even when the error was swallowed."""
    _attempts.clear()
    yield
    assert not _attempts, f"this test tried to reach {_attempts}"


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    yield
    _open_files.close()
