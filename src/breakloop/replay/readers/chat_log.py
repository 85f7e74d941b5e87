"""Whole conversations, one a line, as for fine-tuning and as home-made agents dump them: `messages` that end with an
answer, OpenAI's or Anthropic's. A line that begins with all of an earlier one goes on with that session, so that a
program that writes its history again after each turn has one session. Requests with their answer are `request_log`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final

from breakloop.model.answer import Answer, Usage
from breakloop.model.call import ToolCall
from breakloop.replay.readers import anthropic_log, openai_log
from breakloop.replay.readers.dialogue import ANTHROPIC, CHAT, Dialogue
from breakloop.replay.readers.fields import AGENTS, SESSIONS, TIMES, count, first, mapping, named, seconds
from breakloop.replay.sessions import Piece, Session, Turn
from breakloop.wire.content import arguments, as_list, clean, content, json_text, text

FORMAT = "chat"
_ANSWERS: Final = ("response", "response_body", "res", "completion", "output", "answer", "choices")
_ASSISTANT: Final = "assistant"
_CHAINS_MAX: Final = 100_000  # ends of conversations that are remembered


class ChatLogReader:
    """Reads one conversation a record."""

    def __init__(self, name: str) -> None:
        self._name = PurePath(name).name
        self._count = 0
        self._ends: dict[bytes, Session] = {}  # digest of a whole conversation -> whose it is
        self._open: dict[str, Session] = {}

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Tell whether this is the format of a record."""
        messages = record.get("messages")
        if not isinstance(messages, list) or len(messages) < 2 or first(record, _ANSWERS) is not None:
            return False
        last = messages[-1]
        return isinstance(last, dict) and last.get("role") == _ASSISTANT and openai_log.fits(record)

    def take(self, record: Mapping[str, Any]) -> Iterator[Piece]:
        """Read one conversation; ValueError when there is none in the record."""
        messages = record.get("messages")
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise ValueError("has no list of messages")
        self._count += 1
        chain = _chain(messages)
        known = next((at for at in range(len(chain) - 1, -1, -1) if chain[at] in self._ends), -1)
        session = self._ends[chain[known]] if known >= 0 else self._session(record)
        if len(self._ends) < _CHAINS_MAX and chain:
            self._ends[chain[-1]] = session
        self._open[session.id] = session
        for at, turn in _turns(record, messages, session.model):
            if at > known:
                yield Piece(session, (turn,), whole=False)

    def end(self) -> Iterator[Piece]:
        """Nothing follows."""
        for session in self._open.values():
            yield Piece(session, (), whole=True)

    def _session(self, record: Mapping[str, Any]) -> Session:
        session_id = clean(named(record, SESSIONS)) or clean(text(record.get("id")))
        if not session_id or session_id in self._open:
            session_id = f"{session_id or self._name}#{self._count}"
        agent, model = clean(named(record, AGENTS)), text(record.get("model"))
        return Session(session_id, FORMAT, agent, model)


def _chain(messages: list[Any]) -> list[bytes]:
    """A digest of the conversation up to each of its messages."""
    made: list[bytes] = []
    before = b""
    for message in messages:
        before = blake2b(before + json_text(message), digest_size=12).digest()
        made.append(before)
    return made


def _turns(record: Mapping[str, Any], messages: list[Any], model: str) -> Iterator[tuple[int, Turn]]:
    """Each answer with its place among the messages."""
    form = ANTHROPIC if anthropic_log.is_theirs(record, None) else CHAT
    dialogue = Dialogue(form)
    if form is ANTHROPIC and record.get("system"):
        dialogue.hear({"role": "system", "content": record["system"]})
    for at, message in enumerate(messages):
        at_s = seconds(first(message, TIMES))
        if message.get("role") != _ASSISTANT:
            dialogue.hear(message, at_s)
            continue
        dialogue.begin(at_s)
        yield at, dialogue.answered([message], _answer(message, model), model)


def _answer(message: Mapping[str, Any], model: str) -> Answer:
    said = message.get("content")
    blocks = [block for block in as_list(said) if isinstance(block, dict)]
    made = [*as_list(message.get("tool_calls")), *as_list(message.get("function_call"))]
    calls = [_call(mapping(one)) for one in made]
    calls += [ToolCall(text(one.get("name")), arguments(one.get("input"))) for one in blocks if _is_call(one)]
    spoken: object = [one for one in blocks if not _is_call(one)] if blocks else said
    usage = _usage(mapping(message.get("usage")))
    return Answer(200, content(spoken), tuple(calls), usage, text(message.get("model")) or model, complete=True)


def _is_call(block: Mapping[str, Any]) -> bool:
    return text(block.get("type")).endswith("tool_use")


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = mapping(call.get("function")) or mapping(call.get("custom")) or call
    return ToolCall(text(function.get("name")), arguments(function.get("arguments", function.get("input"))))


def _usage(said: Mapping[str, Any]) -> Usage | None:
    asked = count(first(said, ("prompt_tokens", "input_tokens")))
    answered = count(first(said, ("completion_tokens", "output_tokens")))
    return Usage(asked, answered) if asked or answered else None
