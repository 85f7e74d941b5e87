"""Normalizes the path and host of a request, for policies, kill switches and fingerprints.

`policy.compiled` routes by the normalized form; the gateway forwards the original bytes.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from breakloop.errors import RequestError
from breakloop.policy.cache import MemoDict

_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_PLAIN = _UNRESERVED + b"!$&'()*+,;=:@/"  # what RFC 3986 allows unescaped in a path
_ESCAPE_OR_ODD = re.compile(rb"%[0-9A-Fa-f]{2}|[^" + re.escape(_PLAIN) + rb"]")
_ALL_PLAIN = re.compile("/[" + re.escape(_PLAIN.decode()) + "]*").fullmatch  # on text: faster than on bytes
_REFUSED = frozenset(b"/\\\0")
_AGENTS = "/agents/"


def _normalise(path: str | bytes) -> str:
    text = path.decode("latin-1") if isinstance(path, bytes) else path
    if _ALL_PLAIN(text) and "//" not in text and "/." not in text:
        return text
    return _normalise_slowly(path if isinstance(path, bytes) else _to_bytes(path))


normalise: Final = MemoDict(_normalise).__getitem__
"""Return the path in normal form, or raise `RequestError` (400) for one that upstreams may read in two ways.

Bytes are taken as they came over the wire; a `str` is text, whose non-ASCII characters stand for their UTF-8 bytes.
"""


def strip_agent(path: str) -> tuple[str, str]:
    """Split a normalized `/agents/x/v1/...` into `("x", "/v1/...")`. Other paths are returned as `("", path)`."""
    if not path.startswith(_AGENTS):
        return "", path
    agent, slash, rest = path[len(_AGENTS) :].partition("/")
    if not agent:
        return "", path
    return _agent_name(agent), slash + rest or "/"


def _agent_and_path(path: bytes) -> tuple[str, str]:
    return strip_agent(normalise(path))


agent_and_path: Final = MemoDict(_agent_and_path).__getitem__
"""Return the agent that a path names, or "", and the rest of the path in normal form. Raises as `normalise`."""


def _agent_name(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:  # with replacement characters, different invalid names would become equal
        return segment


def _host(host: str | bytes) -> str:
    text = (host.decode("latin-1") if isinstance(host, bytes) else host).strip().lower()
    if ":" in text:
        text = _without_port(text)
    return text.removesuffix(".")


normalise_host: Final = MemoDict(_host).__getitem__
"""Lower case, port and trailing dot dropped; an IPv6 literal keeps its brackets."""


def _without_port(host: str) -> str:
    if host.startswith("["):
        address, bracket, _ = host.partition("]")
        return address + bracket
    name, _, port = host.rpartition(":")
    # More than one colon without brackets is a bare IPv6 address: its last group cannot be distinguished from a port.
    return host if ":" in name or not (port.isdigit() or port == "") else name


def _to_bytes(path: str) -> bytes:
    try:
        return path.encode()
    except UnicodeEncodeError:
        raise RequestError(400, "the path contains characters that are not text") from None


def _normalise_slowly(raw: bytes) -> str:
    if raw in (b"", b"*"):
        return "/" if not raw else "*"
    if raw[:1] != b"/":
        raise RequestError(400, "the path does not begin with a slash")
    path = _ESCAPE_OR_ODD.sub(_normal_character, raw).decode("ascii")
    if "//" not in path and "/." not in path:
        return path
    return _resolve(path)


def _normal_character(match: re.Match[bytes]) -> bytes:
    found = match[0]
    if len(found) == 1 and found in b"%\\#\0":
        # A bare percent sign could complete an escape once its neighbour is decoded; some servers read a backslash as
        # a slash, and a fragment is never sent. All of these are ambiguous, so all are rejected.
        raise RequestError(400, "the path contains a stray percent sign, backslash, number sign or NUL")
    code = found[0] if len(found) == 1 else int(found[1:], 16)
    if code in _REFUSED:
        raise RequestError(400, "the path contains an encoded slash, backslash or NUL")
    return bytes((code,)) if code in _UNRESERVED else b"%%%02X" % code


def _resolve(path: str) -> str:
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
    if not kept:
        return "/"
    ends_in_slash = segments[-1] in ("", ".", "..")
    return "/" + "/".join(kept) + ("/" if ends_in_slash else "")
