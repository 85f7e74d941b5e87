"""Tests of `admin.follow`: events as they happen, each once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from breakloop.admin.api.history import EVERY_S, QUIET_S, follow, stream
from breakloop.model.records import EventFilter, EventRecord
from tests.admin_world import World, empty, full


def _event(number: int, name: str = "loop.detected") -> EventRecord:
    return EventRecord(number, name, 1_800_000_000.0, "default", "a", "", "", {"n": number})


def _heard(world: World, wanted: EventFilter, turns: list[list[EventRecord]]) -> list[str]:
    """What is sent when these come, turn by turn."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > len(turns):
            raise asyncio.CancelledError
        world.history.event_rows[:0] = reversed(turns[len(slept) - 1])

    async def run() -> list[str]:
        found: list[str] = []
        try:
            async for line in stream(world.services, wanted, sleep):
                found += [line.decode()]
        except asyncio.CancelledError:
            return found
        raise AssertionError("it ended")

    return asyncio.run(run())


def test_only_what_is_new_is_sent_each_once_in_order() -> None:
    """Only what is new is sent each once in order (X-1)."""
    world = full()
    newest = world.history.event_rows[0].id
    turns = [[_event(newest + 1), _event(newest + 2)], [], [_event(newest + 3, "agent.killed")]]
    first, *heard = _heard(world, EventFilter(), turns)
    assert first.startswith(":")
    assert [line.split("\n")[0] for line in heard] == [f"id: {newest + at}" for at in (1, 2, 3)]
    assert heard[2].split("\n")[1] == "event: agent.killed"
    data = json.loads(heard[0].split("\n")[2].removeprefix("data: "))
    assert (data["id"], data["data"]) == (newest + 1, {"n": newest + 1})
    assert all(line.endswith("\n\n") for line in heard)


def test_a_reader_goes_on_where_it_was() -> None:
    world = full()
    newest = world.history.event_rows[0].id
    heard = _heard(world, EventFilter(after=newest - 2), [])
    assert [line.split("\n")[0] for line in heard[1:]] == [f"id: {newest - 1}", f"id: {newest}"]


def test_the_first_events_of_all_come_in_order() -> None:
    heard = _heard(empty(), EventFilter(), [[_event(1), _event(2)], [_event(3)]])
    assert [line.split("\n")[0] for line in heard[1:]] == ["id: 1", "id: 2", "id: 3"]


def test_filters_hold() -> None:
    world = empty()
    heard = _heard(world, EventFilter(names=("agent.killed",)), [[_event(1), _event(2, "agent.killed")]])
    assert [line.split("\n")[0] for line in heard[1:]] == ["id: 2"]


def test_many_are_sent_without_waiting() -> None:
    world = empty()
    world.history.event_rows = [_event(number) for number in range(1200, 0, -1)]
    assert len(_heard(world, EventFilter(after=1), [])) == 1200


def test_silence_is_broken_now_and_then() -> None:
    turns: list[list[EventRecord]] = [[] for _ in range(int(QUIET_S / EVERY_S))]
    assert _heard(full(), EventFilter(), turns).count(": still here\n\n") == 1


def test_the_last_id_of_a_browser_counts() -> None:
    def asked(last: str) -> Any:
        headers = [(b"last-event-id", last.encode())]
        return follow(world.services, EventFilter(after=3), Request({"type": "http", "headers": headers}))

    async def first(answer: Any) -> list[bytes]:
        return [await anext(answer.body_iterator) for _ in range(2)]

    world = empty()
    world.history.event_rows = [replace(_event(number)) for number in (9, 8, 7, 6, 5, 4)]
    assert asyncio.run(first(asked("7")))[1].startswith(b"id: 8\n")
    assert asyncio.run(first(asked("x")))[1].startswith(b"id: 4\n")
    answer = asked("7")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.media_type == "text/event-stream"
