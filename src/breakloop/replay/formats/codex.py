"""Rollouts of Codex (`.codex/sessions/**/rollout-*.jsonl`): items of the Responses API with model, token counts and
compactions.

Rollouts from before autumn 2025 (bare items after a first line with the session id) are supported, too. A fork
copies the items of its parent: the copied turns have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from breakloop.dialects import registry
from breakloop.dialects.content import clean, json_text, text
from breakloop.model.call import Usage
from breakloop.replay.formats.base import RESPONSES, Dialogue, FormatReader, count, mapping, seconds
from breakloop.replay.formats.requests import answer_of
from breakloop.replay.sessions import RecordedSession, RecordedTurn, SessionSlice

_TYPES: Final = frozenset(("session_meta", "response_item", "event_msg", "turn_context", "compacted"))
_SILENT: Final = frozenset(("reasoning", "ghost_snapshot", "compaction", "compaction_summary", "context_compaction"))


class CodexReader(FormatReader):
    """Reads one line per record; a file is a session."""

    format = "codex"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._id = ""
        self._agent = self.format
        self._parent = ""
        self._model = ""
        self._session: RecordedSession | None = None
        self._dialogue = Dialogue(RESPONSES)
        self._answer: list[Mapping[str, Any]] = []  # items of the current response
        self._over = False  # input followed: the next output item starts a new response
        self._usage: Usage | None = None
        self._total = Usage()
        self._chain = b""  # digest of all items so far
        self._key = ""  # the same digest at the last item of a response

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        if isinstance(record.get("payload"), dict):
            return text(record.get("type")) in _TYPES
        old = {"id", "timestamp"} <= record.keys() and "instructions" in record and "type" not in record
        return old or record.get("record_type") == "state"

    def take(self, record: Mapping[str, Any]) -> Iterator[SessionSlice]:
        payload, kind = record.get("payload"), text(record.get("type"))
        at_s = seconds(record.get("timestamp"))
        if payload is None:
            kind, payload = ("response_item", record) if "type" in record else ("session_meta", record)
        if not isinstance(payload, dict):
            raise ValueError(f"is a line of type {kind} without a payload")  # noqa: TRY004 - one kind of error
        if kind == "response_item":
            yield from self._item(payload, at_s)
        elif kind == "event_msg":
            self._event(payload)
        elif kind == "compacted":
            yield from self._closed()
            history = payload.get("replacement_history")
            said = {"type": "message", "role": "user", "content": text(payload.get("message"))}
            self._dialogue.restart(history if isinstance(history, list) else [said])
        elif kind == "turn_context":
            self._model = text(payload.get("model")) or self._model
        elif kind == "session_meta":
            self._meta(payload)

    def end(self) -> Iterator[SessionSlice]:
        yield from self._closed()
        if self._session is not None:
            yield SessionSlice(self._session, (), whole=True)

    def _meta(self, payload: Mapping[str, Any]) -> None:
        if self._id or not payload.get("id"):
            return  # a fork repeats the first line of its parent
        self._id = clean(text(payload["id"]))
        self._model = self._model or text(payload.get("model"))
        source = mapping(payload.get("source"))
        if source or payload.get("agent_role") or payload.get("agent_nickname"):
            self._agent = f"{self.format} sub-agent"
        spawned = mapping(mapping(source.get("subagent")).get("thread_spawn"))
        self._parent = clean(text(payload.get("parent_thread_id")) or text(spawned.get("parent_thread_id")))

    def _item(self, item: Mapping[str, Any], at_s: float | None) -> Iterator[SessionSlice]:
        kind = text(item.get("type"))
        if kind in _SILENT:
            return
        self._chain = blake2b(self._chain + json_text(item), digest_size=12).digest()
        if item.get("role") == "assistant" or kind.endswith("_call"):
            if self._over:
                yield from self._closed()
            if not self._answer:
                self._dialogue.begin(at_s)
            self._answer.append(item)
            self._key = self._chain.hex()
            return
        self._over = bool(self._answer)  # token counts may follow the results
        self._dialogue.hear(item, at_s)

    def _event(self, event: Mapping[str, Any]) -> None:
        """Read token counts: those of the last call, or the growth of the total."""
        if event.get("type") != "token_count":
            return
        info = mapping(event.get("info"))
        total = _usage(mapping(info.get("total_token_usage")))
        last = _usage(mapping(info.get("last_token_usage")))
        if last is None and total is not None:
            grown = [max(now - before, 0) for now, before in zip(total[:5], self._total[:5], strict=True)]
            last = Usage(*grown)
        if total is None or total != self._total:  # an unchanged total reports something else
            self._usage = self._usage or last
        self._total = total or self._total

    def _closed(self) -> Iterator[SessionSlice]:
        self._over = False
        if not self._answer:
            return
        turn = self._turn()
        if self._session is None:
            named = self._id or self._name
            self._session = RecordedSession(named, self.format, self._agent, self._model, parent=self._parent)
        yield SessionSlice(self._session, (turn,), whole=False)

    def _turn(self) -> RecordedTurn:
        items, self._answer = self._answer, []
        usage, self._usage = self._usage, None
        response = {"model": self._model, "output": items}
        answer = answer_of(registry.of_path(RESPONSES.path), response)._replace(usage=usage)
        return self._dialogue.answered(items, answer, self._model, self._key)


def _usage(said: Mapping[str, Any]) -> Usage | None:
    asked, answered = count(said.get("input_tokens")), count(said.get("output_tokens"))
    if not asked and not answered:
        return None
    return Usage(asked, answered, count(said.get("cached_input_tokens")), 0, count(said.get("reasoning_output_tokens")))
