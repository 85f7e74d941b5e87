"""Orders at run time (S-1, K-1, K-3, G-1): checked, kept, told, in force; and what others ordered."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from breakloop.engine.operator import NOTHING_STOPPED, Operator
from breakloop.engine.quarantine import AGENT, Hold
from breakloop.errors import OrderError
from breakloop.store.orders import HOLD, LIFTED, SWITCH, FileOrderStore, Order
from tests.builders import START, Json, bundle, call, chat, policy, tail, user, world

KILLING: Json = bundle(policy("p", loop=tail(action="kill", max_hits=2)))


class Book(FileOrderStore):
    """Remembers how it was asked."""

    __slots__ = ("closed", "puts", "ticks", "waits")

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder, lambda trouble: pytest.fail(str(trouble)))
        self.puts: list[tuple[list[str], bool]] = []
        self.waits: list[float] = []
        self.ticks: list[float] = []
        self.closed = False

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        self.puts.append(([record.key for record in records], at_once))
        return super().put(records, at_once=at_once)

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        super().tick(now)

    async def close(self) -> None:
        self.closed = True
        await super().close()

    async def ready(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return await super().ready(timeout_s)

    async def settled(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return await super().settled(timeout_s)

    async def ask(self, question: str, timeout_s: float) -> list[str]:
        self.waits.append(timeout_s)
        return await super().ask(question, timeout_s)


class Here:
    """A world with an operator. Made again over the same folder, it is what a restart finds."""

    def __init__(self, folder: Path | None, data: Json = KILLING) -> None:
        self.world = world(data)
        self.book = Book(folder)
        self.operator = Operator(self.world.engine, self.book, self.world.clock, self.world.events.append)
        self.operator.start()

    def reason(self, text: str = "hello", agent: str = "a", key: str = "one", **headers: str) -> str:
        fields = {"authorization": f"Bearer {key}", "x-agent-id": agent} | headers
        return self.world.engine.decide(chat(user(text), headers=fields)).reason

    def loop(self, agent: str = "a", key: str = "one") -> str:
        """Let an agent loop until it is killed; return its last denial."""
        return [self.reason("x", agent, key) for _ in range(3)][-1]

    def told(self, name: str) -> list[Mapping[str, object]]:
        return self.world.named(name)


@pytest.fixture
def here() -> Here:
    return Here(None)


def test_an_operators_kill_binds_the_name(here: Here) -> None:
    """Whoever calls, until released; told with who did it (G-1)."""
    here.operator.kill("default", "a", "INC-7", "ann")
    assert here.reason() == here.reason(key="two") == "agent_quarantined"
    assert here.reason(agent="b") != "agent_quarantined"
    [told] = here.told("agent.killed")
    assert (told["binds"], told["agent"], told["reason"], told["by"]) == ("name", "a", "INC-7", "ann")
    [hold] = here.operator.holds()
    assert (hold.agent, hold.by, hold.until) == ("a", "ann", math.inf)
    assert [ended.agent for ended in here.operator.release("default", agent="a", by="bob")] == ["a"]
    assert here.reason() != "agent_quarantined"
    assert here.told("agent.released")[0]["by"] == "bob"
    assert here.operator.holds() == []


def test_an_operators_kill_of_one_caller(here: Here) -> None:
    """Other callers may have an agent of the same name (G-1)."""
    caller = here.world.descriptors.caller(chat(user("x"), headers={"authorization": "Bearer one"}))
    hold = here.operator.kill("default", "a", "INC-7", "ann", caller=caller)
    assert (hold.binds, hold.caller) == (AGENT, caller)
    assert [here.reason(key=key) == "agent_quarantined" for key in ("one", "two")] == [True, False]


def test_an_operators_last_word_counts(here: Here) -> None:
    """Also where it makes the time shorter."""
    here.operator.kill("default", "a", "for good", "ann")
    here.operator.kill("default", "a", "an hour will do", "ann", START + 3600)
    assert [hold.until for hold in here.operator.holds()] == [START + 3600]
    here.world.clock.advance(3600)
    assert here.reason() != "agent_quarantined"


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (lambda o: o.kill("default", " ", "why", "ann"), "agent: must not be empty"),
        (lambda o: o.kill("default", "a", "", "ann"), "reason: must not be empty"),
        (lambda o: o.kill("default", "a", "x" * 257, "ann"), "reason: must be at most 256"),
        (lambda o: o.kill("default", "a", "why", ""), "by: must not be empty"),
        (lambda o: o.kill("default", "a", "why", "ann", START), "expires_at: has passed"),
        (lambda o: o.release("default", by="ann"), "agent: name an agent, a caller or a run"),
        (lambda o: o.release("default", agent="a", by=""), "by: must not be empty"),
        (lambda o: o.set_switch("agent", "a", "ann"), "scope_key: "),
        (lambda o: o.set_switch("agent:id", "a", ""), "by: must not be empty"),
        (lambda o: o.set_switch("agent:id", "a", "ann", expires_at=START - 1), "expires_at: has passed"),
        (lambda o: o.set_override("global_shadow", "", START + 1, "ann"), "reason: is required"),
        (lambda o: o.set_override("global_shadow", "why", None, "ann"), "expires_at: is required"),
        (lambda o: o.set_override("global_shadow", "why", START, "ann"), "expires_at: has passed"),
        (lambda o: o.set_override("global_shadow", "why", START + 1, " "), "by: must not be empty"),
    ],
)
def test_what_is_refused_changes_nothing(here: Here, order: Any, problem: str) -> None:
    """Inputs are checked as in the bundle (K-1, K-3)."""
    with pytest.raises(OrderError, match=problem):
        order(here.operator)
    assert here.book.puts == []
    assert here.world.events == []


def test_a_switch_is_set_listed_and_lifted(here: Here) -> None:
    """A switch is set, listed and lifted (K-3)."""
    made = here.operator.set_switch("header:X-Team", "red", "ann", route="/v1/*", reason="INC-8", expires_at=START + 60)
    [switch] = here.operator.switches()
    assert re.fullmatch("[0-9a-f]{8}", made)
    assert switch == (made, "header:x-team", "red", "/v1/*", "INC-8", START + 60, "ann", START)
    assert here.reason(**{"x-team": "red"}) == "kill_switch"
    assert here.reason(**{"x-team": "blue"}) != "kill_switch"
    assert here.operator.lift_switch(made, "bob")
    assert here.reason(**{"x-team": "red"}) != "kill_switch"
    assert not here.operator.lift_switch(made, "bob")
    assert here.operator.switches() == []
    first, second = here.told("kill_switch.changed")
    assert (first["id"], first["change"], first["by"], first["expires_at"]) == (made, "set", "ann", START + 60)
    assert (second["id"], second["change"], second["by"], second["scope_value"]) == (made, "lifted", "bob", "red")


def test_a_switch_that_another_instance_changed_is_read_again(here: Here) -> None:
    """The newest form of a switch is in force (K-3)."""
    here.operator.set_switch("header:x-team", "red", "ann")
    assert here.reason(**{"x-team": "red"}) == "kill_switch"
    [before], [again] = here.operator.switches(), here.operator.switches()
    assert before is again  # with a thousand of them, reading takes a while
    [stored] = here.book.ledger.all()
    changed = Order(stored.kind, stored.key, {**stored.value, "scope_value": "blue"}, stored.expires_at, START + 1)
    here.operator._obey(here.book.put([changed]))
    assert [switch.scope_value for switch in here.operator.switches()] == ["blue"]
    assert [here.reason(**{"x-team": team}) == "kill_switch" for team in ("red", "blue")] == [False, True]


def test_the_switch_that_stops_an_agent(here: Here) -> None:
    """What the dashboard shows instead of a button; a switch for something else is none (K-3)."""
    assert here.operator.stops("a") is None
    here.operator.set_switch("header:x-team", "red", "ann")
    here.operator.set_switch("agent:id", "a", "ann", reason="INC-8", expires_at=START + 60)
    found = here.operator.stops("a")
    assert found is not None
    assert found.reason == "INC-8"
    assert here.operator.stops("b") is None
    here.world.clock.advance(60)
    assert here.operator.stops("a") is None


def test_a_switch_ends_by_itself(here: Here) -> None:
    """Expired ones are skipped, and in time not even looked at (K-2)."""
    here.operator.set_switch("llm:model", "gpt-x", "ann", expires_at=START + 60)
    assert here.reason() == "kill_switch"
    assert here.world.engine.bundle is not None
    assert "llm:model" in here.world.engine.bundle.kill_switches.keys
    here.world.clock.advance(60)
    assert here.reason() != "kill_switch"
    here.operator.tick()
    assert "llm:model" not in here.world.engine.bundle.kill_switches.keys


def test_overrides_at_run_time(here: Here) -> None:
    """The kill switch override skips those of run time; told, listed and lifted (K-1)."""
    here.operator.set_switch("agent:id", "a", "ann")
    here.operator.set_override("kill_switch_override", "fire drill", START + 60, "ann")
    assert here.reason() != "kill_switch"
    assert here.operator.overrides() == [("kill_switch_override", "fire drill", START + 60, "ann", START)]
    assert here.operator.lift_override("kill_switch_override", "bob")
    assert here.reason() == "kill_switch"
    assert not here.operator.lift_override("kill_switch_override", "bob")
    assert not here.operator.lift_override("unheard of", "bob")
    assert [told["change"] for told in here.told("override.changed")] == ["set", "lifted"]


def test_global_shadow_suspends_automatic_quarantines_and_no_operators(here: Here) -> None:
    """While it is active; an expired override is inactive (K-1, B-5)."""
    assert here.loop("a") == "loop_detected"
    here.operator.kill("default", "rogue", "INC-9", "ann")
    here.operator.set_override("global_shadow", "drill", START + 60, "ann")
    assert here.reason() != "agent_quarantined"
    assert here.reason(agent="rogue") == "agent_quarantined"
    assert here.loop("c") != "loop_detected"
    here.world.clock.advance(60)
    assert here.reason() == "agent_quarantined"


def test_a_caller_is_released_as_a_whole(here: Here) -> None:
    """By the name of the caller alone (G-1)."""
    here.loop()
    assert here.reason("y") == "agent_quarantined"
    [hold] = here.operator.holds()
    assert here.operator.release("default", caller=hold.caller, by="ann") == [hold]
    assert here.reason("y") != "agent_quarantined"


def test_an_operators_kill_takes_precedence_over_an_automatic_quarantine(here: Here) -> None:
    """Global shadow suspends the automatic hold on an agent, its caller or its run, and not the operator's kill of the
    same agent (K-1).
    """
    for agent in ("a", "b", "c"):  # the third one holds the caller, too
        assert here.loop(agent) == "loop_detected"
    here.operator.kill("default", "a", "INC-9", "ann")
    here.operator.set_override("global_shadow", "drill", START + 60, "ann")
    assert here.reason(agent="a") == "agent_quarantined"
    assert here.reason(agent="b") != "agent_quarantined"
    here.operator.release("default", agent="a", by="ann")
    assert here.reason(agent="a") != "agent_quarantined"


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Holds of both kinds, switches, overrides; and what was lifted stays lifted (S-1, K-3)."""
    before = Here(tmp_path)
    assert before.loop("looping") == "loop_detected"
    before.operator.kill("default", "rogue", "INC-9", "ann")
    before.operator.kill("default", "innocent", "a mistake", "ann")
    before.operator.release("default", agent="innocent", by="bob")
    before.operator.set_switch("header:x-team", "red", "ann")
    lifted = before.operator.set_switch("header:x-team", "blue", "ann")
    before.operator.lift_switch(lifted, "bob")
    after = Here(tmp_path)  # the one before was not closed: that is what a crash leaves
    assert after.world.events == []
    assert after.reason(agent="looping") == after.reason(agent="rogue", key="two") == "agent_quarantined"
    assert after.reason(agent="looping", key="two") != "agent_quarantined"
    assert after.reason(agent="innocent") != "agent_quarantined"
    assert after.reason(**{"x-team": "red"}) == "kill_switch"
    assert after.reason(**{"x-team": "blue"}) != "kill_switch"
    after.operator.set_override("global_shadow", "drill", START + 60, "ann")
    assert not Here(tmp_path).world.engine.enforces


