"""PostgreSQL as the history database, by URL: `postgresql://user:password@host/database`.

The driver is an extra of the package. Several gateways may share a database: a writer holds an advisory lock, so
that ids grow with time and one process at a time folds incidents.
"""

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
_LOCK: Final = text("SELECT pg_advisory_xact_lock(7094986412)")  # an arbitrary number
_WORDS_MAX: Final = 300


class PostgresBackend:
    """One database on a server."""

    def __init__(self, url: str) -> None:
        self._url = _parsed(url)
        self._suspect = False
        try:
            self._engine()  # imports the driver, but does not connect
        except ImportError as error:
            why = f"history: needs a package that is not installed ({error.name}): pip install 'breakloop[postgres]'"
            raise SettingsError(why) from None

    def engine(self) -> Engine:
        self._suspect = False
        return self._engine()

    def begin(self, connection: Connection, *, durable: bool) -> None:
        """Begin a write transaction. If it is not `durable`, it does not wait for the server's disk."""
        connection.begin()
        if not durable:
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
        connection.execute(_LOCK)

    def is_moved(self) -> bool:
        """Return whether it failed: the server that answers next may be a replica with another state."""
        return self._suspect

    def explain(self, error: Exception) -> str:
        """Return the first line of the error; the others may quote data."""
        if isinstance(error, PoolTimeoutError):
            return "all connections are in use"
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        line = str(cause).partition("\n")[0].strip()[:_WORDS_MAX]
        password = self._url.password
        return line.replace(str(password), "***") if password else line

    def unfit(self, error: Exception) -> str:  # noqa: ARG002 - there is no file to rename
        """Return "": nothing on a server is moved away."""
        return ""

    def set_aside(self, kind: str, wrong: str) -> bool:  # noqa: ARG002 - the same
        """Not called, because `unfit` returns ""."""
        return False

    def failed(self, wrong: str) -> None:  # noqa: ARG002 - the caller reports it
        """Check the schema before the database is used again."""
        self._suspect = True

    def works(self) -> None: ...

    def tidy(self, connection: Connection) -> None: ...

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
        """Return the driver's arguments, unless the URL sets them."""
        wanted = {"connect_timeout": _CONNECT_S, "options": _OPTIONS, "application_name": "breakloop"}
        ours: dict[str, object] = {"prepare_threshold": None}  # a connection pooler would lose prepared statements
        return ours | {name: value for name, value in wanted.items() if name not in self._url.query}


def is_postgres(where: str) -> bool:
    """Return whether a setting is the URL of a PostgreSQL database."""
    return where.partition(":")[0] in _SCHEMES


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url).set(drivername=_DRIVER)
    except (ArgumentError, ValueError):
        raise SettingsError("history: not a URL; write postgresql://user:password@host/database") from None
    if not parsed.database:
        raise SettingsError("history: the URL names no database; write postgresql://user:password@host/database")
    return parsed
