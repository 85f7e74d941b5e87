"""How rules stand, over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.alerts import router as states
from breakloop.alerts.delivery import AlertDatabase
from breakloop.alerts.router import AlertRouter, payload
from breakloop.alerts.rules import AlertRule
from tests.alert_world import NOW, loop, released, rule

LOOPS = rule("loops", ("loop",), ("chat",), recovery=True)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[AlertDatabase]:
    made = AlertDatabase(tmp_path, lambda _trouble: None)
    yield made
    made.close()


def started(database: AlertDatabase, *rules: AlertRule) -> AlertRouter:
    router = AlertRouter(rules or (LOOPS,))
    states.load_states(database, router)
    return router


def told(database: AlertDatabase, router: AlertRouter, event: object) -> int:
    change = router.route([(event, payload(event))], NOW)  # type: ignore[arg-type,list-item]
    database.run(lambda file: states.save_states(file, change))
    router.accept(change)
    return len(change.notices)


def test_a_restart_tells_nothing_twice_and_forgets_nothing(database: AlertDatabase) -> None:
    """Neither the loop again, nor that its end is to be told (G-4)."""
    assert told(database, started(database), loop()) == 1
    again = started(database)
    assert again.last_at("loops") == NOW
    assert told(database, again, loop()) == 0
    assert told(database, started(database), released()) == 1
    assert told(database, started(database), released()) == 0


def test_rules_that_are_no_more(database: AlertDatabase) -> None:
    told(database, started(database), loop())
    assert started(database, rule("other", ("loop",), ("chat",))).states == {}
    assert database.run(lambda file: file.execute("SELECT count(*) FROM standing").fetchone()) == (0,)


def test_what_cannot_be_read_is_left_out(database: AlertDatabase) -> None:
    """Of another version, or damaged."""
    database.run(lambda file: file.execute("INSERT INTO standing VALUES ('loops', 'k', '{\"x\": 1}')"))
    database.run(lambda file: file.execute("INSERT INTO standing VALUES ('loops', 'k2', 'nonsense')"))
    assert started(database).states == {}


def test_a_new_file_gets_what_is_known(database: AlertDatabase, tmp_path: Path) -> None:
    router = started(database)
    told(database, router, loop())
    database.close()
    for path in tmp_path.iterdir():
        path.unlink()
    database.run(lambda _file: None)
    assert dict(started(database).states) == dict(router.states)
