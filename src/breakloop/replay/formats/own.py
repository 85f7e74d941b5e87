"""breakloop's own format: one session per line, requests as deltas. See docs/how-to/replay.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from breakloop.dialects.content import as_list, clean, content, text
from breakloop.model.call import Answer, ToolCall
from breakloop.replay.formats.base import FormatReader, tool_call
from breakloop.replay.sessions import Delta, RecordedSession, RecordedTurn, SessionLabel, SessionSlice


class OwnReader(FormatReader):
    """Reads one session per record."""

    format = "breakloop"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return isinstance(record.get("turns"), list)

    def take(self, record: Mapping[str, Any]) -> Sequence[SessionSlice]:
        turns = record.get("turns")
        if not isinstance(turns, list):
            raise ValueError("has no list of turns")  # noqa: TRY004 - one kind of error for a bad record
        self._count += 1
        session = RecordedSession(
            id=clean(text(record.get("id"))) or f"{self._name}#{self._count}",
            source=text(record.get("source")),
            agent=clean(text(record.get("agent"))),
            model=text(record.get("model")),
            task=text(record.get("task")),
            label=label_of(record.get("label")),
        )
        return [SessionSlice(session, [_turn(turn) for turn in turns], whole=True)]


def label_of(value: object) -> SessionLabel:
    """Read a label; anything but true or false is unknown."""
    if isinstance(value, bool):
        return SessionLabel(value)
    if not isinstance(value, dict):
        return SessionLabel()
    loop = value.get("loop")
    return SessionLabel(loop if isinstance(loop, bool) else None, text(value.get("by")), text(value.get("kind")))


def _turn(turn: object) -> RecordedTurn:
    if not isinstance(turn, dict):
        raise ValueError("has a turn that is not a map")  # noqa: TRY004 - as above
    delta = [message for message in as_list(turn.get("request_messages_delta")) if isinstance(message, dict)]
    keep, at_s = turn.get("keep"), turn.get("t")
    return RecordedTurn(
        Delta(text(turn.get("thread")), keep if isinstance(keep, int) and keep > 0 else 0, delta),
        _answer(turn.get("response")),
        clean(text(turn.get("agent"))),
        float(at_s) if isinstance(at_s, int | float) else None,
    )


def _answer(response: object) -> Answer:
    if not isinstance(response, dict):
        return Answer(0)  # not recorded: the request failed, or the session ended with it
    listed = as_list(response.get("tool_calls"))
    calls = [tool_call(call) if isinstance(call, dict) else ToolCall("", text(call)) for call in listed]
    status = response.get("status")
    return Answer(
        status if isinstance(status, int) else 200, content(response.get("content")), tuple(calls), complete=True
    )
