"""A million events in SQLite: what each question, each page of the dashboard and the batch of a second read and write is
a small part of them. Counted are the instructions of SQLite, so that neither the machine nor other programs matter."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.history.agents import AGENT_FINE_S, COARSE_S, FINE_S
from breakloop.history.database import SqliteBackend
from breakloop.history.store import History
from breakloop.model.events import (
    LIMIT_EXCEEDED,
    LOOP_DETECTED,
    SHADOW_WOULD_REJECT,
    STORE_DEGRADED,
    Activity,
    AgentUse,
    LoopUse,
)
from breakloop.model.records import EventFilter, IncidentFilter
from tests.admin_client import browser
from tests.admin_world import full as a_company
from tests.histories import Past, detected, told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVENTS = 1_000_000
INCIDENTS = 40_000
AGENTS = 10_000
DAYS = 30
STEP = 1000  # instructions of SQLite's virtual machine between two calls of its progress handler
# In thousands of instructions. Reading all events would take more than 3,000.
ROWS_STEPS = 20
SUMS_STEPS = 400
WRITE_STEPS = 1000
DATA = json.dumps({"policy": "builtin", "rule": "tokens per minute", "reason": "rate_limited", "text": "x" * 60})


class Work:
    """Counts what SQLite does, in thousands of instructions: unlike time, the same on every machine."""

    def __init__(self) -> None:
        self._count = 0

    def step(self) -> int:
        self._count += 1
        return 0

    def of(self, work: Callable[[], object]) -> int:
        before = self._count
        work()
        return self._count - before


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    counted = Work()
    connect = SqliteBackend._connect

    def counting(backend: SqliteBackend) -> sqlite3.Connection:
        made = connect(backend)
        made.set_progress_handler(counted.step, STEP)
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqliteBackend, "_connect", counting)
        yield counted


def events(now: float) -> Iterator[tuple[object, ...]]:
    """Most of one name and project, some of each other; few of them with an agent, an incident, in another project."""
    for index in range(EVENTS):
        name = LIMIT_EXCEEDED if index % 20 else LOOP_DETECTED if index % 40 else SHADOW_WOULD_REJECT
        agent = f"agent-{index % AGENTS}" if index % 3 == 0 else ""
        project = "default" if index % 50_000 else "rare"
        at = now - DAYS * 86_400 * (EVENTS - index) / EVENTS
        yield STORE_DEGRADED if index == 7 else name, at, project, agent, f"r-{index}", f"i{index // 25:014}", DATA


def incidents(now: float) -> Iterator[tuple[object, ...]]:
    for index in range(INCIDENTS):
        at = now - DAYS * 86_400 * (INCIDENTS - index) / INCIDENTS
        kind, project = ("tail", "default") if index % 9_999 else ("rare", "rare")
        ended = None if index > INCIDENTS - 200 else at + 600
        known = ("stopped" if ended is None else "cleared", project, f"agent-{index % AGENTS}", "key:1", "gpt", kind)
        described = ("f", f"p{index % 7}", "reject", "evidence " * 5, index % 10 == 0)
        yield f"i{index:014}", *known, *described, at, at, ended, ended or at + 600, 0.0, *[1] * 9, 0.0, 0


def points(now: float) -> Iterator[tuple[object, ...]]:
    for span_s, kept_s in ((FINE_S, 48 * 3600), (COARSE_S, DAYS * 86_400)):
        for at in range(int(now - kept_s) // span_s * span_s, int(now), span_s):
            for project in ("default", "rare"):
                yield span_s, at, project, *[1] * 8


def agent_points(now: float) -> Iterator[tuple[object, ...]]:
    for span_s, kept_s in ((AGENT_FINE_S, 48 * 3600), (COARSE_S, DAYS * 86_400)):
        for at in range(int(now - kept_s) // span_s * span_s, int(now), span_s):
            for agent in range(100):
                yield span_s, "default", f"agent-{agent}", at, *[1] * 8


def fill(where: str, now: float) -> None:
    """Rows as the store writes them; indexes are made afterwards, which is quicker."""
    file = sqlite3.connect(where)
    file.execute("PRAGMA synchronous = OFF")
    indexes = file.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    for name, _ in indexes:
        file.execute(f"DROP INDEX {name}")
    columns = "name, at, project, agent, request_id, incident, data"
    file.executemany(f"INSERT INTO breakloop_events ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", events(now))
    agents = ((f"agent-{n}", now - n, now - n) for n in range(AGENTS))
    numbers = "1, 1, 1, 1, 1, 1, 1, 1, 'gpt', '{}'"
    file.executemany(f"INSERT INTO breakloop_agents VALUES ('default', ?, ?, ?, {numbers})", agents)
    callers = ((f"agent-{n}", f"key:{caller}", now) for n in range(AGENTS) for caller in range(5))
    file.executemany("INSERT INTO breakloop_callers VALUES ('default', ?, ?, ?)", callers)
    for table, rows, width in (
        ("incidents", incidents, 28),
        ("points", points, 11),
        ("agent_points", agent_points, 12),
    ):
        marks = ", ".join("?" * width)
        file.executemany(f"INSERT INTO breakloop_{table} VALUES ({marks})", rows(now))
    audit = ((now, "w", "operator", "a", "t", "{}") for _ in range(20_000))
    file.executemany(
        "INSERT INTO breakloop_audit (at, who, role, action, target, detail) VALUES (?, ?, ?, ?, ?, ?)", audit
    )
    for _, sql in indexes:
        file.execute(sql)
    file.commit()
    file.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, work: Work) -> Iterator[Past]:
    clock = FakeClock()
    past = Past(str(tmp_path_factory.mktemp("million") / "history.db"), clock)
    past.open().audit()
    fill(past.where, clock.now())
    yield past
    for one in past.opened:
        one.close()


def questions(history: History, now: float) -> dict[str, Callable[[], object]]:
    filters = {
        "newest": EventFilter(),
        "deep": EventFilter(before=10_000),
        "onwards": EventFilter(after=5),
        "a rare name": EventFilter(names=[STORE_DEGRADED]),
        "common names": EventFilter(names=[LIMIT_EXCEEDED, LOOP_DETECTED, SHADOW_WOULD_REJECT]),
        "a name and an agent": EventFilter(names=[LOOP_DETECTED], agent="agent-9"),
        "an agent": EventFilter(agent="agent-3"),
        "nobody": EventFilter(agent="nobody"),
        "a rare project": EventFilter(project="rare"),
        "project and name": EventFilter(project="rare", names=[LIMIT_EXCEEDED]),
        "no such project": EventFilter(project="nothing"),
        "an incident": EventFilter(incident=f"i{20_000:014}"),
        "an incident's name": EventFilter(incident=f"i{20_000:014}", names=[LOOP_DETECTED], agent="agent-3"),
        "a day long ago": EventFilter(since=now - 20 * 86_400, until=now - 19 * 86_400),
        "a name long ago": EventFilter(names=[STORE_DEGRADED], since=now - 86_400),
        "before everything": EventFilter(until=now - 40 * 86_400),
    }
    found: dict[str, Callable[[], object]] = {
        f"events: {name}": partial(history.events, wanted) for name, wanted in filters.items()
    }
    chosen = {
        "newest": IncidentFilter(),
        "deep": IncidentFilter(before=now - 29 * 86_400),
        "open": IncidentFilter(state="stopped"),
        "a rare kind": IncidentFilter(kind="rare"),
        "a rare project": IncidentFilter(project="rare"),
        "an agent": IncidentFilter(agent="agent-5"),
        "policy and shadow": IncidentFilter(policy="p3", shadow=True),
        "nothing": IncidentFilter(kind="tail", policy="nothing", shadow=True),
    }
    found |= {f"incidents: {name}": partial(history.incidents, wanted) for name, wanted in chosen.items()}
    return found | {
        "incident": lambda: history.incident(f"i{100:014}"),
        "agents": history.agents,
        "agents: found": lambda: history.agents(find="9999"),
        "agents: not found": lambda: history.agents("default", "nobody"),
        "agent": lambda: history.agent("default", "agent-7"),
        "totals: a day": lambda: history.totals(now - 86_400),
        "totals: all": lambda: history.totals(0.0, "default"),
        "curve: minutes": lambda: history.curve(now - 86_400, math.inf, 60),
        "curve: two days": lambda: history.curve(now - 47 * 3600, math.inf, 300, "default"),
        "curve: a month": lambda: history.curve(now - 30 * 86_400, math.inf, 3600),
        "curve: an agent": lambda: history.curve(now - 86_400, math.inf, 300, "default", "agent-3"),
        "curve: an agent's month": lambda: history.curve(now - 30 * 86_400, math.inf, 86_400, agent="agent-3"),
        "shadow": lambda: history.shadow(0.0),
        "audit": lambda: history.audit(before=10_000),
    }


def test_no_question_reads_much(full: Past, work: Work) -> None:
    """Each question reads a small part of the file: the pages stay quick (X-2)."""
    history, now = full.open(), full.clock.now()
    steps = {name: work.of(ask) for name, ask in questions(history, now).items()}
    assert len(steps) > 30
    assert sum(steps.values()) > 0
    rows = {name: count for name, count in steps.items() if name.startswith(("events", "incident", "audit"))}
    assert {name: count for name, count in rows.items() if count > ROWS_STEPS} == {}
    assert {name: count for name, count in steps.items() if count > SUMS_STEPS} == {}
    assert len(history.events(EventFilter(agent="agent-3"))) == 34
    assert len(history.events(EventFilter(project="rare"))) == 20


PAGES = ("/", "/incidents", "/incidents?state=stopped", f"/incidents/i{20_000:014}", "/agents", "/agents?find=99", "/agent?name=agent-3", "/policies", "/limits", "/events", "/events?agent=agent-3", "/events?name=store.degraded", "/alerts", "/settings")  # fmt: skip


def test_no_page_reads_much(full: Past, work: Work) -> None:
    """Whole pages, read and rendered, as a browser gets them (X-2)."""
    world = a_company()
    world.services.history = full.open()
    world.clock.advance(full.clock.now() - world.clock.now())
    person, _ = browser(world)
    steps = {}
    for page in PAGES:
        assert person.get(page).status_code == 200, page
        steps[page] = work.of(partial(person.get, page))
    assert {page: count for page, count in steps.items() if count > SUMS_STEPS} == {}
    assert "agent-3" in person.get("/agent?name=agent-3").text
    assert person.get("/events").text.count("agent-") > 10


def test_a_batch_of_writes_is_little_work(full: Past, work: Work) -> None:
    """A thousand events of a thousand agents, with their sums (G-2)."""
    history, now = full.open(), full.clock.now()

    def write() -> None:
        activity = Activity(
            agents={("default", f"key:{n}", f"agent-{n}"): AgentUse(3, 1, 0, 9, 9, 9, now, "m") for n in range(1000)},
            loops={("default", "key:1", f"agent-{n}", "f"): LoopUse(1, 1, 1, 1, 1, 1) for n in range(50)},
        )
        told_of = [told(LIMIT_EXCEEDED, now, agent=f"agent-{n}", policy="p", rule="r") for n in range(950)]
        history.write([*told_of, *(detected(now, f"agent-{n}") for n in range(50))], activity, now)

    write()
    assert work.of(write) < WRITE_STEPS


def test_it_stays_within_its_retention(full: Past) -> None:
    """What is beyond goes in bounded steps, and the file becomes smaller (G-2)."""
    history, now = full.open(days=DAYS, events=900_000), full.clock.now()
    before = Path(full.where).stat().st_size
    first = history.purge(now)
    assert 50_000 < first <= 200_000
    while history.purge(now):
        pass
    newest, oldest = history.events(EventFilter(most=1))[0].id, history.events(EventFilter(after=1, most=1))[0].id
    assert newest - oldest == 899_999
    assert Path(full.where).stat().st_size < before * 0.95
