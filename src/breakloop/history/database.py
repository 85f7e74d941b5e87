"""The way to the database: opened when it is first needed and again after it failed, one writer at a time, any number
of readers, and every failure told as a `HistoryError` that names neither data nor passwords. What is particular to one
kind of database is its `Place`'s.

History in a SQLite file: readable by its owner alone, written beside readers (WAL), never larger than what it keeps.
A file that is damaged, foreign or of a newer version is set aside under a new name and a new one is begun; one that is
locked, full or read-only is tried again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from breakloop.clock import Clock
from breakloop.errors import HistoryError
from breakloop.history.schema import NewerSchemaError, migrate
from breakloop.store.sqlite import Report, SqliteTrouble, UnfitError, in_words, is_damage, set_aside

_AGAIN_S: Final = 1.0  # after a failed opening; a reader would wait for each
# A number that a column cannot hold is refused by the driver itself.
_FAILURES: Final = (SQLAlchemyError, sqlite3.Error, OSError, OverflowError, NewerSchemaError, UnfitError)


class DatabaseBackend(Protocol):
    """One kind of database."""

    def engine(self) -> Engine:
        """Return the way there; may fail in any way that a database can."""
        ...

    def begin(self, connection: Connection, *, durable: bool) -> None:
        """Begin to write: nobody else does meanwhile. `durable`: it must outlive a failure of the power."""
        ...

    def is_moved(self) -> bool:
        """Whether what was opened is not what a restart would find."""
        ...

    def explain(self, error: Exception) -> str:
        """Return what is wrong, in words."""
        ...

    def unfit(self, error: Exception) -> str:
        """Return of which kind it is if it never becomes well by itself, else ""."""
        ...

    def set_aside(self, kind: str, wrong: str) -> bool:
        """Make room for a new one, after everything was closed; return whether there is."""
        ...

    def failed(self, wrong: str) -> None:
        """Hear that it cannot be used at the moment."""
        ...

    def works(self) -> None:
        """Hear that it can."""
        ...

    def tidy(self, connection: Connection) -> None:
        """Give back the room of what was deleted."""
        ...


class HistoryDatabase:
    """One database. Used from threads."""

    def __init__(self, place: DatabaseBackend, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._opening = threading.Lock()
        self._writer = threading.Lock()
        self._engine: Engine | None = None
        self._wrong = ""
        self._again_at = 0.0

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Look at it as it is at this moment."""
        with self._connected() as connection:
            yield connection

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[Connection]:
        """Change it, in one transaction; on disk after it with `durable`."""
        with self._writer:
            with self._connected() as connection:
                self._place.begin(connection, durable=durable)
                yield connection
                connection.commit()
            self._place.works()

    def tidy(self) -> None:
        """Give back room, outside of any transaction."""
        with self._writer, self._connected() as connection:
            self._place.tidy(connection)

    def close(self) -> None:
        """Let go; the next call opens it again."""
        with self._opening:
            self._let_go()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        engine = self._opened()
        try:
            with engine.connect() as connection:
                yield connection
        except _FAILURES as error:
            raise HistoryError(self._failed(error, engine)) from None

    def _failed(self, error: Exception, engine: Engine) -> str:
        wrong = self._place.explain(error)
        with self._opening:
            kind = self._place.unfit(error)
            if not kind:
                self._place.failed(wrong)
            elif engine is self._engine:  # else another thread was quicker
                self._let_go()
                self._place.set_aside(kind, wrong)
        return wrong

    def _opened(self) -> Engine:
        with self._opening:
            if self._engine is not None and self._place.is_moved():
                self._let_go()
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def _open(self) -> Engine:
        now = self._clock.now()
        if now < self._again_at:
            raise HistoryError(self._wrong)
        try:
            try:
                return self._prepared()
            except _FAILURES as error:
                kind = self._place.unfit(error)
                if not kind or not self._place.set_aside(kind, self._place.explain(error)):
                    raise
            return self._prepared()
        except _FAILURES as error:
            self._wrong, self._again_at = self._place.explain(error), now + _AGAIN_S
            self._place.failed(self._wrong)
            raise HistoryError(self._wrong) from None

    def _prepared(self) -> Engine:
        engine = self._place.engine()
        try:
            with engine.connect() as connection:
                self._place.begin(connection, durable=True)
                migrate(connection)
                connection.commit()
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _let_go(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()


APPLICATION_ID: Final = 0x626C6869  # "blhi"
_BUSY_S: Final = 2.0
_CACHE_KIB: Final = 16_384  # of each connection
_WAL_MAX_BYTES: Final = 32 * 1024 * 1024
_VACUUM_PAGES: Final = 2_000  # at a time
_CONNECTIONS: Final = 4
_WRITES: Final = "breakloop_writes"  # option of a connection: its transaction is going to write


class SqliteBackend:
    """One file."""

    def __init__(self, path: Path, report: Report, busy_s: float = _BUSY_S) -> None:
        self.path = path
        self._report = report
        self._busy_s = busy_s
        self._opened: tuple[int, int] | None = None  # device and inode
        self._trouble = ""

    def engine(self) -> Engine:
        """Make the file if there is none, look whether it is ours, and return the way there."""
        self._make()
        self._look()
        made = create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=_CONNECTIONS,
            max_overflow=_CONNECTIONS,
            pool_timeout=10,
            hide_parameters=True,
        )
        event.listen(made, "begin", _begin)
        return made

    def begin(self, connection: Connection, *, durable: bool) -> None:
        """Begin to write. Without `durable` a failure of the power may cost the last transactions, but no more."""
        raw = connection.connection.cursor()  # SQLAlchemy would begin a transaction first
        raw.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        raw.close()
        connection.execution_options(**{_WRITES: True})
        connection.begin()

    def is_moved(self) -> bool:
        """Whether the file was removed or replaced."""
        try:
            status = self.path.stat()
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._opened

    def explain(self, error: Exception) -> str:
        """Return what is wrong with the file."""
        cause = _cause(error)
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        return in_words(cause)

    def unfit(self, error: Exception) -> str:
        """Return "damaged", "foreign", "newer" or "unusable" for a file that stays so."""
        if isinstance(error, UnfitError):
            return error.kind
        if isinstance(error, NewerSchemaError):
            return "newer"
        return "damaged" if is_damage(_cause(error)) else ""

    def set_aside(self, kind: str, wrong: str) -> bool:
        """Give the file another name."""
        if self.is_moved():  # another process was quicker
            return True
        try:
            aside = set_aside(self.path, kind)
        except OSError as failure:
            self._say(wrong, f"it cannot be set aside ({failure.strerror}), so nothing is kept")
            return False
        self._report(SqliteTrouble(str(self.path), f"{kind}: {wrong}", f"set aside as {aside}, and a new one begun"))
        return True

    def failed(self, wrong: str) -> None:
        """Say what is wrong, once."""
        self._say(wrong, "nothing is kept until it can be written again")

    def works(self) -> None:
        """Say so, if it did not before."""
        if self._trouble:
            self._say("", "it is written again")

    def tidy(self, connection: Connection) -> None:
        """Give the room of what was deleted back to the disk, some of it at a time."""
        raw = connection.connection.driver_connection
        assert raw is not None  # noqa: S101 - it is open
        raw.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")  # `execute` would stop after the first page
        raw.execute("PRAGMA wal_checkpoint(PASSIVE)").close()

    def _make(self) -> None:
        """SQLite itself would let everybody read it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except (IsADirectoryError, PermissionError) as error:
            self._remember()  # raises where the folder is at fault
            raise UnfitError("unusable", error.strerror or str(error)) from None
        self._remember()

    def _remember(self) -> None:
        status = self.path.stat()
        self._opened = status.st_dev, status.st_ino

    def _look(self) -> None:
        """Nothing of a file is changed before it is known to be ours."""
        with closing(sqlite3.connect(self.path, timeout=self._busy_s, isolation_level=None)) as file:
            if not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                file.execute("PRAGMA auto_vacuum = INCREMENTAL")  # can only be said before anything else is
                file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif file.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise UnfitError("foreign", "another program's database")
            file.execute("PRAGMA journal_mode = WAL")

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(
            self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        made.execute(f"PRAGMA journal_size_limit = {_WAL_MAX_BYTES}")
        made.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        made.execute("PRAGMA temp_store = MEMORY")
        return made

    def _say(self, wrong: str, done: str) -> None:
        """Report what has changed: a failure that goes on is not news."""
        changed, self._trouble = wrong != self._trouble, wrong
        if changed:
            self._report(SqliteTrouble(str(self.path), wrong, done))


def _begin(connection: Connection) -> None:
    """A transaction that will write says so at once: one that begins to read could not go on to write."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _cause(error: Exception) -> BaseException:
    """Return what the driver said."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
