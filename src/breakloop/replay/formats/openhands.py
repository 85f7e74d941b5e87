"""Event logs of OpenHands: a directory with one event per file, a trajectory (a list of events), or the output of an
evaluation.

Both forms of events are supported: that of the 0.x releases (`action`, `observation`) and that of the software agent
SDK (`kind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from breakloop.dialects.content import arguments, as_list, clean, content, text
from breakloop.model.call import Answer, ToolCall, Usage
from breakloop.replay.formats.base import (
    ANTHROPIC,
    Dialogue,
    FormatReader,
    decoded,
    first,
    mapping,
    seconds,
    tool_call,
    usage_of,
)
from breakloop.replay.sessions import RecordedSession, RecordedTurn, SessionSlice

USER, ANSWER, RESULT, FORGET = "user", "answer", "result", "forget"
_NO_ANSWERS: Final = frozenset(("system", "recall", "change_agent_state", "null", "condensation_request", "start", ""))
_NO_RESULTS: Final = frozenset(("agent_state_changed", "null", "recall", "agent_thought", "agent_condensation"))
_NOT_ARGUMENTS: Final = frozenset(
    ("thought", "reasoning_content", "hidden", "confirmation_state", "security_risk", "is_input", "blocking")
)


class OpenHandsEvent(NamedTuple):
    """What an event adds to the conversation."""

    kind: str
    text: str = ""
    call: tuple[str, str, str] | None = None  # id, name and arguments of a call in the response
    call_id: str = ""  # the call of a result
    failed: bool = False
    response_id: str = ""  # id of the response, shared by its calls
    model: str = ""
    usage: Usage | None = None
    forgotten: frozenset[str] = frozenset()
    at: int = 0  # position of a summary
    id: str = ""
    at_s: float | None = None


def is_event(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    if isinstance(record.get("kind"), str):
        return record["kind"].endswith(("Event", "Observation", "Condensation")) and "source" in record
    named = isinstance(record.get("action"), str) or isinstance(record.get("observation"), str)
    return named and ("source" in record or "extras" in record or "args" in record)


def read(record: Mapping[str, Any]) -> OpenHandsEvent | None:
    """Read an event; None if the model does not see it."""
    if isinstance(record.get("kind"), str):
        found = _of_sdk(record, record["kind"])
    elif isinstance(record.get("action"), str):
        found = _action(record, record["action"])
    else:
        found = _observation(record, text(record.get("observation")))
    if found is None:
        return None
    return found._replace(id=text(record.get("id")), at_s=seconds(record.get("timestamp")))


def _action(record: Mapping[str, Any], action: str) -> OpenHandsEvent | None:
    args = mapping(record.get("args"))
    if action == "condensation":
        return _condensed(args)
    if record.get("source") == "user":
        said = text(first(args, ("content", "task")) or record.get("message"))
        return OpenHandsEvent(USER, said) if action == "message" else None
    if action in _NO_ANSWERS or record.get("source") != "agent":
        return None
    told = mapping(record.get("tool_call_metadata"))
    response = mapping(told.get("model_response"))
    said = text(args.get("thought"))
    if action == "message":
        said = text(args.get("content")) or said
    call_id = text(told.get("tool_call_id"))
    call = None
    if told:
        call = _native(response, call_id) or (call_id, text(told.get("function_name")) or action, _given(args))
    elif action != "message":
        call = (f"event_{text(record.get('id'))}", action, _given(args))
    return OpenHandsEvent(
        ANSWER, said, call, response_id=text(response.get("id")), model=text(response.get("model")),
        usage=usage_of(mapping(response.get("usage"))),
    )  # fmt: skip


def _native(response: Mapping[str, Any], call_id: str) -> tuple[str, str, str] | None:
    """Return the call as the model made it, if the response was recorded."""
    choices = as_list(response.get("choices"))
    message = mapping(mapping(choices[0]).get("message")) if choices else {}
    for made in as_list(message.get("tool_calls")):
        call = mapping(made)
        if call.get("id") == call_id:
            return call_id, *tool_call(call)
    return None


def _given(args: Mapping[str, Any]) -> str:
    return arguments({name: value for name, value in args.items() if name not in _NOT_ARGUMENTS})


def _with_exit(said: str, code: object) -> str:
    """Add the line that OpenHands appends to the text for the model."""
    return f"{said}\n[Command finished with exit code {code}]" if isinstance(code, int) and code >= 0 else said


def _observation(record: Mapping[str, Any], seen: str) -> OpenHandsEvent | None:
    if seen in _NO_RESULTS or not seen:
        return None
    extras = mapping(record.get("extras"))
    told = mapping(record.get("tool_call_metadata"))
    exit_code = extras.get("exit_code", mapping(extras.get("metadata")).get("exit_code"))
    said = _with_exit(text(record.get("content")), exit_code)
    failed = seen == "error" or record.get("success") is False
    call_id = text(told.get("tool_call_id"))
    if not call_id and record.get("cause") is not None:
        call_id = f"event_{text(record['cause'])}"
    return OpenHandsEvent(RESULT, said, call_id=call_id, failed=failed)


def _of_sdk(record: Mapping[str, Any], kind: str) -> OpenHandsEvent | None:
    if kind == "MessageEvent":
        message = mapping(record.get("llm_message"))
        said = content(message.get("content"))
        if record.get("source") == "agent":
            return OpenHandsEvent(ANSWER, said, response_id=text(record.get("llm_response_id")))
        return OpenHandsEvent(USER, said)
    if kind == "ActionEvent":
        made = mapping(record.get("tool_call"))
        call_id = text(record.get("tool_call_id") or made.get("id"))
        given = made.get("arguments", mapping(made.get("function")).get("arguments", record.get("action")))
        call = (call_id, text(record.get("tool_name") or made.get("name")), arguments(given))
        said = content(record.get("thought"))
        return OpenHandsEvent(ANSWER, said, call, response_id=text(record.get("llm_response_id")))
    if kind == "Condensation":
        return _condensed(record)
    call_id = text(record.get("tool_call_id"))
    if kind == "ObservationEvent":
        seen = mapping(record.get("observation"))
        said = _with_exit(content(first(seen, ("content", "output", "error", "result"))), seen.get("exit_code"))
        failed = bool(seen.get("is_error") or seen.get("error"))
        return OpenHandsEvent(RESULT, said, call_id=call_id, failed=failed)
    if kind == "AgentErrorEvent":
        return OpenHandsEvent(RESULT, text(record.get("error")), call_id=call_id, failed=True)
    if kind == "UserRejectObservation":
        return OpenHandsEvent(RESULT, text(record.get("rejection_reason")), call_id=call_id)
    return None


def _condensed(said: Mapping[str, Any]) -> OpenHandsEvent:
    ids = {text(one) for one in as_list(said.get("forgotten_event_ids"))}
    start, end = said.get("forgotten_events_start_id"), said.get("forgotten_events_end_id")
    if isinstance(start, int) and isinstance(end, int) and end - start < 1_000_000:
        ids |= {str(one) for one in range(start, end + 1)}
    offset = said.get("summary_offset")
    at = offset if isinstance(offset, int) and offset >= 0 else 1
    return OpenHandsEvent(FORGET, text(said.get("summary")), forgotten=frozenset(ids), at=at)


class OpenHandsReader(FormatReader):
    """Reads one event or one session per record."""

    format = "openhands"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        path = PurePath(name)
        self._id = path.parent.name if path.name == "events" else path.name.partition(".")[0]
        self._log: _Log | None = None

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return is_event(record) or any(map(is_event, _history(record)[:5]))

    def take(self, record: Mapping[str, Any]) -> Iterator[SessionSlice]:
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

    def end(self) -> Iterator[SessionSlice]:
        if self._log is not None:
            yield from self._log.end()


class _Log:
    """Assembles the events of one session to turns."""

    def __init__(self, session_id: str, model: str = "") -> None:
        self._id = session_id
        self._model = model
        self._session: RecordedSession | None = None
        self._dialogue = Dialogue(ANTHROPIC)
        self._answer: list[OpenHandsEvent] = []
        self._calls: set[str] = set()  # ids of calls; only their results are results

    def take(self, record: Mapping[str, Any]) -> Iterator[SessionSlice]:
        event = read(record)
        if event is None:
            return
        if event.kind == ANSWER:
            if self._answer and not self._goes_on(event):
                yield from self._closed()
            if not self._answer:
                self._dialogue.begin(event.at_s)
            self._answer.append(event)
            if event.call is not None:
                self._calls.add(event.call[0])
        elif event.kind == FORGET:
            yield from self._closed()
            summary = {"role": "user", "content": event.text} if event.text else None
            self._dialogue.forget(event.forgotten, summary, event.at)
        else:
            self._dialogue.hear(self._heard(event), event.at_s, event.id)

    def end(self) -> Iterator[SessionSlice]:
        yield from self._closed()
        if self._session is not None:
            yield SessionSlice(self._session, (), whole=True)

    def _goes_on(self, event: OpenHandsEvent) -> bool:
        """Return whether this is another call of the current response."""
        return bool(event.response_id) and event.response_id == self._answer[0].response_id

    def _heard(self, event: OpenHandsEvent) -> Mapping[str, Any]:
        if event.kind == USER or event.call_id not in self._calls:
            return {"role": "user", "content": event.text}
        result = {"type": "tool_result", "tool_use_id": event.call_id, "content": event.text}
        return {"role": "user", "content": [{**result, "is_error": True} if event.failed else result]}

    def _closed(self) -> Iterator[SessionSlice]:
        if not self._answer:
            return
        turn = self._turn()
        if self._session is None:
            self._session = RecordedSession(self._id, OpenHandsReader.format, OpenHandsReader.format, self._model)
        yield SessionSlice(self._session, (turn,), whole=False)

    def _turn(self) -> RecordedTurn:
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
    """Return the events of a session in one record; old evaluations have pairs of action and observation."""
    found: list[Any] = []
    for one in as_list(record.get("history")):
        found += one if isinstance(one, list) else [one]
    return found


def _model(record: Mapping[str, Any]) -> str:
    settings = mapping(mapping(record.get("metadata")).get("llm_config"))
    return text(settings.get("model") or mapping(record.get("metadata")).get("model"))
