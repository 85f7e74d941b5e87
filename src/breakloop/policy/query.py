"""The query of a request (SPEC C-1): parsed with repeated keys kept, and as fingerprints and logs may see it.

`?key=` is an API key there, so it is left out of both; naming the caller by it is `policy.identity`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes

import xxhash

from breakloop.model.call import Call

_FIELDS_MAX: Final = 1000
_API_KEY: Final = "key"
# Already as it would be spelled; each field has a name and a value.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]+=[A-Za-z0-9_.~-]*(?:&[A-Za-z0-9_.~-]+=[A-Za-z0-9_.~-]*)*").fullmatch
_SPELLED_ONE_WAY: Final = re.compile(r"[A-Za-z0-9_.~-]*+=?[A-Za-z0-9_.~-]*+").fullmatch


def fields(call: Call) -> dict[str, list[str]]:
    """Return the decoded query, each key with its values in order; kept on the call."""
    known = call.query_cache
    if known is not None:
        return known
    found: dict[str, list[str]] = {}
    for field in call.query.split("&", _FIELDS_MAX)[:_FIELDS_MAX] if call.query else ():
        name, _, value = field.partition("=")
        if field:
            found.setdefault(_text(name), []).append(_text(value))
    call.query_cache = found
    return found


def query_for_fingerprint(call: Call) -> str:
    """Return the query sorted by key in one spelling, values of a repeated key in order, without the API key."""
    query = call.query
    if not query:
        return ""
    if "key=" not in query and _PLAIN(query):
        if "&" not in query:
            return query
        if query.count("&") < _FIELDS_MAX:
            return "&".join(sorted(query.split("&"), key=_name))
    pieces = query.split("&", _FIELDS_MAX)
    # What lies beyond the bound still tells requests apart, by digest: it may hold a secret.
    rest = "&~" + _digest(pieces.pop()) if len(pieces) > _FIELDS_MAX else ""
    pairs = [_spelled(piece) for piece in pieces if piece]
    pairs.sort(key=_key)
    return "&".join([f"{name}={value}" for name, value in pairs if name != _API_KEY]) + rest


def _digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace"))


def _name(field: str) -> str:
    return field.partition("=")[0]


def _key(pair: tuple[str, str]) -> str:
    return pair[0]


def _spelled(piece: str) -> tuple[str, str]:
    name, _, value = piece.partition("=")
    return (name, value) if _SPELLED_ONE_WAY(piece) else (_respelled(name), _respelled(value))


def _respelled(text: str) -> str:
    raw = text.replace("+", " ").encode("utf-8", "replace")
    return quote_from_bytes(unquote_to_bytes(raw), safe="")


def _text(text: str) -> str:
    return unquote(text.replace("+", " ")) if "%" in text or "+" in text else text
