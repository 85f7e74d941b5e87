"""Webhooks that were registered at run time. They are stored in the database and held in memory.

Their secrets leave this module only through `add`, `rotate` and the signatures.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from breakloop.alerts.channels.services import decode_secret, new_secret
from breakloop.alerts.delivery import AlertDatabase
from breakloop.errors import AlertError

WEBHOOKS_MAX: Final = 100
ROTATION_S: Final = 86_400.0  # both secrets sign during this time
_EVENTS_MAX: Final = 100
_PATTERN: Final = re.compile(r"[a-z0-9_.*?]{1,100}")


@dataclass(frozen=True, slots=True)
class Webhook:
    id: str
    url: str = field(repr=False)  # may contain a token
    events: tuple[str, ...]  # names or patterns such as `loop.*`; empty: all
    secret: str = field(repr=False)
    old_secret: str = field(repr=False)
    old_until: float
    allow_private: bool
    created_at: float
    disabled: str = ""  # the reason

    def accepts(self, event: str) -> bool:
        if self.disabled:
            return False
        return not self.events or any(fnmatchcase(event, pattern) for pattern in self.events)

    def keys(self, now: float) -> list[bytes]:
        """Return the signing keys, the newest first."""
        both = self.old_secret and now < self.old_until
        return [decode_secret(secret) for secret in (self.secret, *([self.old_secret] if both else []))]


class Webhooks:
    def __init__(self, database: AlertDatabase) -> None:
        self._database = database
        self._known: dict[str, Webhook] = {}

    def load(self) -> None:
        """Read them from the database. Raises `StateError`."""
        rows = self._database.run(lambda file: file.execute("SELECT * FROM webhook").fetchall())
        self._known = {one.id: one for one in map(_from_row, rows)}
        self._database.on_new.append(self._write_all)

    def all(self) -> list[Webhook]:
        """Return all webhooks, the oldest first."""
        return sorted(self._known.values(), key=lambda one: (one.created_at, one.id))

    def get(self, webhook: str) -> Webhook | None:
        return self._known.get(webhook)

    def add(self, url: str, events: Sequence[str], *, allow_private: bool, now: float) -> Webhook:
        """Register a webhook with a new secret. Raises `AlertError` and `StateError`."""
        if len(self._known) >= WEBHOOKS_MAX:
            raise AlertError(f"there are already {WEBHOOKS_MAX} webhooks")
        if len(events) > _EVENTS_MAX or not all(map(_PATTERN.fullmatch, events)):
            raise AlertError("events are names such as loop.detected, or patterns such as loop.*")
        name = "wh_" + secrets.token_hex(8)
        made = Webhook(name, url, tuple(events), new_secret(), "", 0.0, allow_private, now)
        self._put(made)
        return made

    def rotate(self, webhook: str, now: float) -> Webhook | None:
        """Replace the secret and enable the webhook; the old secret also signs for a day. Raises `StateError`."""
        found = self._known.get(webhook)
        if found is None:
            return None
        until = now + ROTATION_S
        made = replace(found, secret=new_secret(), old_secret=found.secret, old_until=until, disabled="")
        self._put(made)
        return made

    def disable(self, webhook: str, why: str) -> None:
        """Send nothing until `rotate` is called. Raises `StateError`."""
        found = self._known.get(webhook)
        if found is not None:
            self._put(replace(found, disabled=why))

    def remove(self, webhook: str) -> bool:
        """Delete a webhook; return whether it existed. Raises `StateError`."""
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
