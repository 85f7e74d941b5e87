"""A SQLite file in the data directory whose failures do not affect its owner.

A file that is damaged, foreign or of a newer version is renamed and replaced; one that is full, locked or read-only
is retried with the next call. Problems are reported once a minute.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from breakloop.clock import Clock, SystemClock
from breakloop.errors import StateError

T = TypeVar("T")

_ASIDE_MAX: Final = 9  # maximum of files set aside; beyond it the disk is at fault, and a new file would not help
_PROBLEMS_MAX: Final = 20  # different ones that are told apart
_COMPANIONS: Final = ("", "-wal", "-shm", "-journal")
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_PASSING: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
)  # temporary: the file stays open
_WORDS: Final = {
    sqlite3.SQLITE_BUSY: "it is locked by another program",
    sqlite3.SQLITE_LOCKED: "it is locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "permission denied",
    sqlite3.SQLITE_IOERR: "disk error",
}


class Schema(NamedTuple):
    """The schema of the file. Step N migrates from version N to N + 1; a file without tables has version 0."""

    application_id: int
    steps: tuple[str, ...]
    pragmas: tuple[str, ...] = ()  # set each time it is opened


class SqliteTrouble(NamedTuple):
    """A problem of a file, for operators. `wrong` is empty when the problem is over."""

    file: str
    wrong: str
    done: str


Report = Callable[[SqliteTrouble], None]


class UnfitError(Exception):
    """The file was not created by this program or cannot be used. May also be raised by the owner of the file."""

    def __init__(self, kind: str, wrong: str) -> None:
        super().__init__(wrong)
        self.kind = kind


_TELL_EVERY_S: Final = 60.0


class Troubles:
    """Reports the problems of a database: each at once, and once a minute while it lasts. Its end is reported at once,
    too, unless the problem has returned before: on a disk that is nearly full, some writes succeed. Then it is over
    when there was none for a minute.
    """

    def __init__(self, name: str, report: Report, clock: Clock | None = None) -> None:
        self.current = ""  # empty while the database works
        self._name = name
        self._report = report
        self._clock = clock or SystemClock()
        self._told_at: dict[str, float] = {}  # by problem
        self._is_told = False  # and its end is not
        self._returned = False
        self._failed_at = self._ended_at = -math.inf

    def failed(self, wrong: str, done: str) -> None:
        now = self._clock.now()
        self._returned = self._returned or not self._is_over(self._ended_at, now)
        self.current, self._failed_at = wrong, now
        if self._is_over(self._told_at.get(wrong, -math.inf), now):
            self._told_at = {wrong: now} if len(self._told_at) > _PROBLEMS_MAX else {**self._told_at, wrong: now}
            self._is_told = True
            self.note(wrong, done)

    def works(self) -> None:
        self.current = ""
        if not self._is_told:
            return
        now = self._clock.now()
        if not self._returned or self._is_over(self._failed_at, now):
            self._is_told = self._returned = False
            self._ended_at = now
            self.note("", "it is writable again")

    def note(self, wrong: str, done: str) -> None:
        """Report an incident that is not a lasting problem."""
        self._report(SqliteTrouble(self._name, wrong, done))

    @staticmethod
    def _is_over(since: float, now: float) -> bool:
        return not 0 <= now - since < _TELL_EVERY_S  # the clock may have been set back


class DatabaseFile:
    """A database file on disk: readable by its owner only, and renamed when it cannot be used."""

    def __init__(self, path: Path, report: Report, clock: Clock | None = None) -> None:
        self.path = path
        self.troubles = Troubles(str(path), report, clock)
        self.renamed_to: Path | None = None  # the last file that was set aside
        self._identity: tuple[int, int] | None = None  # device and inode

    def create(self) -> None:
        """Create the file with mode 0600 if it does not exist: SQLite would make it world-readable."""
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except (IsADirectoryError, PermissionError) as error:
            self._identify()  # raises if the directory is the problem
            raise UnfitError("unusable", error.strerror or str(error)) from None
        self._identify()

    def is_replaced(self) -> bool:
        """Return whether the file at the path was removed or replaced since `create`."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        return (status.st_dev, status.st_ino) != self._identity

    def set_aside(self, kind: str, wrong: str) -> bool:
        """Rename the file, unless another process already has; return whether a new one can be created."""
        try:
            if not self.is_replaced():
                self.renamed_to = _rename(self.path, kind)
                self.troubles.note(wrong, f"renamed to {self.renamed_to}, and a new file was created")
        except OSError as failure:
            self.troubles.failed(wrong, f"it cannot be renamed ({failure.strerror}), so nothing is stored")
            return False
        return True

    def _identify(self) -> None:
        status = self.path.stat()
        self._identity = status.st_dev, status.st_ino


