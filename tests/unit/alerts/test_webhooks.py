"""Webhooks that were registered: kept, known by heart, and silent about their secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.alerts.channels.services import decode_secret
from breakloop.alerts.delivery import AlertDatabase
from breakloop.alerts.webhooks import ROTATION_S, WEBHOOKS_MAX, Webhooks
from breakloop.errors import AlertError
from tests.alert_world import CANARY, NOW


@pytest.fixture
def database(tmp_path: Path) -> Iterator[AlertDatabase]:
    made = AlertDatabase(tmp_path, lambda _trouble: None)
    yield made
    made.close()


def loaded(database: AlertDatabase) -> Webhooks:
    made = Webhooks(database)
    made.load()
    return made


def test_they_are_kept(database: AlertDatabase) -> None:
    """Also over a restart (G-4)."""
    hooks = loaded(database)
    one = hooks.add("https://a.example/x", ["loop.detected", "agent.*"], allow_private=False, now=NOW)
    other = hooks.add("https://b.example/x", [], allow_private=True, now=NOW + 1)
    again = loaded(database)
    assert again.all() == [one, other]
    assert hooks.remove(one.id)
    assert not hooks.remove(one.id)
    assert loaded(database).all() == [other]


def test_what_they_want(database: AlertDatabase) -> None:
    """Names, patterns, or everything (G-4)."""
    hooks = loaded(database)
    some = hooks.add("https://a.example", ["loop.detected", "agent.*"], allow_private=False, now=NOW)
    every = hooks.add("https://a.example", [], allow_private=False, now=NOW)
    star = hooks.add("https://a.example", ["*"], allow_private=False, now=NOW)
    assert [some.accepts(name) for name in ("loop.detected", "loop.cleared", "agent.killed")] == [True, False, True]
    assert every.accepts("anything.at_all")
    assert star.accepts("anything.at_all")


@pytest.mark.parametrize("name", ["", "Loop.Detected", "loop detected", "x" * 101, "loop.detected\n"])
def test_what_is_no_event(database: AlertDatabase, name: str) -> None:
    with pytest.raises(AlertError, match="events are names"):
        loaded(database).add("https://a.example", [name], allow_private=False, now=NOW)


def test_a_new_secret_and_the_old_one_sign_for_a_day(database: AlertDatabase) -> None:
    """Several signatures while rotating (G-4)."""
    hooks = loaded(database)
    old = hooks.add("https://a.example", [], allow_private=False, now=NOW)
    new = hooks.rotate(old.id, NOW)
    assert new is not None
    assert new.secret != old.secret
    assert new.keys(NOW) == [decode_secret(new.secret), decode_secret(old.secret)]
    assert loaded(database).all()[0].keys(NOW + ROTATION_S) == [decode_secret(new.secret)]
    assert hooks.rotate("wh_none", NOW) is None


def test_one_that_is_disabled_gets_nothing(database: AlertDatabase) -> None:
    """Until it has a new secret (G-4)."""
    hooks = loaded(database)
    made = hooks.add("https://a.example", [], allow_private=False, now=NOW)
    hooks.disable(made.id, "it answered 410")
    hooks.disable("wh_none", "x")
    (found,) = loaded(database).all()
    assert (found.disabled, found.accepts("loop.detected")) == ("it answered 410", False)
    again = hooks.rotate(made.id, NOW)
    assert again is not None
    assert again.accepts("loop.detected")


def test_there_are_not_too_many(database: AlertDatabase) -> None:
    """There are not too many (Y-2)."""
    hooks = loaded(database)
    hooks._known = {str(number): None for number in range(WEBHOOKS_MAX)}  # type: ignore[misc]
    with pytest.raises(AlertError, match="already 100 webhooks"):
        hooks.add("https://a.example", [], allow_private=False, now=NOW)


def test_they_outlive_their_file(database: AlertDatabase, tmp_path: Path) -> None:
    """What is known by heart is written into a new file (G-4)."""
    hooks = loaded(database)
    made = hooks.add("https://a.example", [], allow_private=False, now=NOW)
    database.close()
    for path in tmp_path.iterdir():
        path.unlink()
    hooks.disable(made.id, "")
    assert loaded(database).get(made.id) == made


def test_secrets_are_not_shown(database: AlertDatabase) -> None:
    """Neither the secret nor a token in the URL (Y-1)."""
    made = loaded(database).add(f"https://a.example/?{CANARY}", [], allow_private=False, now=NOW)
    assert made.secret not in repr(made)
    assert CANARY not in repr(made)
