"""Connects to the history database.

The database is opened on first use and again after a failure. There is one writer at a time and any number of
readers. Every failure becomes a `HistoryError` that contains neither data nor passwords.

A SQLite file is readable by its owner only and uses WAL. A file that is damaged, foreign or of a newer version is
renamed and a new one is created, with what can still be read of a damaged one; one that is locked, full or read-only is
tried again.

Several gateways may share a PostgreSQL database: a writer holds an advisory lock, so that ids grow with time and one
process at a time folds incidents.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, QueuePool, Table, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from breakloop.clock import Clock
from breakloop.errors import HistoryError, SettingsError
from breakloop.formatting import plural
from breakloop.history.schema import METADATA, NewerSchemaError, migrate
from breakloop.store.sqlite import DatabaseFile, Report, Troubles, UnfitError, in_words, is_damage

_RETRY_S: Final = 1.0  # after a failed attempt to open; each reader would wait otherwise
# The driver itself rejects a number that a column cannot hold.
_FAILURES: Final = (SQLAlchemyError, sqlite3.Error, OSError, OverflowError, NewerSchemaError, UnfitError)


class DatabaseBackend(ABC):
    """A kind of database: SQLite or PostgreSQL."""

    @abstractmethod
    def engine(self) -> Engine:
        """Return an engine; may raise any error of the database."""

    @abstractmethod
    def begin(self, connection: Connection, *, durable: bool) -> None:
        """Begin a write transaction, exclusively. If it is not `durable`, a power failure may lose the last ones."""

    @abstractmethod
    def is_moved(self) -> bool:
        """Return whether the opened database is no longer the one at this path or address."""

    @abstractmethod
    def explain(self, error: Exception) -> str: ...

    @abstractmethod
    def failed(self, wrong: str) -> None:
        """Note that the database cannot be used."""

    @abstractmethod
    def works(self) -> None:
        """Note that the database was written."""

    def unfit(self, error: Exception) -> str:  # noqa: ARG002 - nothing on a server is moved away
        """Return the kind of defect if the database never recovers by itself, else ""."""
        return ""

    def set_aside(self, kind: str, wrong: str) -> bool:  # noqa: ARG002 - only a file is renamed
        """Rename a defective database, after all connections were closed; return whether there can be a new one."""
        return False

    def take_over(self, connection: Connection) -> None:  # noqa: B027 - only a file is renamed
        """Copy what can still be read of the database that was set aside."""

    def tidy(self, connection: Connection) -> None:  # noqa: B027 - a server does it by itself
        """Free the space of deleted rows."""


class HistoryDatabase:
    """One database. Used from threads."""

    def __init__(self, backend: DatabaseBackend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._opening = threading.Lock()
        self._writer = threading.Lock()
        self._engine: Engine | None = None
        self._wrong = ""
        self._retry_at = 0.0

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[Connection]:
        """Yield a connection with one write transaction, which is on disk afterwards if it is `durable`."""
        with self._writer:
            with self.reading() as connection:
                self._backend.begin(connection, durable=durable)
                yield connection
                connection.commit()
            self._backend.works()

    def tidy(self) -> None:
        """Free the space of deleted rows, outside of a transaction."""
        with self._writer, self.reading() as connection:
            self._backend.tidy(connection)

    def close(self) -> None:
        """Close all connections; the next call opens the database again."""
        with self._opening:
            self._dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection. Raises `HistoryError`."""
        engine = self._opened()
        try:
            with engine.connect() as connection:
                yield connection
        except _FAILURES as error:
            raise HistoryError(self._failed(error, engine)) from None

    def _failed(self, error: Exception, engine: Engine) -> str:
        wrong = self._backend.explain(error)
        with self._opening:
            kind = self._backend.unfit(error)
            if not kind:
                self._backend.failed(wrong)
            elif engine is self._engine:  # otherwise another thread was faster
                self._dispose()
                self._backend.set_aside(kind, wrong)
        return wrong

    def _opened(self) -> Engine:
        with self._opening:
            if self._engine is not None and self._backend.is_moved():
                self._dispose()
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def _open(self) -> Engine:
        now = self._clock.now()
        if now < self._retry_at:
            raise HistoryError(self._wrong)
        try:
            try:
                return self._prepared()
            except _FAILURES as error:
                kind = self._backend.unfit(error)
                if not kind or not self._backend.set_aside(kind, self._backend.explain(error)):
                    raise
            return self._prepared()
        except _FAILURES as error:
            self._wrong, self._retry_at = self._backend.explain(error), now + _RETRY_S
            self._backend.failed(self._wrong)
            raise HistoryError(self._wrong) from None

    def _prepared(self) -> Engine:
        engine = self._backend.engine()
        try:
            with engine.connect() as connection:
                self._backend.begin(connection, durable=True)
                migrate(connection)
                self._backend.take_over(connection)
                connection.commit()
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _dispose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()


