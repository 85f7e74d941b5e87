"""Who may use the traffic port (SPEC Y-6): clients whose key has a SHA-256 in the setting `callers`. Says who it is, or
that nobody is known; how a client is turned away, and in which dialect, is the door's business."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Final
from urllib.parse import unquote_to_bytes

from breakloop.model.call import API_KEY_HEADERS

_OWN: Final = "x-breakloop-key"


class Callers:
    """The known clients, as `NAME=SHA256` each; a name may come twice, so that keys can be changed one by one.

    The digests are not compared one by one but looked up, after a second digest that is keyed with a secret of this
    process: how long that takes says nothing about the ones that are stored, and does not grow with their number.
    """

    __slots__ = ("_keyed", "_names", "_own_headers")

    def __init__(self, entries: Sequence[str], prefix: str = "X-Breakloop-") -> None:
        self._keyed = blake2b(digest_size=32, key=secrets.token_bytes(32))
        # The library cannot know the prefix before it has an answer, so its own field is always accepted.
        self._own_headers = tuple(dict.fromkeys((f"{prefix}Key".lower(), _OWN)))
        self._names: dict[bytes, str] = {}
        for entry in entries:
            name, _, digest = entry.rpartition("=")
            self._names[self._place(bytes.fromhex(digest))] = name

    def check(self, headers: Mapping[str, bytes], query: bytes = b"") -> str | None:
        """Return the caller's name, or None. `X-Breakloop-Key` leaves the other fields to the provider's own key."""
        keys = [headers[name] for name in self._own_headers if name in headers]
        authorization = headers.get("authorization")
        if authorization:
            scheme, _, value = authorization.partition(b" ")
            keys.append(value.strip() if scheme.lower() == b"bearer" else authorization)
        keys += [headers[name] for name in API_KEY_HEADERS if name in headers]
        if b"key" in query or b"%" in query:
            keys += _query_keys(query)
        for key in keys:
            name = self._names.get(self._place(sha256(key).digest()))
            if name is not None:
                return name
        return None

    def _place(self, digest: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(digest)
        return keyed.digest()


def _query_keys(query: bytes) -> list[bytes]:
    pairs = (part.replace(b"+", b" ").partition(b"=") for part in query.split(b"&"))
    return [unquote_to_bytes(value) for name, _, value in pairs if unquote_to_bytes(name) == b"key"]
