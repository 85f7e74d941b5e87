"""What of a text changes from one turn of a loop to the next."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.simhash import normalised
from tests.each import each

UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"


@each(
    "text, same",
    [
        ("page 42 of 100", "page <num> of <num>"),  # as in S3's own tests, up to "user_abc123": see below
        (f"Fetch {UUID_TEXT}.", "fetch <id>."),
        (UUID_TEXT.upper(), "<id>"),
        (f"req-{UUID_TEXT}", "req-<id>"),
        (f"user_{UUID_TEXT}", "user_<id>"),
        ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8", "commit <id>"),
        ("at 0xDEADBEEFDEADBEEF", "at <id>"),
        ("at 2024-01-15T10:30:00Z", "at <ts>"),
        ("at 2024-01-15T10:30:00.123Z", "at <ts>"),
        ("at 2024-01-15T10:30:00+05:00", "at <ts>"),
        ("at 2024-01-15 10:30:00,5 it", "at <ts> it"),
        ("at 2024-01-15 10:30 UTC", "at <ts> utc"),
        ("on 2024-01-15.", "on <ts>."),
        ("order-12345", "order-<num>"),
        ("order_12345", "order_<num>"),
        ("took 12ms, or 1.5e-3 s", "took <num>ms, or <num> s"),
        ("1,234.56 of -7", "<num> of -<num>"),
        ("192.168.0.1:8080", "<num>:<num>"),
        ("\u0663 apples", "<num> apples"),
        ("  Do\n\tIT  ", "do it"),
        ("STRASSE", "strasse"),
        ("straße", "strasse"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_what_is_taken_out(text: str, same: str) -> None:
    """UUIDs and long hex, ISO timestamps, numbers, white space, case (LD-3)."""
    assert normalised(text) == same


@pytest.mark.parametrize(
    "text",
    [
        "ordering ideas, messages, chatbots, identity, idle users",  # all of which S3's rule for ids took out
        "utf8 sha256 file2.py user_abc123",
        "deadbeef facade",
        "abc\ud800",
    ],
)
def test_what_stays(text: str) -> None:
    """Words stay, and names that end in digits (LD-3)."""
    assert normalised(text) == text


def test_the_order_of_the_steps() -> None:
    """An id of digits only is an id, the digits of a timestamp are no numbers (LD-3)."""
    assert normalised("1234567890123456 2024-01-15T10:30:00Z 12") == "<id> <ts> <num>"


plain = st.text("abxyz ,.-\n", max_size=40)
numbers = st.integers(min_value=0, max_value=10**9)
times = st.datetimes().map(lambda at: f"{at:%Y}".rjust(4, "0") + f"{at:-%m-%dT%H:%M:%S}")


@given(plain, plain, st.uuids(), st.uuids())
def test_uuids_make_no_difference(before: str, after: str, one: UUID, other: UUID) -> None:
    """UUIDs make no difference: property (LD-3)."""
    assert normalised(f"{before} {one} {after}") == normalised(f"{before} {other.hex.upper()} {after}")


@pytest.mark.slow
@given(plain, plain, numbers, numbers)
def test_numbers_make_no_difference(before: str, after: str, one: int, other: int) -> None:
    """Numbers make no difference: property (LD-3)."""
    assert normalised(f"{before} {one} {after}") == normalised(f"{before} {other} {after}")


@given(plain, plain, times, times)
def test_times_make_no_difference(before: str, after: str, one: str, other: str) -> None:
    """Times make no difference: property (LD-3)."""
    assert normalised(f"{before} {one}Z {after}") == normalised(f"{before} {other}+02:00 {after}")


@given(st.text(st.characters(max_codepoint=127)))
def test_case_and_white_space_make_no_difference(text: str) -> None:
    """Property; and once is enough (LD-3)."""
    found = normalised(text)
    assert normalised(text.swapcase()) == found
    assert normalised("\t".join(f" {text} ".split(" "))) == found
    assert normalised(found) == found


@given(st.text())
def test_anything_can_come(text: str) -> None:
    """Nothing fails, and no white space is left but single blanks (Y-2)."""
    assert normalised(text).split(" ") == normalised(text).split() or not normalised(text)
