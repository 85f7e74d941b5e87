"""Webhooks that were registered at run time: kept in the file, known by heart. Their secrets leave only through `add`,
`rotate`, and the signatures. What is sent to them is `outbox`'s and `delivery`'s business."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from breakloop.alerts import channels
from breakloop.alerts.base import AlertDatabase
from breakloop.errors import AlertError

MOST: Final = 100
ROTATION_S: Final = 86_400.0  # so long both secrets sign
_EVENTS_MAX: Final = 100
_PATTERN: Final = re.compile(r"[a-z0-9_.*?]{1,100}")


@dataclass(frozen=True, slots=True)
class Webhook:
    """One of them."""

    id: str
    url: str = field(repr=False)  # whoever registers it may have put a token there
    events: tuple[str, ...]  # names, or patterns such as `loop.*`; none: all
    secret: str = field(repr=False)
    old_secret: str = field(repr=False)
    old_until: float
    allow_private: bool
    created_at: float
    disabled: str = ""  # why

    def wants(self, event: str) -> bool:
        """Tell whether it is sent events of this name."""
        if self.disabled:
            return False
        return not self.events or any(fnmatchcase(event, pattern) for pattern in self.events)

    def keys(self, now: float) -> list[bytes]:
        """Return what signs now, the newest first."""
        both = self.old_secret and now < self.old_until
        return [channels.key_of(secret) for secret in (self.secret, *([self.old_secret] if both else []))]


class Webhooks:
    """All of them."""

    def __init__(self, database: AlertDatabase) -> None:
        self._database = database
        self._known: dict[str, Webhook] = {}

    def load(self) -> None:
        """Read them. Raises `StateError`."""
        rows = self._database.run(lambda file: file.execute("SELECT * FROM webhook").fetchall())
        self._known = {one.id: one for one in map(_from_row, rows)}
        self._database.on_new.append(self._write_all)

    def all(self) -> list[Webhook]:
        """Return them, the oldest first."""
        return sorted(self._known.values(), key=lambda one: (one.created_at, one.id))

    def get(self, webhook: str) -> Webhook | None:
        """Return one."""
        return self._known.get(webhook)

    def add(self, url: str, events: Sequence[str], *, allow_private: bool, now: float) -> Webhook:
        """Make one, with a new secret. Raises `AlertError` and `StateError`."""
        if len(self._known) >= MOST:
            raise AlertError(f"there are {MOST} webhooks already")
        if len(events) > _EVENTS_MAX or not all(map(_PATTERN.fullmatch, events)):
            raise AlertError("events are names such as loop.detected, or patterns such as loop.*")
        name = "wh_" + secrets.token_hex(8)
        made = Webhook(name, url, tuple(events), channels.new_secret(), "", 0.0, allow_private, now)
        self._put(made)
        return made

    def rotate(self, webhook: str, now: float) -> Webhook | None:
        """Give it a new secret; the old one signs beside it for a day. Raises `StateError`."""
        found = self._known.get(webhook)
        if found is None:
            return None
        until = now + ROTATION_S
        made = replace(found, secret=channels.new_secret(), old_secret=found.secret, old_until=until, disabled="")
        self._put(made)
        return made

    def disable(self, webhook: str, why: str) -> None:
        """Send nothing there until it gets a new secret. Raises `StateError`."""
        found = self._known.get(webhook)
        if found is not None:
            self._put(replace(found, disabled=why))

    def remove(self, webhook: str) -> bool:
        """Forget it; tell whether there was one. Raises `StateError`."""
        if webhook not in self._known:
            return False
        self._database.run(lambda file: file.execute("DELETE FROM webhook WHERE id = ?", (webhook,)))
        return self._known.pop(webhook, None) is not None

    def _put(self, webhook: Webhook) -> None:
        self._database.run(lambda file: _write(file, webhook))
        self._known = {**self._known, webhook.id: webhook}

    def _write_all(self, file: sqlite3.Connection) -> None:
        for webhook in self._known.values():
            _write(file, webhook)


def _write(file: sqlite3.Connection, webhook: Webhook) -> None:
    row = (
        *(webhook.id, webhook.url, " ".join(webhook.events), webhook.secret, webhook.old_secret, webhook.old_until),
        *(int(webhook.allow_private), webhook.created_at, webhook.disabled),
    )
    file.execute("INSERT OR REPLACE INTO webhook VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def _from_row(row: Sequence[str | float | int]) -> Webhook:
    name, url, events, secret, old_secret, old_until, allow_private, created_at, disabled = row
    return Webhook(
        str(name), str(url), tuple(str(events).split()), str(secret), str(old_secret),
        float(old_until), bool(allow_private), float(created_at), str(disabled),
    )  # fmt: skip
