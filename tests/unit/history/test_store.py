"""One interface over both databases; where it is, and what a setting may say."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import HistoryError, SettingsError
from breakloop.history.store import History, Retention, open_history
from breakloop.model.events import Activity
from breakloop.model.records import EventFilter, IncidentFilter, TotalsRecord
from tests.histories import NOTHING, detected, told


def test_an_empty_history_answers_everything(history: History, clock: FakeClock) -> None:
    """The pages of a new installation (X-2)."""
    assert history.events(EventFilter()) == []
    assert history.events(EventFilter(agent="a", project="p", since=1.0, until=2.0)) == []
    assert history.incidents(IncidentFilter()) == []
    assert history.agents() == []
    assert history.totals(0.0) == TotalsRecord()
    assert [point.requests for point in history.curve(clock.now() - 120, clock.now(), 60)] == [0, 0]
    assert history.shadow(0.0) == []
    assert history.audit() == []
    assert history.purge(clock.now()) == 0
    history.write([], NOTHING(), clock.now())
    history.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [-(10**30), -1, 10**12, 10**30, math.inf, -math.inf, math.nan], ids=str)
def test_whatever_is_asked_is_answered(history: History, clock: FakeClock, number: Any) -> None:
    """An odd question is not a failure of the database (X-1)."""
    history.write([detected(clock.now()), told("odd", number)], NOTHING(), clock.now())
    odd = "a\0\ud800%_" * 300
    count = int(number) if math.isfinite(number) else 1
    assert len(history.events(EventFilter(since=number, until=number, before=count, after=count, most=count))) <= 1
    history.events(EventFilter(names=[odd], agent=odd, project=odd, until=number))
    history.events(EventFilter(incident=odd, names=[odd], agent=odd, project=odd, since=number))
    history.incidents(IncidentFilter(odd, odd, odd, odd, True, odd, number, odd, count))
    assert history.incident(odd) is None
    history.agents(odd, odd, count)
    assert history.agent(odd, odd) is None
    history.totals(number, odd)
    for since, until in ((number, math.inf), (0.0, number), (clock.now(), number)):
        history.curve(since, until, count, odd)
        history.curve(since, until, count, odd, odd)
        history.curve(since, until, 60, agent="bot")
    assert history.shadow(number, odd) == []
    history.add_audit(odd, odd, odd, odd, {odd: odd}, number)
    assert len(history.audit(count, count)) <= 1


@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
def test_files(tmp_path: Path, clock: FakeClock, prefix: str) -> None:
    history = open_history(f"{prefix}{tmp_path}/x.db", retention=Retention(), clock=clock, report=_unexpected)
    history.write([told("a", 1.0)], NOTHING(), 1.0)
    history.close()
    again = open_history(tmp_path / "x.db", retention=Retention(), clock=clock, report=_unexpected)
    assert [event.name for event in again.events(EventFilter())] == ["a"]
    again.close()


def _unexpected(trouble: object) -> None:
    raise AssertionError(trouble)


def test_other_databases_are_refused(clock: FakeClock) -> None:
    with pytest.raises(SettingsError, match="must be the path of a file, or postgresql://"):
        open_history("mysql://canary@host/db", retention=Retention(), clock=clock, report=_unexpected)


def test_a_batch_is_all_or_nothing(history: History, clock: FakeClock) -> None:
    """One transaction: an event without its sums would be counted wrongly for ever."""
    with pytest.raises(HistoryError):
        history.write([detected(1.0)], Activity(shadow={("p", "a", "r", "x"): 10**30}), 1.0)
    assert history.events(EventFilter()) == []
    assert history.incidents(IncidentFilter()) == []
    assert history.totals(0.0) == TotalsRecord()


@pytest.mark.slow
def test_traffic_does_not_load_it() -> None:
    """`import breakloop` and the gateway come without a database library."""
    code = (
        "import sys, breakloop, breakloop.gateway.server, breakloop.model.records; print('sqlalchemy' in sys.modules)"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
