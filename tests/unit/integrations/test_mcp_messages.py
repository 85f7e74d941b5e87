"""Calls and results of MCP tools."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash

from breakloop.integrations import mcp
from breakloop.model.decision import ToolFailedError
from tests.unit.sdk.backends import DENIED

TEXT = [{"type": "text", "text": "found"}]


@pytest.mark.parametrize(
    ("params", "made"),
    [
        ({"name": "find", "arguments": {"q": "x"}}, ("find", {"q": "x"})),
        ({"name": "find"}, ("find", {})),
        ({"name": "find", "arguments": {}, "inputResponses": {"a": 1}}, None),
        ({"arguments": {}}, None),
        ({"name": 3}, None),
        (None, None),
    ],
)
def test_calls(params: Any, made: Any) -> None:
    """Name and arguments; what goes on with an earlier call is none of its own (LD-4)."""
    assert mcp.read_call(params) == made


def test_results() -> None:
    """The text, else what is structured; media by type and digest; errors are told as such (LD-4)."""
    assert mcp.read_result({"content": TEXT}) == "found"
    assert mcp.read_result({"content": [], "structuredContent": {"n": 1}}) == '{"n":1}'
    image = {"type": "image", "data": "A" * 4000, "mimeType": "image/png"}
    assert mcp.read_result({"content": [*TEXT, image]}) == f"found\n<image:{xxhash.xxh3_64_hexdigest(b'A' * 4000)}>"
    failed = mcp.read_result({"content": TEXT, "isError": True})
    assert isinstance(failed, ToolFailedError)
    assert str(failed) == "found"
    assert str(mcp.read_error({"code": -32602, "message": "no such tool"})) == "-32602: no such tool"


@pytest.mark.parametrize(
    ("result", "final"),
    [
        ({"content": []}, True),
        ({"structuredContent": {}, "resultType": "complete"}, True),
        ({"resultType": "input_required", "content": []}, False),
        ({"task": {"taskId": "t"}}, False),
        (None, False),
    ],
)
def test_what_is_a_result(result: Any, final: bool) -> None:
    """A question to the user, or a task that was begun, is none yet."""
    assert mcp.is_final(result) is final


def test_a_note_stands_behind_the_result() -> None:
    """Nothing else of it changes, and the one that was given stays as it is (LD-5)."""
    result = {"content": TEXT, "structuredContent": {"n": 1}, "isError": False, "_meta": {"a": 1}}
    noted = mcp.with_note(result, "Change course.")
    assert noted == {
        **result,
        "content": [*TEXT, {"type": "text", "text": "[breakloop] Change course. [/breakloop]"}],
    }
    assert len(TEXT) == 1


def test_a_refusal_is_a_tools_error() -> None:
    """Which the model reads; the rest for programs (A-3)."""
    refused = mcp.denied_result(DENIED)
    assert refused["isError"] is True
    assert refused["content"] == [{"type": "text", "text": "Blocked: the same again. (recursive_loop_detected)"}]
    detail = refused["_meta"]["breakloop/detail"]
    assert (detail["error"], detail["kind"], detail["hit_count"]) == ("recursive_loop_detected", "repeat", 5)
