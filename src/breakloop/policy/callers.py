"""The clients that may use the traffic port (the setting `callers`), and which of them sent a request."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from hashlib import blake2b, sha256
from typing import Final
from urllib.parse import unquote_to_bytes

from breakloop.model.call import API_KEY_HEADERS, Call

_OWN: Final = "x-breakloop-key"


class CallerKeys:
    """The keys of all callers, from entries `NAME=SHA256`. A name may have several keys, to rotate them.

    Digests are looked up by a second digest that is keyed with a secret of this process, so the time of a lookup
    depends neither on the stored digests nor on their number.
    """

    def __init__(self, entries: Sequence[str], prefix: str = "X-Breakloop-") -> None:
        self._keyed = blake2b(digest_size=32, key=secrets.token_bytes(32))
        # The SDK does not know the prefix before its first response, so its own field is always accepted.
        self.own_headers = tuple(dict.fromkeys((f"{prefix}Key".lower(), _OWN)))
        self._names: dict[bytes, str] = {}
        for entry in entries:
            name, _, digest = entry.rpartition("=")
            self._names[self._lookup_key(bytes.fromhex(digest))] = name

    def find(self, call: Call) -> dict[str, bytes]:
        """Return the callers whose keys a request carries, each with its key. `X-Breakloop-Key` decides alone: beside
        it, the other fields hold the key of a provider.
        """
        headers = call.headers
        found = self._known(headers[name] for name in self.own_headers if name in headers)
        return found or self._known(_keys(call))

    def _known(self, keys: Iterator[bytes]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for key in keys:
            name = self._names.get(self._lookup_key(sha256(key).digest()))
            if name is not None:
                found.setdefault(name, key)
        return found

    def _lookup_key(self, digest: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(digest)
        return keyed.digest()


def _keys(call: Call) -> Iterator[bytes]:
    """Yield the keys in all places where LLM APIs accept one."""
    headers, query = call.headers, call.query
    authorization = headers.get("authorization")
    if authorization:
        scheme, _, value = authorization.partition(b" ")
        yield value.strip() if scheme.lower() == b"bearer" else authorization
    for name in API_KEY_HEADERS:
        if name in headers:
            yield headers[name]
    if "key" in query or "%" in query:
        for part in query.encode("latin-1", "replace").split(b"&"):
            name_sent, _, value = part.replace(b"+", b" ").partition(b"=")
            if unquote_to_bytes(name_sent) == b"key":
                yield unquote_to_bytes(value)
