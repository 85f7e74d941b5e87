"""Answers as data: each method changes a copy."""

from __future__ import annotations

import dataclasses

import pytest

from breakloop.model.call import Usage
from breakloop.testing.answer import Answer, Cut, Failure, Manner, Stall, ToolUse


def test_every_method_returns_a_changed_copy() -> None:
    """An answer can be shared and built upon."""
    plain = Answer(chunks=("a", "b"))
    changed = plain.paced(0.1).delayed(1).closing().http10().realistic().early(drain=False).framed("close")
    assert plain == Answer(chunks=("a", "b"))
    assert plain.text == changed.text == "ab"
    expected = Manner(
        delay_s=1,
        interval_s=0.1,
        close=True,
        version="1.0",
        realistic=True,
        early=True,
        drain=False,
        framing="close",
    )
    assert changed.manner == expected


def test_places_to_stop() -> None:
    plain = Answer()
    assert plain.stall("start").stall(3, for_s=0.5).manner.stalls == (Stall("start"), Stall(3, 0.5))
    assert plain.cut(2, mid_chunk=True, reset=True).manner.cut == Cut(2, None, mid_chunk=True, reset=True)
    assert plain.cut(after_bytes=7).manner.cut == Cut("head", 7)


def test_what_is_said() -> None:
    answer = Answer().with_tool("a", {"x": 1}).with_tool("b", tool_id="t").with_usage(10, 5, cached=4, reasoning=2)
    assert answer.tools == (ToolUse("a", {"x": 1}), ToolUse("b", {}, "t"))
    assert answer.usage == Usage(10, 5, 4, 0, 2)
    assert answer.then_fail(3, "no", kind="k", code="c").failure == Failure("no", "k", "c", 3)
    assert (answer.stream, answer.streamed().stream, answer.streamed(False).stream) == (None, True, False)


def test_header_fields_can_be_given_by_name() -> None:
    answer = Answer().with_headers(("X-A", "1")).with_headers(x_request_id="2")
    assert answer.manner.headers == (("X-A", "1"), ("x-request-id", "2"))
    assert Answer().with_trailers(("x-sum", "1")).manner.framing == "chunked"
    assert Answer().after_informational(103, ("link", "x")).after_informational(102).manner.informational == (
        (103, (("link", "x"),)),
        (102, ()),
    )


def test_what_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no compressor for br"):
        Answer().compressed("br")
    assert Answer().compressed("br", packed_by=bytes).manner.coding == "br"
    with pytest.raises(ValueError, match="at least one byte"):
        Answer().pieces_of(0)
    with pytest.raises(TypeError):
        Answer().sent(no_such_field=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Answer().status = 500  # type: ignore[misc]
