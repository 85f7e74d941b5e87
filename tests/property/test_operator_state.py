"""However orders, expiries, cuts, lost messages and lost data interleave: once all is well, all instances agree
(K-3), and of every record the newest form stays."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from breakloop.clock import FakeClock
from breakloop.store.orders import Order
from tests.operators import NOW, FakeNodes, FakeRedis, Instance

AGENTS = ("a", "b", "c")
WHO = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("kill"), WHO, st.sampled_from(AGENTS), st.sampled_from([None, 5.0, 60.0])),
        st.tuples(st.just("release"), WHO, st.sampled_from(AGENTS)),
        st.tuples(st.just("switch"), WHO, st.sampled_from(AGENTS), st.sampled_from([None, 5.0, 60.0])),
        st.tuples(st.just("lift"), WHO, st.integers(0, 3)),
        st.tuples(st.just("override"), WHO, st.sampled_from(["global_shadow", "kill_switch_override"])),
        st.tuples(st.just("lift_override"), WHO, st.sampled_from(["global_shadow", "kill_switch_override"])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 7.0, 30.0])),
        st.tuples(st.just("tick"), WHO),
        st.tuples(st.just("cut"), WHO),
        st.tuples(st.just("join"), WHO),
        st.tuples(st.just("deaf"), WHO),
        st.tuples(st.just("hears"), WHO),
        st.tuples(st.just("wipe")),
    ),
    max_size=30,
)


class Fleet:
    """Two instances whose clocks differ, and what was ordered."""

    def __init__(self, skew_s: float) -> None:
        self.server = FakeRedis()
        self.ways = [FakeNodes(self.server), FakeNodes(self.server)]
        self.clocks = [FakeClock(NOW), FakeClock(NOW + skew_s)]
        self.both = [Instance(way, clock) for way, clock in zip(self.ways, self.clocks, strict=True)]
        for one, way in zip(self.both, self.ways, strict=True):
            one.book.listen(way.feed)
        self.newest: dict[tuple[str, str], Order] = {}

    async def step(self, name: str, *args: Any) -> None:
        if name == "wait":
            for clock in self.clocks:
                clock.advance(args[0])
        elif name == "wipe":
            self.server.wipe()
        elif name == "tick":
            await self.both[args[0]].tick()
        elif name in {"cut", "join"}:
            self.ways[args[0]].up = name == "join"
        elif name in {"deaf", "hears"}:
            self.ways[args[0]].deaf = name == "deaf"
        else:
            one = self.both[args[0]]
            self._order(one, name, *args[1:])
            self._note(one)
        await asyncio.sleep(0)

    def _order(self, one: Instance, name: str, *args: Any) -> None:
        now, operator = one.clock.now(), one.operator
        if name == "kill":
            operator.kill("default", args[0], "why", "ann", None if args[1] is None else now + args[1])
        elif name == "release":
            operator.release("default", agent=args[0], by="bob")
        elif name == "switch":
            ends = None if args[1] is None else now + args[1]
            operator.set_switch("agent:id", args[0], "ann", expires_at=ends)
        elif name == "lift" and operator.switches():
            switches = operator.switches()
            operator.lift_switch(switches[args[0] % len(switches)].id, "bob")
        elif name == "override":
            operator.set_override(args[0], "why", now + 20, "ann")
        elif name == "lift_override":
            operator.lift_override(args[0], "bob")

    def _note(self, one: Instance) -> None:
        for record in one.book.ledger.all():
            known = self.newest.get(record.name)
            if known is None or record.changed_at > known.changed_at:
                self.newest[record.name] = record

    async def heal(self) -> None:
        for one, way in zip(self.both, self.ways, strict=True):
            way.up, way.deaf = True, False
            one.book.missed()
        for _ in range(4):
            for one in self.both:
                await one.tick()


@given(steps=STEPS, skew_s=st.sampled_from([0.0, 0.5, -3.0]))
def test_instances_agree_once_all_is_well(steps: list[tuple[Any, ...]], skew_s: float) -> None:
    """The same in force on both, the same said to Redis, and the newest form of each record has won (K-3)."""

    async def story() -> None:
        fleet = Fleet(skew_s)
        for step in steps:
            await fleet.step(*step)
        await fleet.heal()
        one, two = fleet.both
        assert one.book.ledger.all() != [] or fleet.newest == {}
        records = [{record.name: record for record in each.book.ledger.all()} for each in fleet.both]
        assert records[0] == records[1]
        assert {name: one.changed_at for name, one in records[0].items()} == {
            name: one.changed_at for name, one in fleet.newest.items()
        }
        in_redis = {field for kept in fleet.server.hashes.values() for field in kept}
        assert in_redis == {name[1].encode() for name in records[0]}
        behind, ahead = sorted(fleet.clocks, key=lambda clock: clock.now())
        behind.advance(ahead.now() - behind.now())
        assert [one.reason(agent) for agent in AGENTS] == [two.reason(agent) for agent in AGENTS]
        assert one.engine.enforces == two.engine.enforces
        assert await one.operator.acknowledged()

    asyncio.run(story())