class SqliteFile(DatabaseFile):
    """One file. `made` counts how often it was created empty; its owner then writes everything again."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        report: Report,
        *,
        clock: Clock | None = None,
        busy_s: float = 0.25,
        synchronous: str = "FULL",
    ) -> None:
        super().__init__(path, report, clock)
        self.made = 0
        self._schema = schema
        self._busy_s = busy_s
        self._synchronous = synchronous
        self._connection: sqlite3.Connection | None = None

    def run(self, work: Callable[[sqlite3.Connection], T], *, synced: bool = True) -> T:
        """Run `work` in one transaction that is on disk when this returns. Raises `StateError`, after reporting it.

        Without `synced`, writing is left to the operating system: the data survives this process, but not a loss of
        power.
        """
        try:
            result = self._transaction(work) if synced else self._transaction(work, "NORMAL")
        except UnfitError as error:
            raise StateError(self._unfit(error)) from None
        except (sqlite3.Error, OSError) as error:
            raise StateError(self._failed(error)) from None
        self.troubles.works()
        return result

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _transaction(self, work: Callable[[sqlite3.Connection], T], synchronous: str = "") -> T:
        if self._connection is not None and self.is_replaced():
            self.close()
            self.troubles.note("removed or replaced while in use", "reopened or recreated")
        try:
            connection = self._connection or self._open()
        except UnfitError as error:
            self._unfit(error)
            connection = self._open()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._unfit(UnfitError("damaged", str(error)))
            connection = self._open()
        if synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        finally:
            if synchronous:
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return result

    def _open(self) -> sqlite3.Connection:
        self.create()
        connection = sqlite3.connect(self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in self._schema.pragmas:
            connection.execute(f"PRAGMA {pragma}")
        empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not empty:
            self._check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have migrated it first, so the version is read under the lock.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for step in self._schema.steps[version:]:
            connection.execute(step)
        connection.execute(f"PRAGMA application_id = {self._schema.application_id}")
        connection.execute(f"PRAGMA user_version = {len(self._schema.steps)}")
        connection.execute("COMMIT")
        self.made += version == 0

    def _check(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA application_id").fetchone()[0] != self._schema.application_id:
            raise UnfitError("foreign", "another program's database")
        version, own = connection.execute("PRAGMA user_version").fetchone()[0], len(self._schema.steps)
        if version > own:
            raise UnfitError("newer", f"written by a newer version (schema {version}, supported is {own})")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise UnfitError("damaged", str(found))

    def _failed(self, error: sqlite3.Error | OSError) -> str:
        """Record a failure; return its description."""
        if isinstance(error, OSError):
            wrong = error.strerror or str(error)
        elif is_damage(error):
            return self._unfit(UnfitError("damaged", str(error)))
        else:
            wrong = in_words(error)
        if _code(error) not in _PASSING:
            self.close()
        self.troubles.failed(wrong, "nothing is stored until it is writable again")
        return wrong

    def _unfit(self, error: UnfitError) -> str:
        """Set the file aside, so that the next opening creates a new one; return the description of the problem."""
        self.close()
        wrong = f"{error.kind}: {error}"
        self.set_aside(error.kind, wrong)
        return wrong


def _rename(path: Path, kind: str) -> Path:
    """Rename a file together with its WAL, shared memory and journal files; return the new path. Raises `OSError`."""
    names = [path.with_name(f"{path.name}.{kind}-{number}") for number in range(1, _ASIDE_MAX + 1)]
    free = [name for name in names if not name.exists()]
    if not free:
        raise OSError(0, f"there are already {_ASIDE_MAX} such files")
    for suffix in _COMPANIONS:
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{free[0]}{suffix}")
    return free[0]


def is_damage(error: BaseException) -> bool:
    """Return whether SQLite found the file damaged or not a database."""
    return _code(error) in _DAMAGED


def in_words(error: BaseException) -> str:
    """Return a readable description of the failure."""
    return _WORDS.get(_code(error), str(error).partition("\n")[0])


def _code(error: BaseException) -> int:
    """Return the primary error code, without SQLite's extended codes; that of success if there is none."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF
