"""Which rows `state.db` has, and which of them to tidy next: some bytes with each save, from the oldest to those there
were when the round began, so that the file stays within a few times of what is true in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

_ROOM_BYTES: Final = 8 * 1024 * 1024  # so much that was overtaken is never looked at
_ROOM_SAVES: Final = 4  # nor so many times what one save writes: what is always in use is overtaken by itself
_ROOM_ROWS: Final = 512
_STEP_BYTES: Final = 1024 * 1024  # tidied with one save, and twice as much as it writes
_STEP_ROWS: Final = 128  # the same
_EXPIRED_MAX: Final = 256  # rows cleared away with one save


class Row(NamedTuple):
    """A part in the file. Its versions are known if this process has written it."""

    id: int
    size: int
    expires: float
    versions: dict[str, int] | None = None


class Rows:
    """All rows, from the oldest on."""

    __slots__ = ("_after", "_base_bytes", "_base_rows", "_until", "all")

    def __init__(self, rows: list[Row] | None = None, *, tidy: bool = False) -> None:
        self.all = rows or []
        self._base_bytes = self._base_rows = 0  # what was left after the last round
        self._after = self._until = (
            rows[-1].id if rows and tidy else 0
        )  # ids: of the last row looked through, and to be
        self._set_base()

    def next_id(self) -> int:
        """The id of a row to come."""
        return self.all[-1].id + 1 if self.all else self._until + 1

    def overtaken(self, saved_bytes: int, saved_rows: int = 1) -> tuple[Row, ...]:
        """Return the rows to tidy with this save, next to each other; none if there is no need."""
        if self._after >= self._until:
            if not self._due(saved_bytes):
                return ()
            self._after, self._until = 0, self.all[-1].id
        return tuple(self._step(_STEP_BYTES + 2 * saved_bytes, _STEP_ROWS + 2 * saved_rows))

    def _due(self, saved_bytes: int) -> bool:
        room = self._base_bytes + _ROOM_BYTES + _ROOM_SAVES * saved_bytes
        return (
            sum(row.size for row in self.all) > self._base_bytes + room or len(self.all) > self._base_rows + _ROOM_ROWS
        )

    def _step(self, most_bytes: int, most_rows: int) -> Iterator[Row]:
        size = count = 0
        for row in self.all:
            if self._after < row.id <= self._until:
                yield row
                size, count = size + row.size, count + 1
                if size >= most_bytes or count >= most_rows:
                    return

    def expired(self, now: float) -> list[Row]:
        """Return the oldest rows that have nothing alive. Only those: behind an older one they may overrule it."""
        return list(takewhile(lambda row: row.expires <= now, self.all[:_EXPIRED_MAX]))

    def became(self, rows: list[Row], tidied: Sequence[Row]) -> None:
        """Take note of what a save has left, and of what it looked through."""
        self.all = rows
        if self._after < self._until:
            self._after = tidied[-1].id if tidied else self._until  # nothing more was found below the end
            if self._after >= self._until:
                self._set_base()

    def _set_base(self) -> None:
        """What is newer than the round was not looked through: it may be overtaken already."""
        sizes = [row.size for row in self.all if row.id <= self._until]
        self._base_bytes, self._base_rows = sum(sizes), len(sizes)