_ROWS_MAX: Final = 100_000  # per walk; meanwhile nothing else is read or written


def readable(raw: bytes) -> str:
    """Return the text of a column. One that is not UTF-8 must not make the other rows unreadable."""
    return raw.decode("utf-8", "replace")


def take_over(damaged: Path, new: sqlite3.Connection) -> int:
    """Copy what can still be read of a damaged file, within the transaction of the caller; return how many rows.

    SQLite reports a bad page only to those who read it, so tables without one are whole. In the others, walking from
    both ends, the newest rows first, reaches all rows but those between the first and the last bad page.
    """
    before = new.total_changes
    try:
        with closing(sqlite3.connect(damaged)) as old:
            old.text_factory = readable
            for table in METADATA.sorted_tables:
                _copy(table, old, new)
    except sqlite3.Error:
        pass  # nothing of it can be read
    return new.total_changes - before


def _copy(table: Table, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    names = ", ".join(column.name for column in table.columns)
    key = [column.name for column in table.primary_key.columns]
    adding = f"INSERT OR IGNORE INTO {table.name} ({names}) VALUES ({', '.join('?' for _ in table.columns)})"  # noqa: S608 - names of the schema
    for order in (["rowid"], key):  # a table without row ids is stored in the order of its key
        for way in ("DESC", "ASC"):
            ordered = ", ".join(f"{name} {way}" for name in order)
            reading = f"SELECT {names} FROM {table.name} ORDER BY {ordered} LIMIT {_ROWS_MAX}"  # noqa: S608 - as above
            rows = _Rows(old, reading)
            new.executemany(adding, rows)
            if rows.complete:
                return


class _Rows:
    """The rows of a query up to the first that cannot be read."""

    def __init__(self, connection: sqlite3.Connection, query: str) -> None:
        self._connection = connection
        self._query = query
        self.complete = False

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        try:
            yield from self._connection.execute(self._query)
        except sqlite3.DatabaseError:
            return
        self.complete = True


APPLICATION_ID: Final = 0x626C6869  # "blhi"
_BUSY_S: Final = 2.0
_DAMAGED: Final = "damaged"
_CACHE_KIB: Final = 16_384  # per connection
_WAL_MAX_BYTES: Final = 32 * 1024 * 1024
_VACUUM_PAGES: Final = 2_000  # per call
_POOL: Final[dict[str, Any]] = {"pool_size": 4, "max_overflow": 4, "pool_timeout": 10, "hide_parameters": True}
_WRITES: Final = "breakloop_writes"  # execution option: the transaction is going to write


class SqliteBackend(DatabaseFile, DatabaseBackend):
    def __init__(self, path: Path, report: Report, clock: Clock | None = None, busy_s: float = _BUSY_S) -> None:
        super().__init__(path, report, clock)
        self._busy_s = busy_s
        self._damaged: Path | None = None  # set aside, and not yet copied

    def engine(self) -> Engine:
        """Create the file if needed, check that it is ours, and return an engine."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.create()
        self._check()
        made = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool, **_POOL)
        event.listen(made, "begin", _begin)
        return made

    def begin(self, connection: Connection, *, durable: bool) -> None:
        raw = connection.connection.cursor()  # SQLAlchemy would begin a transaction first
        raw.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        raw.close()
        connection.execution_options(**{_WRITES: True})
        connection.begin()

    def is_moved(self) -> bool:
        try:
            return self.is_replaced()
        except OSError:
            return True

    def explain(self, error: Exception) -> str:
        cause = _cause(error)
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        return in_words(cause)

    def unfit(self, error: Exception) -> str:
        if isinstance(error, UnfitError):
            return error.kind
        if isinstance(error, NewerSchemaError):
            return "newer"
        return _DAMAGED if is_damage(_cause(error)) else ""

    def set_aside(self, kind: str, wrong: str) -> bool:
        done = super().set_aside(kind, f"{kind}: {wrong}")
        self._damaged = self.renamed_to if kind == _DAMAGED else None
        return done

    def take_over(self, connection: Connection) -> None:
        damaged, self._damaged = self._damaged, None
        raw = connection.connection.driver_connection
        if damaged is None or raw is None:
            return
        count = take_over(damaged, raw)
        if count:
            self.troubles.note(_DAMAGED, f"{plural(count, 'row')} that could still be read were copied from {damaged}")

    def failed(self, wrong: str) -> None:
        self.troubles.failed(wrong, "nothing is stored until it is writable again")

    def works(self) -> None:
        self.troubles.works()

    def tidy(self, connection: Connection) -> None:
        raw = connection.connection.driver_connection
        assert raw is not None  # noqa: S101 - the connection is open
        raw.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")  # `execute` would stop after the first page
        raw.execute("PRAGMA wal_checkpoint(PASSIVE)").close()

    def _check(self) -> None:
        """Check that the file is ours before anything is changed in it."""
        with closing(sqlite3.connect(self.path, timeout=self._busy_s, isolation_level=None)) as file:
            if not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                file.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only possible before the first table is created
                file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif file.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise UnfitError("foreign", "another program's database")
            file.execute("PRAGMA journal_mode = WAL")

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(
            self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        made.text_factory = readable
        made.execute(f"PRAGMA journal_size_limit = {_WAL_MAX_BYTES}")
        made.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        made.execute("PRAGMA temp_store = MEMORY")
        return made


def _begin(connection: Connection) -> None:
    """A transaction that writes must begin as one: upgrading a read transaction can fail."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _cause(error: Exception) -> BaseException:
    """Return the error of the driver."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


_DRIVER: Final = "postgresql+psycopg"
_SCHEMES: Final = frozenset(("postgresql", "postgres", _DRIVER))
_CONNECT_S: Final = 5
_OPTIONS: Final = "-c statement_timeout=15000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=60000"
_LOCK: Final = text("SELECT pg_advisory_xact_lock(7094986412)")  # an arbitrary number
_WORDS_MAX: Final = 300


class PostgresBackend(DatabaseBackend):
    """One database on a server, by URL. The driver is an extra of the package."""

    def __init__(self, url: str, report: Report, clock: Clock | None = None) -> None:
        self._url = _parsed(url)
        self._troubles = Troubles(self._url.render_as_string(), report, clock)
        self._suspect = False
        try:
            self._engine()  # imports the driver, but does not connect
        except ImportError as error:
            why = f'history: needs a package that is not installed ({error.name}): pip install "breakloop[postgres]"'
            raise SettingsError(why) from None

    def engine(self) -> Engine:
        self._suspect = False
        return self._engine()

    def begin(self, connection: Connection, *, durable: bool) -> None:
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
        line = str(_cause(error)).partition("\n")[0].strip()[:_WORDS_MAX]
        password = self._url.password
        return line.replace(str(password), "***") if password else line

    def failed(self, wrong: str) -> None:
        """Check the schema before the database is used again."""
        self._suspect = True
        self._troubles.failed(wrong, "nothing is stored until it works again")

    def works(self) -> None:
        self._troubles.works()

    def _engine(self) -> Engine:
        return create_engine(self._url, connect_args=self._arguments(), pool_pre_ping=True, **_POOL)

    def _arguments(self) -> dict[str, object]:
        """Return the driver's arguments, unless the URL sets them."""
        wanted = {"connect_timeout": _CONNECT_S, "options": _OPTIONS, "application_name": "breakloop"}
        ours: dict[str, object] = {"prepare_threshold": None}  # a connection pooler would lose prepared statements
        return ours | {name: value for name, value in wanted.items() if name not in self._url.query}


def is_postgres(where: str) -> bool:
    return where.partition(":")[0] in _SCHEMES


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url).set(drivername=_DRIVER)
    except (ArgumentError, ValueError):
        raise SettingsError("history: not a URL; write postgresql://user:password@host/database") from None
    if not parsed.database:
        raise SettingsError("history: the URL names no database; write postgresql://user:password@host/database")
    return parsed
