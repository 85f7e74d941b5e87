"""Forms as browsers send them: small, URL-encoded, every field once. Who sent it, and whether it is genuine, was asked
before (`admin.auth`)."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from breakloop.admin.auth import is_form
from breakloop.admin.faults import Fault

FIELDS_MAX: Final = 100


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields; of one that was sent twice the last. Raises `Fault`."""
    if not is_form(request):
        raise Fault(415, "a form has to be URL-encoded")
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise Fault(400, "the form cannot be read") from None
    if any("\0" in text for pair in pairs for text in pair):
        raise Fault(400, "the form has a NUL character in it")
    return dict(pairs)


def own_path(given: str, default: str = "/") -> str:
    """Return a path on this server to go on to; `default` for whatever would lead elsewhere."""
    if not given.startswith("/") or given.startswith(("//", "/\\")) or not given.isprintable() or " " in given:
        return default
    return given
