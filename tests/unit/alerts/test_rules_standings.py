"""How rules stand, over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.alerts import rules as standings
from breakloop.alerts.base import Database
from breakloop.alerts.rules import Router, Rule, payload
from tests.alert_world import NOW, loop, released

LOOPS = Rule("loops", ("loop",), ("chat",), recovery=True)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, lambda _trouble: None)
    yield made
    made.close()


def started(database: Database, *rules: Rule) -> Router:
    router = Router(rules or (LOOPS,))
    standings.load(database, router)
    return router


def told(database: Database, router: Router, event: object) -> int:
    change = router.route([(event, payload(event))], NOW)  # type: ignore[arg-type,list-item]
    database.run(lambda file: standings.write(file, change))
    router.accept(change)
    return len(change.notices)


def test_a_restart_tells_nothing_twice_and_forgets_nothing(database: Database) -> None:
    """Neither the loop again, nor that its end is to be told (G-4)."""
    assert told(database, started(database), loop()) == 1
    again = started(database)
    assert again.last_at("loops") == NOW
    assert told(database, again, loop()) == 0
    assert told(database, started(database), released()) == 1
    assert told(database, started(database), released()) == 0


def test_rules_that_are_no_more(database: Database) -> None:
    told(database, started(database), loop())
    assert started(database, Rule("other", ("loop",), ("chat",))).known == {}
    assert database.run(lambda file: file.execute("SELECT count(*) FROM standing").fetchone()) == (0,)


def test_what_cannot_be_read_is_left_out(database: Database) -> None:
    """Of another version, or damaged."""
    database.run(lambda file: file.execute("INSERT INTO standing VALUES ('loops', 'k', '{\"x\": 1}')"))
    database.run(lambda file: file.execute("INSERT INTO standing VALUES ('loops', 'k2', 'nonsense')"))
    assert started(database).known == {}


def test_a_new_file_gets_what_is_known(database: Database, tmp_path: Path) -> None:
    router = started(database)
    told(database, router, loop())
    database.close()
    for path in tmp_path.iterdir():
        path.unlink()
    database.run(lambda _file: None)
    assert dict(started(database).known) == dict(router.known)
