"""What is to be sent, on disk before the first try, and kept until it was delivered or given up (SPEC G-4). Of one
order key only the oldest is handed out, so that what belongs together arrives in order. When to try is `delivery`'s
business. All of it may wait for the disk, and raises `StateError`."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.alerts.database import Database

WAITING, DELIVERED, FAILED = "waiting", "delivered", "failed"
WAITING_MAX: Final = 10_000  # of one target
_DELIVERED_MAX, _DELIVERED_S = 1_000, 7 * 86_400.0  # they are kept for people to look at
_FAILED_MAX, _FAILED_S = 10_000, 30 * 86_400.0

# Whatever is ahead of a delivery: waiting for the same target, under the same key, and older.
_AHEAD: Final = (
    "SELECT 1 FROM delivery AS e WHERE e.state = 'waiting' AND e.target = d.target AND e.order_key = d.order_key "
    "AND e.seq < d.seq"
)
_HEADS: Final = (
    "SELECT seq, id, target, event, body, made_at, tries, next_at FROM delivery AS d WHERE state = 'waiting' "  # noqa: S608 - nothing of it comes from outside
    f"AND target = ? AND NOT EXISTS ({_AHEAD}) ORDER BY next_at LIMIT ?"
)
_LISTED: Final = (
    "SELECT id, target, event, state, tries, status, error, made_at, next_at FROM delivery ORDER BY seq DESC LIMIT ?"
)
_NAMES: Final = ("id", "webhook", "event", "state", "attempts", "status", "error", "at", "next_at")


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to send to a target. What has the same order key arrives in order; without one it goes by itself."""

    target: str
    event: str
    body: str = field(repr=False)
    order_key: str = ""
    critical: bool = True  # is dropped last


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something that waits for its next try."""

    seq: int
    id: str
    target: str
    event: str
    body: str = field(repr=False)
    made_at: float
    tries: int
    next_at: float


class Outbox:
    """Deliveries of all targets."""

    def __init__(self, database: Database, waiting_max: int = WAITING_MAX) -> None:
        self._database = database
        self._waiting_max = waiting_max
        self.dropped = 0  # because there was no room

    def put(
        self, entries: Sequence[Entry], now: float, also: Callable[[sqlite3.Connection], None] | None = None
    ) -> None:
        """Keep entries, and whatever else has to be on disk with them, together or not at all."""

        def work(file: sqlite3.Connection) -> int:
            for entry in entries:
                name = "msg_" + secrets.token_hex(12)
                row = (name, entry.target, entry.event, entry.body, entry.order_key or name, int(entry.critical))
                file.execute(
                    "INSERT INTO delivery (id, target, event, body, order_key, critical, made_at, tries, next_at, "
                    "state, status, error) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, 'waiting', 0, '')",
                    (*row, now, now),
                )
            if also is not None:
                also(file)
            return sum(self._make_room(file, target) for target in {entry.target for entry in entries})

        self.dropped += self._database.run(work)

    def due(self, target: str, now: float, busy: Collection[int], most: int) -> tuple[list[Delivery], float | None]:
        """Return what can be tried now, beside what is `busy`, and when the next one is due."""
        number = most + len(busy) + 1
        rows = self._database.run(lambda file: file.execute(_HEADS, (target, number)).fetchall())
        heads = [Delivery(*row) for row in rows if row[0] not in busy]
        ready = [one for one in heads if one.next_at <= now]
        later = [one.next_at for one in heads if one.next_at > now]
        return ready[:most], min(later, default=None) if len(ready) <= most else now

    def delivered(self, seq: int, status: int, now: float) -> None:
        """It is there. Its body is not needed any more."""
        self._set(
            "state = 'delivered', body = '', tries = tries + 1, status = ?, error = '', ended_at = ?", status, now, seq
        )

    def later(self, seq: int, status: int, error: str, next_at: float) -> None:
        """It is not there; try again then."""
        self._set("tries = tries + 1, status = ?, error = ?, next_at = ?", status, error, next_at, seq)

    def failed(self, seq: int, status: int, error: str, now: float) -> None:
        """It is given up."""
        self._set("state = 'failed', tries = tries + 1, status = ?, error = ?, ended_at = ?", status, error, now, seq)

    def hurry(self, target: str, now: float) -> None:
        """Try everything of a target now: it is there again."""
        sql = "UPDATE delivery SET next_at = ? WHERE state = 'waiting' AND target = ? AND next_at > ?"
        self._database.run(lambda file: file.execute(sql, (now, target, now)))

    def give_up(self, target: str, why: str, now: float) -> int:
        """Give up all that waits for a target; return how many."""
        sql = "UPDATE delivery SET state = 'failed', error = ?, ended_at = ? WHERE state = 'waiting' AND target = ?"
        return self._database.run(lambda file: file.execute(sql, (why, now, target)).rowcount)

    def waiting_for(self) -> list[str]:
        """Return the targets that something waits for."""
        sql = "SELECT DISTINCT target FROM delivery WHERE state = 'waiting'"
        return [row[0] for row in self._database.run(lambda file: file.execute(sql).fetchall())]

    def again(self, delivery: str, now: float) -> bool:
        """Send one again that was given up, under the same id; tell whether there is such a one."""
        sql = (
            "UPDATE delivery SET state = 'waiting', tries = 0, made_at = ?, next_at = ?, ended_at = NULL "
            "WHERE id = ? AND state = 'failed'"
        )
        return self._database.run(lambda file: file.execute(sql, (now, now, delivery)).rowcount) > 0

    def listed(self, most: int) -> list[dict[str, Any]]:
        """Return deliveries for people, the newest first, without what is in them."""
        rows = self._database.run(lambda file: file.execute(_LISTED, (most,)).fetchall())
        found = [dict(zip(_NAMES, row, strict=True)) for row in rows]
        for one in found:
            one["next_at"] = one["next_at"] if one["state"] == WAITING else None
        return found

    def counts(self) -> dict[str, int]:
        """Return how many are in each state."""
        sql = "SELECT state, count(*) FROM delivery GROUP BY state"
        return dict(self._database.run(lambda file: file.execute(sql).fetchall()))

    def purge(self, now: float) -> None:
        """Forget what ended long ago, and what is more than anybody looks at."""
        old = "DELETE FROM delivery WHERE state = ? AND ended_at < ?"
        many = (
            "DELETE FROM delivery WHERE state = ? AND seq IN (SELECT seq FROM delivery WHERE state = ? "
            "ORDER BY ended_at DESC LIMIT -1 OFFSET ?)"
        )

        def work(file: sqlite3.Connection) -> None:
            bounds = ((DELIVERED, _DELIVERED_S, _DELIVERED_MAX), (FAILED, _FAILED_S, _FAILED_MAX))
            for state, kept_s, kept in bounds:
                file.execute(old, (state, now - kept_s))
                file.execute(many, (state, state, kept))

        self._database.run(work)

    def _set(self, change: str, *values: float | str) -> None:
        sql = f"UPDATE delivery SET {change} WHERE seq = ? AND state = 'waiting'"  # noqa: S608 - fixed texts of this file
        self._database.run(lambda file: file.execute(sql, values))

    def _make_room(self, file: sqlite3.Connection, target: str) -> int:
        """Drop what is too much of a target: what is least critical first, and of that the oldest."""
        counted = "SELECT count(*) FROM delivery WHERE state = 'waiting' AND target = ?"
        over = file.execute(counted, (target,)).fetchone()[0] - self._waiting_max
        if over <= 0:
            return 0
        sql = (
            "DELETE FROM delivery WHERE seq IN (SELECT seq FROM delivery WHERE state = 'waiting' AND target = ? "
            "ORDER BY critical, seq LIMIT ?)"
        )
        return file.execute(sql, (target, over)).rowcount
