"""Windows of several detectors in one value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.stateful import SECTION_MAX, pack_sections, unpack_sections

TAGS = st.binary(min_size=8, max_size=8)


@given(st.dictionaries(TAGS, st.binary(min_size=1, max_size=100), max_size=5))
def test_what_is_packed_comes_back(sections: dict[bytes, bytes]) -> None:
    assert unpack_sections(pack_sections(sections)) == sections


@given(st.binary(max_size=200))
def test_nothing_makes_reading_fail(data: bytes) -> None:
    """Whatever stands in the store: it counts as new."""
    assert isinstance(unpack_sections(data), dict)


@pytest.mark.parametrize("content", [b"", b"x" * (SECTION_MAX + 1)])
def test_what_cannot_be_kept_is_left_out(content: bytes) -> None:
    assert unpack_sections(pack_sections({b"12345678": content, b"abcdefgh": b"y"})) == {b"abcdefgh": b"y"}


def test_a_cut_window_is_new() -> None:
    packed = pack_sections({b"12345678": b"content"})
    for stop in range(1, len(packed)):
        assert unpack_sections(packed[:stop]) == {}
