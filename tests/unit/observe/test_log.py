"""Log lines and the events that become some."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from breakloop.model.events import BUNDLE_REJECTED, LIMIT_EXCEEDED, LOOP_DETECTED, STORE_DEGRADED, Event
from breakloop.observe.log import INTERVAL_S, JsonLines, LogAndBus, LogEvents, Logging, TextLines, lines_dropped, log

LOOP = {"policy": "builtin", "kind": "tail", "fingerprint": "f1", "hit_count": 6, "shadow": False}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Sink:
    """A log that can be read back."""

    def __init__(self, form: str = "json", level: str = "info", stream: io.StringIO | None = None) -> None:
        self.stream = stream or io.StringIO()
        self.logging = Logging(self.stream, level, form)

    def text(self) -> str:
        self.logging.stop()
        self.logging.start()
        return self.stream.getvalue()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    made.logging.start()
    yield made
    made.logging.stop()


def event(name: str, at: float, **data: object) -> Event:
    return Event(name, at, data, request_id="r-1")


def test_json_line_has_time_level_message_and_fields(sink: Sink) -> None:
    """One JSON object a line, whatever is in it (G-5)."""
    log(logging.WARNING, "some\nthing", {"count": 3, "odd": object})
    (line,) = sink.lines()
    assert line["time"].endswith("Z")
    assert (line["level"], line["message"], line["count"]) == ("warning", "some\nthing", 3)


def test_text_lines_cannot_be_forged() -> None:
    """A value with spaces, quotes or line ends stays one value on one line (G-5)."""
    record = logging.LogRecord("breakloop", logging.INFO, "", 0, "it %s", ("happens",), None)
    record.fields = {"a": "plain", "b": 'two words"\nlevel=error', "c": 5, "d": "", "e": True}
    line = TextLines().format(record)
    assert line.endswith(' info    it happens a=plain b="two words\\"\\nlevel=error" c=5 d="" e=true')
    assert "\n" not in line


def test_errors_come_with_their_trace() -> None:
    """Where it happened is in the line, in both forms (G-5)."""
    error = ZeroDivisionError("oh")
    record = logging.LogRecord("breakloop", logging.ERROR, "", 0, "failed", (), (type(error), error, None))
    assert "ZeroDivisionError: oh" in json.loads(JsonLines().format(record))["error"]
    assert TextLines().format(record).endswith("failed\nZeroDivisionError: oh")


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [("auto", Terminal(), False), ("auto", io.StringIO(), True), ("json", Terminal(), True), ("text", None, False)],
)
def test_auto_is_text_on_a_terminal(form: str, stream: io.StringIO | None, is_json: bool) -> None:
    """`auto` suits whoever reads (T-1)."""
    sink = Sink(form, stream=stream)
    sink.logging.start()
    log(logging.INFO, "hello")
    sink.logging.stop()
    assert sink.stream.getvalue().startswith("{") is is_json


def test_level_and_end(sink: Sink) -> None:
    """Below the level nothing is written, and after the end nothing at all (T-1)."""
    log(logging.DEBUG, "too little")
    sink.logging.stop()
    logging.getLogger("breakloop").handlers.clear()
    assert sink.stream.getvalue() == ""
    sink.logging.start()


def test_full_queue_drops_and_counts(sink: Sink) -> None:
    """A reader that does not read never holds up who writes."""
    sink.logging._listener.stop()
    for _ in range(5000):
        log(logging.INFO, "x")
    assert lines_dropped() == 5000 - 4096
    sink.logging._listener.start()


def test_repeats_are_told_once_an_interval(sink: Sink) -> None:
    """The same thing again is counted; the count is told when the interval is over (E-3, LD-7)."""
    events = LogEvents()
    for number in range(5):
        events(event(LOOP_DETECTED, 100.0 + number, **LOOP))
    events.flush(100.0 + INTERVAL_S - 1)
    assert [line.get("left_out") for line in sink.lines()] == [None]
    events(event(LOOP_DETECTED, 100.0 + INTERVAL_S, **LOOP))
    lines = sink.lines()
    assert [(line["message"], line["level"], line.get("left_out")) for line in lines] == [
        ("loop.detected", "warning", None),
        ("loop.detected", "warning", 4),
    ]
    assert (lines[0]["fingerprint"], lines[0]["request_id"]) == ("f1", "r-1")


def test_a_block_is_told_at_once_after_its_warning(sink: Sink) -> None:
    """It is another event than the warning about the same loop; what was held back has the time when it happened (E-3)."""
    events = LogEvents()
    for number, action in enumerate(("warn", "reject", "reject")):
        events(event(LOOP_DETECTED, 100.0 + number, **{**LOOP, "action": action}))
    events.flush(100.0 + 2 * INTERVAL_S)
    assert [(line["action"], line["time"]) for line in sink.lines()] == [
        ("warn", "1970-01-01T00:01:40.000Z"),
        ("reject", "1970-01-01T00:01:41.000Z"),
        ("reject", "1970-01-01T00:01:42.000Z"),
    ]


def test_repeats_of_several_workers_are_told_once(sink: Sink) -> None:
    """Their events arrive out of order; only a clock that was set back starts a new interval (E-3, S-5)."""
    events = LogEvents()
    for at in (100.03, 100.0, 100.01):
        events(event(LOOP_DETECTED, at, **LOOP))
    events.flush(100.0)
    assert [line.get("left_out") for line in sink.lines()] == [None]
    events(event(LOOP_DETECTED, 100.0 - INTERVAL_S, **LOOP))
    assert [line.get("left_out") for line in sink.lines()] == [None, 2]


def test_what_was_left_out_is_told_without_another_event(sink: Sink) -> None:
    """A burst that ends is still accounted for, and its memory is freed (E-3)."""
    events = LogEvents()
    for _ in range(4):
        events(event(LIMIT_EXCEEDED, 100.0, policy="a", rule="r", reason="token_bucket_exceeded"))
    events.flush(100.0 + INTERVAL_S)
    events.flush(200.0)
    assert [line.get("left_out") for line in sink.lines()] == [None, 2], "two lines and two left out are four"
    assert not events._repeats


def test_different_things_are_told_apart(sink: Sink) -> None:
    """Per key; and what is rare is told each time (E-3)."""
    events = LogEvents()
    events(event(LIMIT_EXCEEDED, 1.0, policy="a", rule="r", reason="x"))
    events(event(LIMIT_EXCEEDED, 1.0, policy="b", rule="r", reason="x"))
    events(event(STORE_DEGRADED, 1.0, error="one"))
    events(event(STORE_DEGRADED, 1.0, error="two"))
    events(event(BUNDLE_REJECTED, 1.0, problem="p"))
    events(event(BUNDLE_REJECTED, 1.0, problem="p"))
    assert [line["message"] for line in sink.lines()] == [
        "limit.exceeded",
        "limit.exceeded",
        "store.degraded",
        "bundle.rejected",
        "bundle.rejected",
    ]


def test_a_storm_of_different_things_is_bounded(sink: Sink) -> None:
    """However many loops there are, lines and memory are bounded, and the rest is counted (Y-2)."""
    events = LogEvents()
    for number in range(1000):
        events(event(LOOP_DETECTED, 100.0, **{**LOOP, "fingerprint": str(number)}))
    assert len(events._repeats) == 200
    events.flush(100.0, everything=True)
    lines = sink.lines()
    assert len(lines) == 201
    assert (lines[-1]["message"], lines[-1]["left_out"]) == ("events.left_out", 800)


@pytest.mark.parametrize("form", ["json", "text"])
def test_some_fields_stand_in_every_line(form: str) -> None:
    """Which worker it was (S-5)."""
    stream = io.StringIO()
    made = Logging(stream, "info", form, {"worker": 2})
    made.start()
    log(logging.INFO, "stopped", {"cut_off": 1})
    log(logging.INFO, "other")
    made.stop()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(('"worker": 2' if form == "json" else "worker=2") in line for line in lines)


def test_the_log_is_told_in_short() -> None:
    """Pictures are for the history; the log gets names and numbers (Y-1)."""
    logged: list[Any] = []
    bus: list[Any] = []

    class Keeping(list[Any]):
        def __call__(self, event: Event) -> None:
            self.append(event)

        def flush(self, now: float, *, everything: bool = False) -> None:
            logged.append((now, everything))

    log, heard = Keeping(), Keeping()
    told = LogAndBus(log, heard)
    told(Event("loop.detected", 1.0, {"kind": "tail", "steps": [1, 2]}))
    told.flush(5.0, everything=True)
    assert log[0].data == {"kind": "tail"}
    assert heard[0].data["steps"] == [1, 2]
    assert (logged, bus) == ([(5.0, True)], [])


def test_a_clock_that_is_set_back_silences_nothing(sink: Sink) -> None:
    """The interval of a repeat ends, though it began in the future (S-2)."""
    events = LogEvents()
    for at in (5000.0, 5001.0, 1000.0):
        events(event(LOOP_DETECTED, at, **LOOP))
    events(event(LOOP_DETECTED, 1001.0, **LOOP))
    events.flush(500.0)
    assert [line.get("left_out", 0) for line in sink.lines()] == [0, 1, 0]
