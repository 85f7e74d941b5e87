"""Histories as tests want them: new, on each database, with a clock that the test moves; and what to write into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.history.store import History, Retention, open_history
from breakloop.model.events import LOOP_DETECTED, Activity, AgentUse, Event, LoopUse
from breakloop.store.sqlite import SqliteTrouble

DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.e2e))


@dataclass
class Past:
    """One history, and what it was made of."""

    where: str
    clock: FakeClock
    troubles: list[SqliteTrouble] = field(default_factory=list)
    opened: list[History] = field(default_factory=list)

    def open(self, **retention: int) -> History:
        keep = Retention(**retention)
        made = open_history(self.where, retention=keep, clock=self.clock, report=self.troubles.append)
        self.opened.append(made)
        return made


@pytest.fixture
def sqlite_past(tmp_path: Path, clock: FakeClock) -> Iterator[Past]:
    """A history in a file that is not there yet."""
    yield from _closing(Past(str(tmp_path / "history.db"), clock))


@pytest.fixture(params=DATABASES)
def past(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Past]:
    """A history in each of the databases, empty."""
    if request.param == "sqlite":
        yield from _closing(Past(str(tmp_path / "history.db"), clock))
    else:
        yield from _closing(Past(request.getfixturevalue("postgres_server").url, clock))


@pytest.fixture
def history(past: Past) -> History:
    """An open one."""
    return past.open()


def _closing(made: Past) -> Iterator[Past]:
    yield made
    for one in made.opened:
        one.close()


def detected(at: float, agent: str = "bot", *, project: str = "default", request_id: str = "r-1", **data: Any) -> Event:
    """A `loop.detected` as the engine makes it."""
    known = {
        "caller": "key:1",
        "agent": agent,
        "model": "gpt",
        "fingerprint": "f1",
        "hit_count": 5,
        "cooldown_seconds": 30,
        "kind": "tail",
        "evidence": "the same 3 messages 5 times",
        "action": "reject",
        "policy": "builtin",
        "shadow": False,
    }
    return Event(LOOP_DETECTED, at, known | data, project, request_id)


def told(name: str, at: float, *, project: str = "default", **data: Any) -> Event:
    """Any other event."""
    return Event(name, at, data, project, "r-2")


def used(agent: str = "bot", *, project: str = "default", caller: str = "key:1", **use: Any) -> Activity:
    """What one agent did."""
    return Activity(agents={(project, caller, agent): AgentUse(**use)})


def looped(agent: str = "bot", fingerprint: str = "f1", *, caller: str = "key:1", **use: int) -> Activity:
    """What one loop did."""
    return Activity(loops={("default", caller, agent, fingerprint): LoopUse(**use)})


NOTHING: Callable[[], Activity] = Activity
