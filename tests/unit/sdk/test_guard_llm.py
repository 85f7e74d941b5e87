"""`@guard.llm`: judged before, settled after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from breakloop import Guard, LoopDetectedError
from breakloop.clock import FakeClock
from breakloop.model.call import Answer
from breakloop.sdk.guard import answer_in
from tests.builders import bundle, exact, policy

MESSAGES = [{"role": "user", "content": "again"}]


def test_the_same_prompt_again_and_again_is_stopped(clock: FakeClock) -> None:
    """Five times, whatever the answers; another prompt passes (D-4, LD-2)."""
    guard = Guard(clock=clock)
    asked: list[str] = []

    @guard.llm
    def ask(prompt: str) -> str:
        asked.append(prompt)
        return f"answer {len(asked)}"

    for _ in range(5):
        ask("again")
    with pytest.raises(LoopDetectedError):
        ask("again")
    assert ask("else") == "answer 6"
    assert len(asked) == 6


def test_async_and_by_name(clock: FakeClock) -> None:
    """`messages` and `model` by their names, also among further arguments (D-4)."""
    guard = Guard(clock=clock)

    @guard.llm
    async def ask(**request: Any) -> dict[str, Any]:
        return {"choices": [{"message": {"role": "assistant", "content": "hm"}}]}

    async def agent(model: str) -> None:
        for _ in range(5):
            await ask(model=model, messages=MESSAGES)

    asyncio.run(agent("one"))
    asyncio.run(agent("two"))
    with pytest.raises(LoopDetectedError):
        asyncio.run(agent("one"))


def test_tries_that_failed_are_no_loop(clock: FakeClock) -> None:
    """An error is settled as one, with its status where it has one (LD-6)."""
    guard = Guard(clock=clock)

    class OverloadedError(Exception):
        status_code = 529

    @guard.llm
    def ask(prompt: str) -> str:
        raise OverloadedError

    @guard.llm
    async def ask_later(prompt: str) -> str:
        raise TimeoutError

    for _ in range(5):
        with pytest.raises(OverloadedError):
            ask("again")
        with pytest.raises(TimeoutError):
            asyncio.run(ask_later("again"))
    assert guard.faults == 0


def test_a_note_is_appended_to_the_messages(clock: FakeClock) -> None:
    """Steer; the caller's own list is left as it is (LD-5)."""
    guard = Guard(bundle(policy("p", loop=exact(2, action="steer"))), clock=clock)
    seen: list[list[dict[str, Any]]] = []

    @guard.llm
    def ask(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return "hm"

    for _ in range(2):
        ask(MESSAGES)
    assert seen[0] is MESSAGES
    assert seen[1][-1]["content"].startswith("again\n\n[breakloop] You have sent the same request 2 times")
    assert MESSAGES == [{"role": "user", "content": "again"}]


def test_tools_are_switched_off_when_a_call_is_landed(clock: FakeClock) -> None:
    """Where the function takes a `tool_choice`, by name or among others, and was called with tools (LD-10)."""
    seen: list[dict[str, Any]] = []
    guard = Guard(bundle(policy("p", loop=exact(2, action="land"))), clock=clock)

    @guard.llm
    def ask(messages: list[dict[str, Any]], tools: Any = None, tool_choice: Any = None) -> str:
        seen.append({"messages": messages, "tools": tools, "tool_choice": tool_choice})
        return "hm"

    @guard.llm
    def pass_on(**options: Any) -> str:
        seen.append(options)
        return "hm"

    @guard.llm
    def plain(messages: list[dict[str, Any]]) -> str:
        seen.append({"messages": messages})
        return "hm"

    for function, text, tools in ((ask, "a", ["t"]), (pass_on, "b", ["t"]), (ask, "c", []), (pass_on, "d", None)):
        for _ in range(2):
            function(messages=[{"role": "user", "content": text}], tools=tools)
    for _ in range(2):
        plain([{"role": "user", "content": "e"}])
    assert [one.get("tool_choice") for one in seen] == [None, "none", None, "none"] + [None] * 6
    noted = ["tools are switched off" in one["messages"][-1]["content"] for one in seen]
    assert noted == [False, True, False, False, False, True, False, False, False, True]  # `messages` by name


def test_answers_of_all_kinds() -> None:
    """Texts, dictionaries of each dialect, objects with `model_dump`, and whatever else (D-6)."""

    class Response:
        def model_dump(self, mode: str) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": mode}], "usage": {"input_tokens": 3, "output_tokens": 4}}

    assert answer_in("hi") == Answer(200, text="hi", complete=True)
    assert answer_in({"choices": [{"message": {"content": "chat"}}]}).text == "chat"
    answer = answer_in(Response())
    assert answer.text == "json"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    for other in (None, 7, {}, {"text": "?"}, {"choices": 3}, {("no", "key"): 1, "choices": []}):
        assert not answer_in(other).failed
