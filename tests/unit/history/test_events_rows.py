"""Events: kept as they are, found by every filter, page by page; and no filter reads more than it shows."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

import pytest
from sqlalchemy import event as sql_event

from breakloop.clock import FakeClock
from breakloop.history import events as event_rows
from breakloop.history.store import History
from breakloop.model.events import AGENT_KILLED, AGENT_RELEASED, LIMIT_EXCEEDED, LOOP_DETECTED, STORE_DEGRADED, Event
from breakloop.model.records import EventFilter, EventRecord
from tests.each import each
from tests.histories import NOTHING, Past, detected, told


def write(history: History, clock: FakeClock, *events: Event) -> None:
    history.write(events, NOTHING(), clock.now())


def test_an_event_is_kept_as_it_is(history: History, clock: FakeClock) -> None:
    """Its data is stored as given, and nothing is added to it (G-2, Y-1)."""
    data = {"agent": "bot", "nested": {"list": [1, 2.5, None, True]}, "text": "ä\0\ud800\N{SNOWMAN}", "big": 2**80}
    write(history, clock, Event("some.event", clock.now(), data, "p", "r-9"))
    assert history.events(EventFilter()) == [
        EventRecord(1, "some.event", clock.now(), "p", "bot", "r-9", "", data),
    ]


def test_odd_names_are_no_reason_to_lose_a_batch(history: History, clock: FakeClock) -> None:
    write(history, clock, Event("n\0" * 3000, clock.now(), {"agent": "\ud800" * 3000}, "p\0", "\0"), told("b", 1.0))
    first, second = history.events(EventFilter(after=0, since=0.0))[::-1]
    assert (first.project, first.request_id, second.name) == ("p�", "�", "b")
    assert len(first.name) == len(first.agent) == 400


def fill(history: History, clock: FakeClock) -> list[EventRecord]:
    """60 events of 4 names, 3 agents (and none), 2 projects, a second apart; return them as they are kept."""
    names = (LIMIT_EXCEEDED, LOOP_DETECTED, STORE_DEGRADED, "x")
    events = []
    for index in range(60):
        agent = {"agent": f"a{index % 3}"} if index % 5 else {}
        project = "p" if index % 7 else "q"
        events.append(Event(names[index % 4], clock.now() + index, agent | {"n": index}, project))
    write(history, clock, *events[:30])
    write(history, clock, *events[30:])
    kept = history.events(EventFilter(most=1000))
    assert [record.data["n"] for record in kept] == list(range(59, -1, -1))
    return kept


FILTERS: list[dict[str, Any]] = [
    {},
    {"names": [LIMIT_EXCEEDED]},
    {"names": [LIMIT_EXCEEDED, "x", "x", "nothing"]},
    {"agent": "a1"},
    {"agent": "a1", "names": ["x", STORE_DEGRADED]},
    {"project": "q"},
    {"project": "q", "names": ["x"]},
    {"project": "p", "agent": "a2"},
    {"project": "p", "agent": "a2", "names": [LOOP_DETECTED]},
    {"agent": "nobody"},
]


TIMES: list[dict[str, Any]] = [{}, {"since": 20.0}, {"until": 40.0}, {"since": 20.0, "until": 25.5}]


def test_filters(history: History, clock: FakeClock) -> None:
    """Every combination gives what looking at each event would, newest first, page by page, and onwards (X-1)."""
    kept = fill(history, clock)

    @each("chosen", FILTERS)
    @each("times", TIMES)
    def check(chosen: dict[str, Any], times: dict[str, Any]) -> None:
        span = {name: clock.now() + value for name, value in times.items()}
        names = chosen.get("names")
        wanted = [
            record.id
            for record in kept
            if (names is None or record.name in names)
            and record.agent == chosen.get("agent", record.agent)
            and record.project == chosen.get("project", record.project)
            and span.get("since", 0.0) <= record.at <= span.get("until", math.inf)
        ]
        assert [record.id for record in history.events(EventFilter(**chosen, **span, most=1000))] == wanted
        found: list[int] = []
        while page := history.events(EventFilter(**chosen, **span, before=found[-1] if found else 0, most=4)):
            found += [record.id for record in page]
        assert found == wanted
        after = history.events(EventFilter(**chosen, **span, after=kept[-10].id, most=5))
        assert [record.id for record in after] == [one for one in wanted[::-1] if one > kept[-10].id][:5]

    check()


def test_events_of_an_incident(history: History, clock: FakeClock) -> None:
    now = clock.now()
    kill = told(AGENT_KILLED, now + 1, agent="bot", caller="key:1", expires_at=None)
    release = told(AGENT_RELEASED, now + 3, agent="bot", caller="key:1")
    write(
        history, clock, detected(now), kill, told(LIMIT_EXCEEDED, now + 2, agent="bot"), release, detected(now + 4, "b")
    )
    of = history.events(EventFilter())[-1].incident
    assert [one.name for one in history.events(EventFilter(incident=of))] == [
        AGENT_RELEASED,
        AGENT_KILLED,
        LOOP_DETECTED,
    ]
    assert [one.name for one in history.events(EventFilter(incident=of, names=[AGENT_KILLED]))] == [AGENT_KILLED]
    assert history.events(EventFilter(incident=of, agent="b")) == []
    assert history.events(EventFilter(incident=of, project="b")) == []
    assert len(history.events(EventFilter(incident=of, agent="bot", project="default", until=now + 2))) == 2


def test_an_event_that_came_late_is_found_by_its_time(history: History, clock: FakeClock) -> None:
    now = clock.now()
    write(history, clock, told("a", now), told("b", now + 200), told("late", now + 100), told("c", now + 201))
    assert [one.name for one in history.events(EventFilter(since=now + 50, until=now + 150))] == ["late"]
    assert [one.name for one in history.events(EventFilter(since=now + 90))] == ["c", "late", "b"]


def test_ids_never_come_back(past: Past) -> None:
    """A reader that goes on behind the last one it has misses nothing, also after everything was dropped."""
    history = past.open(days=1)
    write(history, past.clock, told("a", past.clock.now()))
    past.clock.advance(3 * 86_400)
    assert history.purge(past.clock.now()) > 0
    write(history, past.clock, told("b", past.clock.now()))
    assert [one.name for one in history.events(EventFilter(after=1))] == ["b"]


def test_pages_are_bounded(history: History, clock: FakeClock) -> None:
    write(history, clock, *(told("a", clock.now()) for _ in range(event_rows.PAGE_MAX + 5)))
    assert len(history.events(EventFilter(most=10**9))) == event_rows.PAGE_MAX
    assert len(history.events(EventFilter(most=-1))) == 1


@pytest.mark.parametrize(
    "chosen", [*FILTERS, {"incident": "i"}, {"incident": "i", "agent": "a", "names": ["x"]}], ids=str
)
@pytest.mark.parametrize("times", [{}, {"since": 20.0, "until": 25.5}], ids=str)
def test_every_walk_follows_an_index(sqlite_past: Past, chosen: dict[str, Any], times: dict[str, Any]) -> None:
    """No filter sorts or reads the whole table, whatever is in it."""
    history = sqlite_past.open()
    fill(history, sqlite_past.clock)
    assert isinstance(history, History)
    asked: list[tuple[str, Any]] = []
    with history._database.reading() as connection:
        sql_event.listen(
            connection, "before_cursor_execute", lambda _c, _r, sql, values, *_: asked.append((sql, values))
        )
        span = {name: sqlite_past.clock.now() + value for name, value in times.items()}
        event_rows.find_events(connection, EventFilter(**chosen, **span))
    file = sqlite3.connect(sqlite_past.where)
    plans = {
        sql: " / ".join(row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {sql}", values))
        for sql, values in asked
        if sql.startswith("SELECT")
    }
    file.close()
    assert plans
    (last,) = {plan for sql, plan in plans.items() if "ORDER BY breakloop_events.id" in sql} or {""}
    index = next((name for name in ("incident", "agent", "project") if chosen.get(name)), "name" if chosen else "")
    assert (f"INDEX breakloop_events_{index} (" if index else "breakloop_events") in last
    for sql, plan in plans.items():
        whole = "SCAN" in plan and (chosen or times)
        assert "TEMP B-TREE" not in plan, (sql, plan)
        assert not whole, (sql, plan)