def test_the_end_of_a_hold_is_told_after_a_restart(tmp_path: Path) -> None:
    """By the instance that has made it, which is the same one (G-1)."""
    Here(tmp_path).operator.kill("default", "a", "why", "ann", START + 60)
    after = Here(tmp_path)
    after.world.clock.advance(60)
    after.operator.tick()
    assert [told["agent"] for told in after.told("agent.released")] == ["a"]


def test_a_release_after_a_restart_clears_what_was_remembered(tmp_path: Path) -> None:
    """The keys of it are kept with the hold (G-1)."""
    Here(tmp_path).loop("a")
    after = Here(tmp_path)
    [hold] = after.operator.holds()
    dropped: list[str] = []
    after.world.engine.quarantine.drop_with(dropped.extend)
    after.operator.release("default", agent="a", by="ann")
    assert dropped == list(hold.clears)
    assert dropped


def test_an_automatic_hold_is_on_disk_before_its_denial_is_answered(here: Here) -> None:
    """An automatic hold is on disk before its denial is answered (S-1)."""
    here.loop("a")
    [(keys, at_once)] = here.book.puts
    assert at_once
    assert keys[0].startswith("agent:default:")


def test_a_flood_of_holds_does_not_wait_for_the_disk_each_time(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is written together, with the next tick; what a person orders never waits for that (Y-2)."""
    monkeypatch.setattr("breakloop.engine.operator._HELD_AT_ONCE", 2)
    for number in range(4):
        here.loop("a", key=f"key-{number}")
    here.operator.kill("default", "b", "why", "ann")
    assert [at_once for _, at_once in here.book.puts] == [True, True, False, False, True]
    here.world.clock.advance(1)
    here.loop("a", key="another")
    assert here.book.puts[-1][1]


def test_fifty_holds_of_a_second_are_on_disk_at_once(here: Here) -> None:
    """The denials after them do not wait for the disk; an operator's order does, whatever came before it (Y-2)."""
    holds = [Hold(AGENT, "default", f"key-{number}", "a", START, math.inf, "it loops") for number in range(51)]
    for hold in holds:
        here.operator.held(hold)
    here.operator.held(replace(holds[0], by="ann"))
    assert [at_once for _, at_once in here.book.puts] == [True] * 50 + [False, True]


def test_what_changes_about_a_hold_with_each_request_does_not_wait_for_the_disk(here: Here) -> None:
    """What an answer has left to spend is written with the next tick, and so is a hold that ends by itself (Y-2)."""
    hold = here.operator.kill("default", "a", "why", "ann")
    here.operator.used(hold)
    here.operator.ended([hold], "")
    here.operator.ended([hold], "ann")
    assert [at_once for _, at_once in here.book.puts] == [True, False, False, True]


def test_what_others_order_is_in_force_and_not_told_again(here: Here) -> None:
    """A fleet tells once (K-3)."""
    there = Here(None)
    there.operator.set_switch("header:x-team", "red", "ann")
    there.operator.kill("default", "a", "INC-7", "ann", START + 60)
    here.operator._obey(here.book.put(there.book.ledger.all()))
    assert here.reason() == "agent_quarantined"
    assert here.reason(agent="b", **{"x-team": "red"}) == "kill_switch"
    there.operator.release("default", agent="a", by="ann")
    here.operator._obey(here.book.put(there.book.ledger.all()))
    assert here.reason() != "agent_quarantined"
    there.operator.kill("default", "a", "again", "ann", START + 60)
    here.operator._obey(here.book.put(there.book.ledger.all()))
    here.world.clock.advance(60)
    here.operator.tick()
    assert here.operator.holds() == []
    assert here.world.events == []
    assert [event.name for event in there.world.events].count("agent.killed") == 2


def test_what_is_over_is_ended_though_nobody_asks(here: Here) -> None:
    """The end of a quarantine is told in time (G-1)."""
    here.operator.kill("default", "a", "why", "ann", START + 60)
    here.world.clock.advance(61)
    here.operator.tick()
    assert [told["reason"] for told in here.told("agent.released")] == ["its time is over"]
    assert not here.world.engine.quarantine


def test_what_is_over_is_looked_for_every_five_seconds(here: Here) -> None:
    """With a hundred thousand holds, looking takes a while (G-1)."""
    here.operator.tick()
    here.operator.kill("default", "a", "why", "ann", START + 1)
    here.world.clock.advance(4.9)
    here.operator.tick()
    assert here.told("agent.released") == []
    here.world.clock.advance(0.1)
    here.operator.tick()
    assert len(here.told("agent.released")) == 1
    assert here.book.ticks == [START, START + 4.9, START + 5]  # what it has to do cannot wait


def test_records_that_are_not_understood_are_left_alone(here: Here) -> None:
    """Of a newer version in the same fleet, say."""
    odd = [
        Order(HOLD, "x", {"binds": "planet"}, math.inf, START),
        Order(HOLD, "y", {}, LIFTED, START),
        Order(SWITCH, "z", {"scope_key": "moon:phase", "scope_value": "full"}, math.inf, START),
        Order("unheard of", "z", {}, math.inf, START),
    ]
    here.operator._obey(here.book.put(odd))
    assert here.reason() != "agent_quarantined"
    assert (here.operator.holds(), here.operator.switches()) == ([], [])


def test_acknowledged_and_closed() -> None:
    """Nobody waits longer than a second for another store (K-3)."""
    here = Here(None)
    here.operator.kill("default", "a", "why", "ann")
    assert asyncio.run(here.operator.ready())
    assert asyncio.run(here.operator.acknowledged())
    assert here.book.waits == [1.0, 1.0]
    asyncio.run(here.operator.close())
    assert here.book.closed


def test_nobody_waits_longer_than_five_seconds_for_counts() -> None:
    """Of calls that were stopped, if an instance does not answer (K-4)."""
    here = Here(None)
    assert asyncio.run(here.operator.stopped(["order"])) == NOTHING_STOPPED
    assert here.book.waits == [5.0]


def test_watching_is_ticking(monkeypatch: pytest.MonkeyPatch, here: Here) -> None:
    """Four times a second (K-3)."""
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr("breakloop.engine.operator.asyncio.sleep", sleep)
    here.operator.kill("default", "a", "INC-7", "ann", START + 60)
    here.world.clock.advance(60)
    asyncio.run(here.operator.watch())
    assert slept == [0.25]
    assert not here.world.engine.quarantine


def test_a_switch_needs_no_body_unless_it_looks_into_one(here: Here) -> None:
    """The same as for switches of the bundle: plain calls are stopped as well."""
    here.operator.set_switch("header:x-team", "red", "ann")
    assert here.world.engine.decide(call(headers={"x-team": "red"})).reason == "kill_switch"


def test_an_order_survives_one_bad_sample(tmp_path: Path) -> None:
    """The clock is a day ahead for two seconds: an order for an hour is in force again, and still on disk (S-1, S-2)."""
    here = Here(tmp_path)
    clock = here.world.clock
    here.operator.set_switch("agent:id", "a", "ann", expires_at=clock.now() + 3600)
    here.operator.tick()
    clock.step(86_400.0)
    for _ in range(8):
        here.operator.tick()
        clock.advance(0.25)
    assert here.reason() != "kill_switch"
    clock.step(-86_400.0)
    clock.advance(5.0)
    here.operator.tick()
    assert here.reason() == "kill_switch"
    again = Here(tmp_path)
    assert again.reason() == "kill_switch"
