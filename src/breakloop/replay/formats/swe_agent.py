"""Trajectories of SWE-agent (`.traj`: `history`, or only the steps of `trajectory`) and mini-swe-agent (`.traj.json`:
`messages`).

One document is one session. Demonstrations at its beginning are not turns of the agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from breakloop.dialects.content import as_list, clean, content, text
from breakloop.model.call import Answer
from breakloop.replay.formats.base import (
    CHAT,
    Dialogue,
    FormatReader,
    count,
    first,
    mapping,
    seconds,
    tool_call,
    usage_of,
)
from breakloop.replay.run import SPACING_S
from breakloop.replay.sessions import RecordedSession, RecordedTurn, SessionSlice

_MINI: Final = "mini-swe-agent"
_NOT_SENT: Final = frozenset(("exit",))  # exit status of a mini-swe-agent run


class SweAgentReader(FormatReader):
    """Reads one session per record."""

    format = "swe-agent"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._id = PurePath(name).name.partition(".traj")[0] or name

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        if text(record.get("trajectory_format")).startswith(_MINI):
            return isinstance(record.get("messages"), list)
        history, steps = as_list(record.get("history")), as_list(record.get("trajectory"))
        return _begins(history, "role") or _begins(steps, "observation") or _begins(steps, "action")

    def take(self, record: Mapping[str, Any]) -> Iterator[SessionSlice]:
        messages, agent = _messages(record)
        if not messages:
            raise ValueError("has neither messages nor steps")
        self._count += 1
        name = text(first(record, ("instance_id", "environment"))) if self._count > 1 else ""
        session_id = clean(name) or (self._id if self._count == 1 else f"{self._id}#{self._count}")
        session = RecordedSession(session_id, self.format, agent or self.format, _model(record))
        times = _times(record, messages)
        threads: dict[str, Dialogue] = {}
        for message in messages:
            dialogue = threads.setdefault(text(message.get("agent")), Dialogue(CHAT))
            if message.get("role") == "assistant" and not message.get("is_demo"):
                turn = _turn(dialogue, message, session.model, next(times, None))
                yield SessionSlice(session, (turn,), whole=False)
            else:
                dialogue.hear(_wired(message), _at(message))
        yield SessionSlice(session, (), whole=True)


def _begins(listed: list[Any], field: str) -> bool:
    return bool(listed) and isinstance(listed[0], dict) and field in listed[0]


def _messages(record: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    """Return the messages, and the name of the agent if it is another one."""
    if "messages" in record:
        listed, agent = as_list(record["messages"]), _MINI
    else:
        listed, agent = as_list(record.get("history")) or _of_steps(as_list(record.get("trajectory"))), ""
    maps = [one for one in listed if isinstance(one, dict)]
    return [one for one in maps if text(one.get("role")) not in _NOT_SENT], agent


def _of_steps(steps: list[Any]) -> list[Any]:
    """Build a conversation from steps: responses of the model and observations."""
    made: list[Any] = []
    for step in steps:
        if isinstance(step, dict):
            said = text(first(step, ("response", "thought"))) or text(step.get("action"))
            made += [{"role": "assistant", "content": said}, {"role": "user", "content": text(step.get("observation"))}]
    return [{"role": "user", "content": ""}, *made] if made else []


def _turn(dialogue: Dialogue, message: Mapping[str, Any], model: str, at_s: float | None) -> RecordedTurn:
    extra = mapping(message.get("extra"))
    dialogue.begin(at_s if at_s is not None else _at(message))
    wired = _wired(message)
    calls = tuple([tool_call(mapping(one)) for one in as_list(wired.get("tool_calls"))])
    said = content(message.get("content"))
    answer = Answer(
        200, said, calls, usage_of(mapping(mapping(extra.get("response")).get("usage"))), model, complete=True
    )
    return dialogue.answered([wired], answer, model)


def _wired(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message in the form of the API, without the agent's own fields."""
    made: dict[str, Any] = {"role": text(message.get("role")) or "user", "content": message.get("content")}
    if message.get("tool_calls"):
        made["tool_calls"] = message["tool_calls"]
    ids = as_list(message.get("tool_call_ids"))
    call_id = message.get("tool_call_id") or (ids[0] if ids else None)
    if call_id and made["role"] == "tool":
        made["tool_call_id"] = call_id
    return made


def _at(message: Mapping[str, Any]) -> float | None:
    return seconds(first(message, ("timestamp",)) or mapping(message.get("extra")).get("timestamp"))


def _times(record: Mapping[str, Any], messages: list[Mapping[str, Any]]) -> Iterator[float]:
    """Return the start time of each turn from the recorded duration of commands, so that slow polling is not taken for
    a storm.
    """
    steps = [mapping(one) for one in as_list(record.get("trajectory"))]
    answers = sum(1 for one in messages if one.get("role") == "assistant" and not one.get("is_demo"))
    if len(steps) != answers or not any(count(step.get("execution_time")) for step in steps):
        return
    now = 0.0
    for step in steps:
        yield now
        took = step.get("execution_time")
        now += SPACING_S + (float(took) if isinstance(took, int | float) and took > 0 else 0.0)


def _model(record: Mapping[str, Any]) -> str:
    """Return the model from the recorded configuration."""
    settings = mapping(mapping(record.get("info")).get("config"))
    mini = mapping(settings.get("model")).get("model_name")
    replay = mapping(mapping(record.get("replay_config")).get("agent"))
    return text(mini or mapping(replay.get("model")).get("name"))
