"""History in PostgreSQL, by URL: `postgresql://user:password@host/database`. The driver is an extra of the package.
Several gateways may share a database: whoever writes holds a lock on it, so that ids grow with time and incidents are
folded by one at a time."""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from breakloop.errors import SettingsError

_DRIVER: Final = "postgresql+psycopg"
_SCHEMES: Final = frozenset(("postgresql", "postgres", _DRIVER))
_CONNECTIONS: Final = 4
_CONNECT_S: Final = 5
_OPTIONS: Final = "-c statement_timeout=15000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=60000"
_LOCK: Final = text("SELECT pg_advisory_xact_lock(7094986412)")  # any number that nobody else thinks of
_WORDS_MAX: Final = 300


class PostgresBackend:
    """One database on a server."""

    def __init__(self, url: str) -> None:
        self._url = _parsed(url)
        self._suspect = False
        try:
            self._engine()  # reaches for nothing yet, but for its package
        except ImportError as error:
            why = f"history: needs a package that is not installed ({error.name}): pip install 'breakloop[postgres]'"
            raise SettingsError(why) from None

    def engine(self) -> Engine:
        """Return the way there."""
        self._suspect = False
        return self._engine()

    def begin(self, connection: Connection, *, durable: bool) -> None:
        """Begin to write. What is not `durable` need not wait for the server's disk."""
        connection.begin()
        if not durable:
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
        connection.execute(_LOCK)

    def is_moved(self) -> bool:
        """Whether it failed: who answers at the address next may be a copy that was put in its place."""
        return self._suspect

    def explain(self, error: Exception) -> str:
        """Return the first line of what the server or the driver says; the others may quote data."""
        if isinstance(error, PoolTimeoutError):
            return "all connections are in use"
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        line = str(cause).partition("\n")[0].strip()[:_WORDS_MAX]
        password = self._url.password
        return line.replace(str(password), "***") if password else line

    def unfit(self, error: Exception) -> str:  # noqa: ARG002 - there is no file to set aside
        """Nothing on a server is ours to move out of the way."""
        return ""

    def set_aside(self, kind: str, wrong: str) -> bool:  # noqa: ARG002 - the same
        """Never asked for."""
        return False

    def failed(self, wrong: str) -> None:  # noqa: ARG002 - the caller counts, and tells
        """Look at it again before it is used again."""
        self._suspect = True

    def works(self) -> None:
        """Nothing to tell."""

    def tidy(self, connection: Connection) -> None:
        """The server vacuums by itself."""

    def _engine(self) -> Engine:
        return create_engine(
            self._url,
            connect_args=self._arguments(),
            pool_pre_ping=True,
            pool_size=_CONNECTIONS,
            max_overflow=_CONNECTIONS,
            pool_timeout=10,
            hide_parameters=True,
        )

    def _arguments(self) -> dict[str, object]:
        """What the driver is told, unless the URL says otherwise."""
        wanted = {"connect_timeout": _CONNECT_S, "options": _OPTIONS, "application_name": "breakloop"}
        ours: dict[str, object] = {"prepare_threshold": None}  # a pooler would lose what was prepared
        return ours | {name: value for name, value in wanted.items() if name not in self._url.query}


def is_postgres(where: str) -> bool:
    """Whether a setting names a PostgreSQL database."""
    return where.partition(":")[0] in _SCHEMES


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url).set(drivername=_DRIVER)
    except (ArgumentError, ValueError):
        raise SettingsError("history: not a URL; write postgresql://user:password@host/database") from None
    if not parsed.database:
        raise SettingsError("history: the URL names no database; write postgresql://user:password@host/database")
    return parsed
