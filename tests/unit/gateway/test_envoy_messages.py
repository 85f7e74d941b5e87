"""Envoy's messages, byte by byte. That they are Envoy's is shown by the real one, in tests/e2e/test_gateways.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.gateway.envoy_messages import (
    EnvoyRequest,
    _pair,
    allowed_response,
    denied_response,
    fields,
    parse_request,
    part,
)
from tests.unit.gateway.envoy_client import check, checked


@pytest.mark.parametrize("raw", [False, True])
def test_a_check_request_is_read(*, raw: bool) -> None:
    """Method, path with query, host, address, fields and body, in both spellings of fields and bodies (D-3)."""
    found = parse_request(
        check("/v1/x?q=1", "POST", {"x-agent-id": "a"}, b'{"a": 1}' * 40, peer="2001:db8::1", raw=raw)
    )
    pseudo = ((b":authority", b"api.test"), (b":method", b"POST"), (b":path", b"/v1/x?q=1"))
    headers = (*pseudo, (b"x-agent-id", b"a"))
    assert found == EnvoyRequest(b"POST", b"/v1/x?q=1", b"api.test", "2001:db8::1", headers, b'{"a": 1}' * 40)


def test_what_is_missing_is_empty() -> None:
    """A message without any of it is read, too."""
    assert parse_request(b"") == EnvoyRequest(b"", b"", b"", "", (), b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length is missing
        b"\x0a\x05abc",  # shorter than it says
        b"\x0b",  # a group, which nobody sends
        b"\xff" * 11,  # a number that does not end
        b"\x0a\x03\x09\x01\x02",  # a fixed64 that is cut off
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    """With one kind of error, whatever is wrong (Y-2)."""
    with pytest.raises(ValueError, match="malformed message"):
        parse_request(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but `ValueError` comes out of it (Y-2)."""
    with contextlib.suppress(ValueError):
        parse_request(data)


@given(name=st.binary(max_size=150), value=st.binary(max_size=150), more=st.binary(max_size=4), turned=st.booleans())
def test_pairs_of_every_spelling(name: bytes, value: bytes, more: bytes, *, turned: bool) -> None:
    """The short way to read a field gives what the long one gives, or refuses what that refuses."""
    parts = [part(1, name), part(2, value)]
    entry = b"".join(parts[::-1] if turned else parts) + more

    def read(how: Callable[[bytes], tuple[bytes, bytes]]) -> tuple[bytes, bytes] | str:
        try:
            return how(entry)
        except ValueError:
            return "refused"

    def long(data: bytes) -> tuple[bytes, bytes]:
        found = dict(fields(data))
        return found.get(1, b""), found.get(2, b"")

    assert read(_pair) == read(long)


def test_answers_are_written() -> None:
    """Status, fields and body of a denial; the fields of an allowed answer. As the bytes of the schema (A-1)."""
    assert allowed_response([]) == b"\x0a\x00\x1a\x00"
    assert allowed_response([(b"a", b"b")]) == b"\x0a\x00\x1a\x0c" + b"\x32\x0a\x0a\x06\x0a\x01a\x12\x01b\x18\x02"
    message = denied_response(429, [(b"Retry-After", b"60")], b"{}" * 100)
    assert message.startswith(b"\x0a\x02\x08\x07\x12")
    assert b"\x0a\x03\x08\xad\x03" in message
    assert checked(message) == (False, 429, {"retry-after": "60"}, b"{}" * 100)
