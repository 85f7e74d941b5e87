"""Log lines, as JSON or text, and `LogEvents`, which turns events into a bounded number of lines.

A thread writes the lines from a bounded queue, so that a slow reader of the log never delays a request; lines that do
not fit are dropped and counted. The content of requests is never logged: events carry names, counts and digests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any, Final, Protocol, TextIO

from breakloop.model import events
from breakloop.model.events import Event, Publish

INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 200  # lines of events in one interval; the rest is counted
_QUEUE_MAX: Final = 4096
_FIELDS: Final = "fields"
_AT: Final = "happened_at"  # of an event, which may be logged later
_STEPS: Final = "steps"  # of an event's data: for the timeline of an incident, too long for the log

# The fields by which events are equal; equal events are logged once an interval. Other events are rare.
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    events.LOOP_DETECTED: ("policy", "kind", "fingerprint", "shadow", "action"),  # a block is no repeat of its warning
    events.BUDGET_THRESHOLD: ("key", "threshold_percent"),
    events.LIMIT_EXCEEDED: ("policy", "rule", "reason"),
    events.SHADOW_WOULD_REJECT: ("policy", "rule", "reason"),
    events.DESCRIPTOR_MISSING: ("policy", "rule", "descriptor"),
    events.STORE_DEGRADED: (),
    events.BODY_NOT_UNPACKED: (),
}
_LEVELS: Final = {
    events.LOOP_DETECTED: logging.WARNING,
    events.AGENT_KILLED: logging.WARNING,
    events.RUN_PAUSED: logging.WARNING,
    events.KILL_SWITCH_CHANGED: logging.WARNING,
    events.OVERRIDE_CHANGED: logging.WARNING,
    events.BUDGET_THRESHOLD: logging.WARNING,
    events.BREAKER_OPENED: logging.WARNING,
    events.MODEL_UNKNOWN: logging.WARNING,
    events.API_UNKNOWN: logging.WARNING,
    events.BUNDLE_REJECTED: logging.ERROR,
    events.BUNDLE_EXPIRED: logging.WARNING,
    events.STORE_DEGRADED: logging.WARNING,
    events.DESCRIPTOR_MISSING: logging.WARNING,
    events.BODY_NOT_UNPACKED: logging.WARNING,
    events.UPSTREAM_FAILED: logging.WARNING,
    events.WORKER_DIED: logging.WARNING,
}


class _Formatter(logging.Formatter):
    """The common part of both formats: time, level, fields, and the fields of every line (`always`)."""

    def __init__(self, always: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def parts(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the fields of the line, in order."""
        time = (
            datetime.fromtimestamp(getattr(record, _AT, record.created), tz=UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        found: dict[str, object] = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        found.update(getattr(record, _FIELDS, {}))
        found.update(self._always)
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return found


class JsonLines(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.parts(record), default=str)


class TextLines(_Formatter):
    """`time level message name=value ...`; values with spaces, quotes or control characters are JSON strings."""

    def format(self, record: logging.LogRecord) -> str:
        parts = self.parts(record)
        line = f"{parts.pop('time')} {parts.pop('level'):<7} {parts.pop('message')}"
        error = parts.pop("error", "")
        line += "".join(f" {name}={_plain(value)}" for name, value in parts.items())
        return f"{line}\n{error}" if error else line


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)


class _QueueHandler(QueueHandler):
    """Queues records for the writing thread; drops and counts those that do not fit."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> Any:
        """Leave the record unchanged: it stays in this process."""
        return record


def lines_dropped() -> int:
    return sum(one.dropped for one in logging.getLogger("breakloop").handlers if isinstance(one, _QueueHandler))


class Logging:
    """Writes the log of this process, from `start` to `stop`."""

    def __init__(
        self, stream: TextIO, level: str = "info", form: str = "auto", always: Mapping[str, object] | None = None
    ) -> None:
        as_text = form == "text" or (form == "auto" and stream.isatty())
        handler = logging.StreamHandler(stream)
        handler.setFormatter(TextLines(always) if as_text else JsonLines(always))
        self._queued = _QueueHandler(Queue(_QUEUE_MAX))
        self._listener = QueueListener(self._queued.queue, handler)
        self._logger = logging.getLogger("breakloop")
        self._level = level.upper()

    def start(self) -> None:
        self._logger.setLevel(self._level)
        self._logger.propagate = False
        self._logger.addHandler(self._queued)
        self._listener.start()

    def stop(self) -> None:
        """Write the remaining lines and stop the thread."""
        self._logger.removeHandler(self._queued)
        self._logger.propagate = True
        self._listener.stop()


def log(level: int, message: str, fields: Mapping[str, object] | None = None, at: float | None = None) -> None:
    extra: dict[str, object] = {_FIELDS: dict(fields or {})}
    if at is not None:
        extra[_AT] = at
    logging.getLogger("breakloop").log(level, message, extra=extra)


class EventSink(Protocol):
    def __call__(self, event: Event) -> None: ...

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Pass on what was held back. Called every second; with `everything` at the end."""
        ...


@dataclass(slots=True)
class _Repeat:
    since: float
    last: Event
    left_out: int = field(default=0)


class LogEvents:
    """An `EventSink` that logs equal events at most once an interval, with a count of those left out."""

    __slots__ = ("_overflow", "_overflow_since", "_repeats")

    def __init__(self) -> None:
        self._repeats: dict[tuple[object, ...], _Repeat] = {}
        self._overflow = 0
        self._overflow_since = 0.0

    def __call__(self, event: Event) -> None:
        names = _KEYS.get(event.name)
        if names is None:
            _write(event, 0)
            return
        key = (event.name, *[event.data.get(name) for name in names])
        repeat = self._repeats.get(key)
        # Events of several workers arrive out of order, and the clock may have been set back.
        if repeat is not None and abs(event.at - repeat.since) < INTERVAL_S:
            repeat.left_out += 1
            repeat.last = event
            return
        if repeat is None and len(self._repeats) >= _KEYS_MAX:
            self._overflow += 1
            self._overflow_since = self._overflow_since or event.at
            return
        _write(event, repeat.left_out if repeat else 0)
        self._repeats[key] = _Repeat(event.at, event)

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Log the events left out in intervals that are over."""
        for key, repeat in list(self._repeats.items()):
            if everything or abs(now - repeat.since) >= INTERVAL_S:
                del self._repeats[key]
                if repeat.left_out:
                    _write(repeat.last, repeat.left_out - 1)  # this line is one of them
        if self._overflow and (everything or now - self._overflow_since >= INTERVAL_S):
            log(logging.WARNING, "events.left_out", {"left_out": self._overflow})
            self._overflow, self._overflow_since = 0, 0.0


class LogAndBus:
    """An `EventSink` that passes events to the event bus, and to the log without their steps."""

    __slots__ = ("_bus", "_log")

    def __init__(self, log: EventSink, bus: Publish) -> None:
        self._log = log
        self._bus = bus

    def __call__(self, event: Event) -> None:
        self._bus(event)
        if _STEPS in event.data:
            event = replace(event, data={name: value for name, value in event.data.items() if name != _STEPS})
        self._log(event)

    def flush(self, now: float, *, everything: bool = False) -> None:
        self._log.flush(now, everything=everything)


def _write(event: Event, left_out: int) -> None:
    fields = dict(event.data)
    if event.project:
        fields["project"] = event.project
    if event.request_id:
        fields["request_id"] = event.request_id
    if left_out:
        fields["left_out"] = left_out
    log(_LEVELS.get(event.name, logging.INFO), event.name, fields, event.at)
