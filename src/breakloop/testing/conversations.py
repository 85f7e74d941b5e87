"""Conversations that grow as an agent's do: each request carries all before it, and no id of a call comes twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Self

from breakloop.testing.factories import (
    MODEL,
    chat_request,
    gemini_request,
    messages_request,
    responses_request,
    tool_call,
    tool_result,
)

Json = dict[str, Any]

SYSTEM: Final = "You are a careful engineer. Use the tools, one step at a time, and say when you are done."
TASK: Final = "The nightly build fails. Find out why, and mend it."
_FILES: Final = ("build.log", "Makefile", "src/app.py", "src/config.py", "tests/test_app.py", "README.md")


@dataclass(frozen=True, slots=True)
class Turn:
    """A text of the user or the model, or (with a tool's name) a call and its result."""

    role: str
    text: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    failed: bool = False


class Conversation:
    """One agent's conversation. The methods return it again, so that they can be chained."""

    def __init__(
        self, task: str = TASK, *, system: str = SYSTEM, model: str = MODEL, dialect: str = "openai_chat"
    ) -> None:
        if dialect not in _REQUESTS:
            raise ValueError(f"no conversations in {dialect}: one of {', '.join(_REQUESTS)}")
        self.dialect = dialect
        self.system = system
        self.model = model
        self._turns: list[tuple[Turn, str]] = []  # with the id of its call
        self._ids = count(1)
        self.user(task)

    def user(self, text: str) -> Self:
        """The user says something."""
        return self._add(Turn("user", text))

    def assistant(self, text: str) -> Self:
        """The model says something."""
        return self._add(Turn("assistant", text))

    def tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        result: str = "ok",
        *,
        text: str = "",
        failed: bool = False,
    ) -> Self:
        """The model calls a tool, and gets its result."""
        return self._add(Turn("assistant", text, name, dict(arguments or {}), result, failed))

    def work(self, steps: int = 1) -> Self:
        """Go on as a healthy agent does: another file, another finding, each time."""
        for _ in range(steps):
            number = len(self._turns)
            path = _FILES[number % len(_FILES)]
            found = f"{path}, part {number}: " + " ".join(f"line {number * 7 + line}" for line in range(12))
            said = f"Step {number}: I read {path}."
            self.tool("read_file", {"path": path, "from_line": number * 7}, found, text=said)
        return self

    def repeat(self, times: int = 1) -> Self:
        """Do the last turn once more, as a looping agent does: all the same, but for the id of the call."""
        for _ in range(times):
            self._add(self._turns[-1][0])
        return self

    def request(self, **more: Any) -> Json:
        """Return the body of the next request; further fields (`stream=True`) go into it."""
        return _REQUESTS[self.dialect](self, more)

    def requests(self, steps: int) -> Iterator[Json]:
        """Return the bodies of a healthy agent's next requests: one now, and one after each step."""
        for _ in range(steps):
            yield self.request()
            self.work()

    def _add(self, turn: Turn) -> Self:
        self._turns.append((turn, f"call_{next(self._ids):06d}" if turn.tool else ""))
        return self

    def items(self) -> list[Json]:
        """Return the messages (items, contents) in the conversation's dialect, without the system prompt."""
        items: list[Json] = []
        for turn, call_id in self._turns:
            if turn.text and (not turn.tool or self.dialect == "openai_responses"):
                items.append(_said(turn, self.dialect))
            if turn.tool:
                shared: Json = {"call_id": call_id, "dialect": self.dialect}
                items.append(tool_call(turn.tool, turn.arguments, text=turn.text, **shared))
                items.append(tool_result(turn.result, name=turn.tool, failed=turn.failed, **shared))
        return items


def conversation(steps: int = 0, task: str = TASK, *, dialect: str = "openai_chat") -> Conversation:
    """Return a conversation in which so many steps of work are done."""
    return Conversation(task, dialect=dialect).work(steps)


def _said(turn: Turn, dialect: str) -> Json:
    if dialect == "gemini":
        return {"role": "user" if turn.role == "user" else "model", "parts": [{"text": turn.text}]}
    return {"role": turn.role, "content": turn.text}


def _chat(talk: Conversation, more: Json) -> Json:
    return chat_request({"role": "system", "content": talk.system}, *talk.items(), model=talk.model, **more)


def _messages(talk: Conversation, more: Json) -> Json:
    return messages_request(*talk.items(), model=talk.model, system=talk.system, **more)


def _responses(talk: Conversation, more: Json) -> Json:
    return responses_request(*talk.items(), model=talk.model, instructions=talk.system, **more)


def _gemini(talk: Conversation, more: Json) -> Json:
    return gemini_request(*talk.items(), systemInstruction={"parts": [{"text": talk.system}]}, **more)


_REQUESTS: Final = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic_messages": _messages,
    "gemini": _gemini,
}
