"""The way to the database: opened when it is first needed and again after it failed, one writer at a time, any number
of readers, and every failure told as a `HistoryError` that names neither data nor passwords. What is particular to one
kind of database is its `Place`'s."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from breakloop.clock import Clock
from breakloop.errors import HistoryError
from breakloop.history.migrations import NewerError, migrate
from breakloop.state.sqlite_file import UnfitError

_AGAIN_S: Final = 1.0  # after a failed opening; a reader would wait for each
# A number that a column cannot hold is refused by the driver itself.
_FAILURES: Final = (SQLAlchemyError, sqlite3.Error, OSError, OverflowError, NewerError, UnfitError)


class Place(Protocol):
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


class Database:
    """One database. Used from threads."""

    def __init__(self, place: Place, clock: Clock) -> None:
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
