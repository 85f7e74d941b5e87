"""MCP: what tools gave back."""

from __future__ import annotations

import pytest

from breakloop.model.call import Answer
from tests.unit.dialects.recorded.mcp import ASKED, MCP, TOLD, result
from tests.unit.dialects.recorded.reading import read, started, stream, whole
from tests.unit.dialects.recorded.shape import SSE, Recorded, events


@pytest.mark.parametrize("recorded", MCP.values(), ids=MCP)
def test_recorded(recorded: Recorded) -> None:
    """Text, error flag and end of each (C-8)."""
    assert read(recorded) == recorded.answer


def test_errors_are_answers() -> None:
    """The model reads them, and calling the same again is a repetition; only HTTP's are failures (LD-6)."""
    assert not read(MCP["mcp tool fails"]).failed
    assert not read(MCP["mcp protocol fails"]).failed
    assert whole("mcp", {"jsonrpc": "2.0", "id": None, "error": {"code": -32000}}, 503).failed


def test_media_count_by_type_and_content() -> None:
    """Other bytes are another result (C-8)."""
    images = [result(content=[{"type": "image", "data": data, "mimeType": "image/png"}]) for data in ("aGk=", "aGo=")]
    texts = [whole("mcp", one).text for one in images]
    assert texts[0].startswith("<image:")
    assert texts[0] != texts[1]


def test_a_stream_is_complete_when_the_result_has_come() -> None:
    """Notices and questions on the way are no result; a client may leave once it has one (D-1)."""
    for complete in (True, False):
        reading = started("mcp", SSE)
        reading.feed(events(TOLD, ASKED))
        assert not reading.answer(200, complete=complete).complete
        reading.feed(events(result(content=[])))
        assert reading.answer(200, complete=complete).complete


def test_odd_types() -> None:
    """Read as far as they go; what is no JSON is counted (C-9)."""
    odd = [
        5,
        None,
        [],
        [5],
        {"result": 5},
        {"result": None, "error": None},
        {"error": "x"},
        result(content=5, isError="yes"),
    ]
    for one in odd:
        stream("mcp", one)
        whole("mcp", one)
    assert stream("mcp", {"error": "it broke"}).error == "error"
    assert not stream("mcp", {"jsonrpc": "2.0", "id": 1}).complete
    assert not stream("mcp", ASKED | {"result": {}}).complete
    assert stream("mcp", result(content="plain", isError="false")) == Answer(200, "plain", complete=True)
    reading = started("mcp", SSE)
    reading.feed(b"data: nothing\n\n")
    assert reading.unreadable == 1
