"""MCP tool calls as steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest

from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.model.call import Step, ToolCall
from tests.unit.dialects import parsing


def asked(number: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"b": 1, "a": 2}, **more}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def step(value: Any) -> Step:
    found = parsing.newest_step("mcp", json.dumps(value).encode())
    assert found is not None
    return found


def test_a_call_without_a_result() -> None:
    """The result goes to the client; the id says which request it is, and not what was asked (LD-4, C-8)."""
    sent = json.dumps(asked(7, _meta={"progressToken": 1})).encode()
    found = parsing.newest_step("mcp", sent)
    assert found is not None
    assert found == Step("", (ToolCall("f", '{"a":2,"b":1}'),), found.call_ids, (), (), (), 1, len(sent))
    assert step(asked("x")).calls == step(asked(8)).calls


def test_ids_stand_together_with_what_is_called() -> None:
    """Another id or another call is another request; `_meta` and the order of keys make none (LD-4)."""
    ids = step(asked(7)).call_ids
    assert ids == step(asked(7, _meta={"progressToken": 2})).call_ids
    assert len({ids, step(asked(8)).call_ids, step(asked("x")).call_ids, step(asked(7, "g")).call_ids}) == 4
    assert step(asked(7, arguments={"b": 1, "a": 3})).call_ids != ids


def test_a_batch() -> None:
    other = {"jsonrpc": "2.0", "id": 5, "method": "ping"}
    found = step([asked(1), other, asked(2, "g")])
    assert [call.name for call in found.calls] == ["f", "g"]
    assert found.call_ids == step(asked(1)).call_ids + step(asked(2, "g")).call_ids


def judged(*requests: dict[str, Any]) -> list[tuple[str, int]]:
    """Return kind and level at each request, one second apart."""
    detector = StepEvaluator(StepsSettings.preset("normal"), lambda text: blake2b(text, digest_size=8).digest())
    window, found = b"", []
    for at, request in enumerate(requests):
        verdict = detector.evaluate(window, step(request), 1000.0 + at)
        window = verdict.window
        found.append((verdict.kind, verdict.level))
    return found


@pytest.mark.parametrize("number", [lambda at: at, lambda at: f"{at:08}-4c1f-7e32-9d0b-5f0e7c329d0b"])
def test_the_same_call_again_is_a_step(number: Callable[[int], object]) -> None:
    """A client that counts its requests, or draws ids, and asks the same again and again (LD-4)."""
    again = judged(*(asked(number(at)) for at in range(12)))
    assert again[4:6] == [("", 0), ("storm", 1)]
    assert again[9:] == [("storm", 1), ("storm", 2), ("storm", 2)]
    turns = judged(*(asked(number(at), "fg"[at % 2]) for at in range(12)))
    assert turns == [("", 0)] * 12  # what they returned is not in the requests: poll and sleep is no round
    other = judged(*(asked(number(at), arguments={"page": at}) for at in range(12)))
    assert other == [("", 0)] * 12


def test_each_connection_counts_anew() -> None:
    """The same ids for other calls, of another server, hide nothing and are no repeats (LD-4)."""
    first = [asked(at, "f") for at in range(8)]
    assert judged(*(asked(at, "g", arguments={"page": at}) for at in range(8)), *first)[-8:] == judged(*first)


def test_a_request_sent_twice_is_one_step() -> None:
    """The same id and the same call: a transport that tries again (LD-4)."""
    twice = [asked(at // 2, arguments={"page": at // 2}) for at in range(16)]
    assert judged(*twice) == [("", 0)] * 16
    assert judged(*[asked(1)] * 4) == [("", 0)] * 4


def test_what_the_user_was_asked_for() -> None:
    assert step(asked(1, inputResponses={"sure": True})).users == ('{"sure":true}',)


def test_other_methods() -> None:
    assert parsing.newest_step("mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}') is None
    assert parsing.newest_step("mcp", b"no") is None


def test_odd_types() -> None:
    """An id that is no id, and lone surrogates (C-9)."""
    assert step(asked({"x": 1})).call_ids[0].startswith('{"x":1}')
    assert step(asked("\ud83d", "f\ud83d")).call_ids[0].startswith("?")
    assert step(asked(None)).call_ids == ()
