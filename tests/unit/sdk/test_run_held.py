"""Calls that somebody else carries out: judged after, and before where they were blocked."""

from __future__ import annotations

import asyncio

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.sdk.run import aafter, abefore, after, before
from tests.unit.sdk.doors import DENIED, TellingDoor

MADE = ("search", {"q": "x"})


def test_a_call_that_was_blocked_is_held_until_it_may_pass(clock: FakeClock) -> None:
    """Warned, blocked, refused before it is made again; once the cooldown is over it is free (LD-4)."""
    with Guard(clock=clock).run() as run:
        after_all = [after(run, MADE, "nothing") for _ in range(5)]
        assert [bool(one.notice) for one in after_all] == [False, False, True, True, True]
        assert [one.allowed for one in after_all] == [True] * 4 + [False]
        assert before(run, ("search", {"q": "y"})).allowed
        assert not before(run, MADE).allowed
        clock.advance(3600)
        assert before(run, MADE).allowed
        assert run.held(MADE) is None


def test_the_same_in_the_other_colour(clock: FakeClock) -> None:
    """Without blocking the event loop (D-4)."""

    async def judged() -> list[bool]:
        run = Guard(clock=clock).run()
        said = [(await aafter(run, MADE, "nothing")).allowed for _ in range(5)]
        return [*said, (await abefore(run, MADE)).allowed, (await abefore(run, ("other", {}))).allowed]

    assert asyncio.run(judged()) == [True] * 4 + [False, False, True]


def test_a_call_that_was_not_blocked_is_not_asked_about() -> None:
    """Before it is made nothing is known of it that was not known before."""
    door = TellingDoor(DENIED)
    run = Guard(door=door).run()
    assert before(run, MADE).allowed
    assert door.calls == []
    assert not after(run, MADE, "x").allowed
    assert len(door.calls) == 1
