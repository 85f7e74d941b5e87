"""Compressing and re-cutting bodies."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.testing.http import accepted, compressed, pieces_of
from tests.unit.testing.talking import seen

PIECES = [b"first ", b"second ", b"third"]


@pytest.mark.parametrize(
    ("offer", "expected"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP ; q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("identity", False),
        ("", False),
    ],
)
def test_what_a_client_accepts(offer: str, expected: bool) -> None:
    assert accepted(seen(accept_encoding=offer), "gzip") is expected


def test_without_an_offer_nothing_is_accepted() -> None:
    assert not accepted(seen(), "gzip")
    assert not accepted(seen(accept_encoding="*"), "")


def test_a_whole_body() -> None:
    (packed,) = compressed(PIECES, "gzip", None, streamed=False)
    assert gzip.decompress(packed) == b"first second third"
    (packed,) = compressed(PIECES, "deflate", None, streamed=False)
    assert zlib.decompress(packed) == b"first second third"


def test_each_piece_of_a_stream_can_be_read_at_once() -> None:
    unpacking = zlib.decompressobj(31)
    packed = list(compressed(iter(PIECES), "gzip", None, streamed=True))
    assert [unpacking.decompress(piece) for piece in packed] == [*PIECES, b""]
    assert unpacking.eof


def test_another_compressor_gets_the_whole_body() -> None:
    """What comes out is sent in as many pieces as there were."""
    packed = list(compressed(PIECES, "up", lambda data: data.upper(), streamed=True))
    assert packed == [b"FIRST ", b"SECOND", b" THIRD"]
    assert list(compressed([], "up", lambda data: data, streamed=True)) == []


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 25))
def test_pieces_of_a_size(pieces: list[bytes], size: int) -> None:
    """The same bytes; every piece but the last has the size."""
    cut = list(pieces_of(pieces, size))
    assert b"".join(cut) == b"".join(pieces)
    assert all(len(piece) == size for piece in cut[:-1])
    assert all(0 < len(piece) <= size for piece in cut[-1:])
