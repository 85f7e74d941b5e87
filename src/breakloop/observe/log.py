"""Log lines, as JSON or text, and `LogEvents`, which turns events into a bounded number of them.

Lines leave through a bounded queue and a thread, so a slow reader of the log never holds up a request; what finds no
room is counted. Nothing of a request's content is ever logged (SPEC Y-1): events carry names, counts and digests.
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
_STEPS: Final = "steps"  # of an event's data: for the timeline of an incident, too long for the log

# What makes two events the same thing happening again. Others are told each time: they are rare.
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    events.LOOP_DETECTED: ("policy", "kind", "fingerprint", "shadow"),
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
    events.KILL_SWITCH_CHANGED: logging.WARNING,
    events.OVERRIDE_CHANGED: logging.WARNING,
    events.BUDGET_THRESHOLD: logging.WARNING,
    events.BREAKER_OPENED: logging.WARNING,
    events.MODEL_UNKNOWN: logging.WARNING,
    events.BUNDLE_REJECTED: logging.ERROR,
    events.BUNDLE_EXPIRED: logging.WARNING,
    events.STORE_DEGRADED: logging.WARNING,
    events.DESCRIPTOR_MISSING: logging.WARNING,
    events.BODY_NOT_UNPACKED: logging.WARNING,
    events.UPSTREAM_FAILED: logging.WARNING,
    events.WORKER_DIED: logging.WARNING,
}


class _Formatter(logging.Formatter):
    """What both forms share: time, level and fields of a record, and what stands in every line."""

    def __init__(self, always: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def parts(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the line as names and values, in their order."""
        time = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found: dict[str, object] = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        found.update(getattr(record, _FIELDS, {}))
        found.update(self._always)
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return found


class JsonLines(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(self.parts(record), default=str)


class TextLines(_Formatter):
    """`time level message name=value ...`; whatever could break a line is written as JSON text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        parts = self.parts(record)
        line = f"{parts.pop('time')} {parts.pop('level'):<7} {parts.pop('message')}"
        error = parts.pop("error", "")
        line += "".join(f" {name}={_plain(value)}" for name, value in parts.items())
        return f"{line}\n{error}" if error else line


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)


class _Queued(QueueHandler):
    """Hands records to the writing thread; drops and counts what does not fit."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a record into the queue without waiting."""
        try:
            self.queue.put_nowait(record)
        except Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> Any:
        """Leave the record as it is: it stays in this process."""
        return record


def lines_dropped() -> int:
    """Return how many lines of this process found no room."""
    return sum(one.dropped for one in logging.getLogger("breakloop").handlers if isinstance(one, _Queued))


class Logging:
    """The log of this process, from `start` to `stop`."""

    def __init__(
        self,
        stream: TextIO,
        level: str = "info",
        form: str = "auto",
        always: Mapping[str, object] | None = None,
    ) -> None:
        as_text = form == "text" or (form == "auto" and stream.isatty())
        handler = logging.StreamHandler(stream)
        handler.setFormatter(TextLines(always) if as_text else JsonLines(always))
        self._queued = _Queued(Queue(_QUEUE_MAX))
        self._listener = QueueListener(self._queued.queue, handler)
        self._logger = logging.getLogger("breakloop")
        self._level = level.upper()

    @property
    def dropped(self) -> int:
        """How many lines found no room."""
        return self._queued.dropped

    def start(self) -> None:
        """Begin to write."""
        self._logger.setLevel(self._level)
        self._logger.propagate = False
        self._logger.addHandler(self._queued)
        self._listener.start()

    def stop(self) -> None:
        """Write what is left and end."""
        self._logger.removeHandler(self._queued)
        self._logger.propagate = True
        self._listener.stop()


def log(level: int, message: str, fields: Mapping[str, object] | None = None) -> None:
    """Write a line with fields of its own."""
    logging.getLogger("breakloop").log(level, message, extra={_FIELDS: dict(fields or {})})


class EventSink(Protocol):
    """Whoever is told of events."""

    def __call__(self, event: Event) -> None:
        """Take note of one."""
        ...

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Pass on what was held back; called every second, and at the end."""
        ...


@dataclass(slots=True)
class _Repeat:
    since: float
    last: Event
    left_out: int = field(default=0)


class LogEvents:
    """A `Publish` that logs: each thing at most once an interval, with a count of what was left out."""

    __slots__ = ("_crowded", "_crowded_since", "_repeats")

    def __init__(self) -> None:
        self._repeats: dict[tuple[object, ...], _Repeat] = {}
        self._crowded = 0
        self._crowded_since = 0.0

    def __call__(self, event: Event) -> None:
        """Log an event, or count it."""
        names = _KEYS.get(event.name)
        if names is None:
            _write(event, 0)
            return
        key = (event.name, *[event.data.get(name) for name in names])
        repeat = self._repeats.get(key)
        if repeat is not None and event.at - repeat.since < INTERVAL_S:
            repeat.left_out += 1
            repeat.last = event
            return
        if repeat is None and len(self._repeats) >= _KEYS_MAX:
            self._crowded += 1
            self._crowded_since = self._crowded_since or event.at
            return
        _write(event, repeat.left_out if repeat else 0)
        self._repeats[key] = _Repeat(event.at, event)

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Tell what was left out in intervals that are over; call it every second or so, and at the end."""
        for key, repeat in list(self._repeats.items()):
            if everything or now - repeat.since >= INTERVAL_S:
                del self._repeats[key]
                if repeat.left_out:
                    _write(repeat.last, repeat.left_out - 1)  # this line stands for one of them
        if self._crowded and (everything or now - self._crowded_since >= INTERVAL_S):
            log(logging.WARNING, "events.left_out", {"left_out": self._crowded})
            self._crowded, self._crowded_since = 0, 0.0


class LogAndBus:
    """An `EventSink` that passes events to the event bus, and to the log without their steps."""

    __slots__ = ("_bus", "_log")

    def __init__(self, log: EventSink, bus: Publish) -> None:
        self._log = log
        self._bus = bus

    def __call__(self, event: Event) -> None:
        """Publish an event."""
        self._bus(event)
        if _STEPS in event.data:
            event = replace(event, data={name: value for name, value in event.data.items() if name != _STEPS})
        self._log(event)

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Log what was held back."""
        self._log.flush(now, everything=everything)


def _write(event: Event, left_out: int) -> None:
    fields = dict(event.data)
    if event.project:
        fields["project"] = event.project
    if event.request_id:
        fields["request_id"] = event.request_id
    if left_out:
        fields["left_out"] = left_out
    log(_LEVELS.get(event.name, logging.INFO), event.name, fields)
