"""OpenHands' event logs: a folder of events, one a file (`sessions/*/events`, `conversations/*/events`), a trajectory
(a list of them), or the output of an evaluation (`history` in each record). Events are read by `openhands_events`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from breakloop.model.answer import Answer, Usage
from breakloop.model.call import ToolCall
from breakloop.replay.readers import openhands_events as events
from breakloop.replay.readers.dialogue import ANTHROPIC, Dialogue
from breakloop.replay.readers.fields import decoded, first, mapping
from breakloop.replay.sessions import Piece, Session, Turn
from breakloop.wire.content import as_list, clean, text

FORMAT = "openhands"
EVENTS = "events"


class OpenHandsReader:
    """Reads one event a record, or one session a record."""

    def __init__(self, name: str) -> None:
        path = PurePath(name)
        self._id = path.parent.name if path.name == EVENTS else path.name.partition(".")[0]
        self._count = 0
        self._log: _Log | None = None

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Tell whether this is the format of a record."""
        return events.is_event(record) or any(map(events.is_event, _history(record)[:5]))

    def take(self, record: Mapping[str, Any]) -> Iterator[Piece]:
        """Read an event or a session."""
        listed = _history(record)
        if not listed:
            if self._log is None:
                self._log = _Log(self._id)
            yield from self._log.take(record)
            return
        self._count += 1
        log = _Log(clean(text(first(record, ("instance_id", "id")))) or f"{self._id}#{self._count}", _model(record))
        for event in listed:
            if isinstance(event, dict):
                yield from log.take(event)
        yield from log.end()

    def end(self) -> Iterator[Piece]:
        """Return what was under way, and that nothing follows."""
        if self._log is not None:
            yield from self._log.end()


class _Log:
    """The events of one session, put together to calls of the model."""

    def __init__(self, session_id: str, model: str = "") -> None:
        self._id = session_id
        self._model = model
        self._session: Session | None = None
        self._dialogue = Dialogue(ANTHROPIC)
        self._answer: list[events.Event] = []
        self._calls: set[str] = set()  # ids of calls made: only their results are results

    def take(self, record: Mapping[str, Any]) -> Iterator[Piece]:
        """Take the next event."""
        event = events.read(record)
        if event is None:
            return
        if event.kind == events.ANSWER:
            if self._answer and not self._goes_on(event):
                yield from self._closed()
            if not self._answer:
                self._dialogue.begin(event.at_s)
            self._answer.append(event)
            if event.call is not None:
                self._calls.add(event.call[0])
        elif event.kind == events.FORGET:
            yield from self._closed()
            summary = {"role": "user", "content": event.text} if event.text else None
            self._dialogue.forget(event.forgotten, summary, event.at)
        else:
            self._dialogue.hear(self._heard(event), event.at_s, event.id)

    def end(self) -> Iterator[Piece]:
        """Return the last call, and that nothing follows."""
        yield from self._closed()
        if self._session is not None:
            yield Piece(self._session, (), whole=True)

    def _goes_on(self, event: events.Event) -> bool:
        """Tell whether this is one more call of the answer under way."""
        return bool(event.response_id) and event.response_id == self._answer[0].response_id

    def _heard(self, event: events.Event) -> Mapping[str, Any]:
        if event.kind == events.USER or event.call_id not in self._calls:
            return {"role": "user", "content": event.text}
        result = {"type": "tool_result", "tool_use_id": event.call_id, "content": event.text}
        return {"role": "user", "content": [{**result, "is_error": True} if event.failed else result]}

    def _closed(self) -> Iterator[Piece]:
        if not self._answer:
            return
        turn = self._turn()
        if self._session is None:
            self._session = Session(self._id, FORMAT, FORMAT, self._model)
        yield Piece(self._session, (turn,), whole=False)

    def _turn(self) -> Turn:
        made, self._answer = self._answer, []
        self._model = next((one.model for one in made if one.model), self._model)
        said = list(dict.fromkeys(one.text for one in made if one.text))
        calls = [one.call for one in made if one.call is not None]
        blocks: list[dict[str, Any]] = [{"type": "text", "text": one} for one in said]
        blocks += [{"type": "tool_use", "id": call[0], "name": call[1], "input": decoded(call[2])} for call in calls]
        usage: Usage | None = next((one.usage for one in made if one.usage is not None), None)
        answer = Answer(
            200, "\n".join(said), tuple([ToolCall(one[1], one[2]) for one in calls]), usage, self._model, complete=True
        )
        item = {"role": "assistant", "content": blocks}
        return self._dialogue.answered([item], answer, self._model, name=made[0].id)


def _history(record: Mapping[str, Any]) -> list[Any]:
    """The events of a session in one record; old evaluations have pairs of an action and what came of it."""
    found: list[Any] = []
    for one in as_list(record.get("history")):
        found += one if isinstance(one, list) else [one]
    return found


def _model(record: Mapping[str, Any]) -> str:
    settings = mapping(mapping(record.get("metadata")).get("llm_config"))
    return text(settings.get("model") or mapping(record.get("metadata")).get("model"))
