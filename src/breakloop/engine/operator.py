"""Operator orders: holds, kill switches, overrides, snoozes and agent settings made at run time by operators or
detectors.

Orders given to this instance are persisted in a `FileOrderStore`; orders from other instances take effect within a
second. `policy.orders` validates orders, and the admin API decides who may give them.

This module also converts orders to records and back. A record may have been written by another version or by another
program, so records that cannot be parsed are ignored.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from breakloop.clock import Clock
from breakloop.engine.engine import Engine
from breakloop.engine.pauses import checked_answer, question_of
from breakloop.engine.quarantine import AGENT as AGENT_OF_CALLER
from breakloop.engine.quarantine import NAME, RUN, Hold, Key, hold_key
from breakloop.errors import OrderError
from breakloop.model.events import KILL_SWITCH_CHANGED, OVERRIDE_CHANGED, Event, Publish
from breakloop.policy.compiled import CompiledKillSwitch
from breakloop.policy.orders import (
    GLOBAL_SHADOW,
    KILL_SWITCH_OVERRIDE,
    NO_ORDERS,
    OVERRIDES,
    Orders,
    check_override,
    checked_agent,
    checked_switch,
    checked_text,
)
from breakloop.store.orders import AGENT, HOLD, LIFTED, OVERRIDE, SNOOZE, SWITCH, FileOrderStore, Order

_TEXTS = ("binds", "project", "caller", "agent", "why", "run", "by")


class SwitchOrder(NamedTuple):
    """A kill switch that was set at run time."""

    id: str
    scope_key: str
    scope_value: str
    route: str
    reason: str
    expires_at: float  # infinite if only an operator lifts it
    by: str
    since: float

    def compiled(self, index: int) -> CompiledKillSwitch:
        """Return the compiled form that the engine uses."""
        return CompiledKillSwitch(
            index, self.scope_key, self.scope_value, self.route, self.reason, self.expires_at, self.id
        )


class OverrideOrder(NamedTuple):
    """An override that was set at run time."""

    name: str
    reason: str
    expires_at: float
    by: str
    since: float


class StoppedCalls(NamedTuple):
    """Calls in flight that orders have stopped; streams are calls, too."""

    calls: int = 0
    streams: int = 0
    agents: frozenset[str] = frozenset()

    def plus(self, other: StoppedCalls, agents_max: int = 1000) -> StoppedCalls:
        """Return both together. Of their agents, at most `agents_max` are kept."""
        more = other.agents - self.agents
        room = max(0, agents_max - len(self.agents))
        agents = self.agents | (more if len(more) <= room else frozenset(sorted(more)[:room]))
        return StoppedCalls(self.calls + other.calls, self.streams + other.streams, agents)


NOTHING_STOPPED: Final = StoppedCalls()


def hold_value(hold: Hold) -> dict[str, Any]:
    """Return the value of a hold's record."""
    texts = {name: getattr(hold, name) for name in _TEXTS}
    value = texts | {"since": hold.since, "clears": list(hold.clears), "of": list(hold.key)}
    value |= {"lands": True} if hold.lands else {}
    return value if hold.question is None else value | {"pause": hold.question.value()}


def hold_of(record: Order, now: float) -> Hold | None:
    """Return the hold in a record, or None if the record is invalid. A hold that begins in the future was made before
    the clock was set back: it begins now.
    """
    value = record.value
    texts, clears, since = [value.get(name) for name in _TEXTS], value.get("clears"), value.get("since")
    if not all(isinstance(text, str) for text in texts) or not isinstance(since, int | float):
        return None
    if not isinstance(clears, list) or not all(isinstance(key, str) for key in clears):
        return None
    binds, project, caller, agent, why, run, by = map(str, texts)
    early_s = max(since - now, 0.0)
    until = record.expires_at - early_s
    lands, question = value.get("lands") is True, question_of(value.get("pause"))
    since -= early_s
    return Hold(binds, project, caller, agent, since, until, why, run, tuple(clears), by, question, lands=lands)


def held_key(record: Order) -> Key | None:
    """Return the key of the hold in a record, whether it is in force or has ended."""
    match record.value.get("of"):
        case [str(binds), str(project), str(caller), str(last)]:
            return binds, project, caller, last
    return None


def switch_of(record: Order) -> SwitchOrder | None:
    """Return the kill switch in a record, or None if the record is invalid."""
    value = record.value
    given = {name: value.get(name) for name in ("scope_key", "scope_value", "route", "reason")}
    try:
        checked = checked_switch(given, record.expires_at)
    except OrderError:
        return None
    return SwitchOrder(record.key, **checked, expires_at=record.expires_at, by=_by(record), since=record.changed_at)


def override_of(record: Order) -> OverrideOrder | None:
    """Return the override in a record, or None if its name is unknown."""
    if record.key not in OVERRIDES:
        return None
    reason = str(record.value.get("reason", ""))
    return OverrideOrder(record.key, reason, record.expires_at, _by(record), record.changed_at)


def _by(record: Order) -> str:
    return str(record.value.get("by", ""))


TICK_S: Final = 0.25
_SWEEP_EVERY_S: Final = 5.0
# Number of holds per second made by detectors that are synced to disk before the denial is returned. Further holds are
# written, too, and synced with the next tick, so that disk latency does not stall traffic.
_HELD_AT_ONCE: Final = 50
_ACKNOWLEDGED_S: Final = 1.0
_COUNTED_S: Final = 5.0  # an operator waits this long for the counts of an instance that does not answer


class Operator:
    """Accepts orders, persists them, and applies the orders of all instances to the engine."""

    def __init__(self, engine: Engine, book: FileOrderStore, clock: Clock, publish: Publish) -> None:
        self._engine = engine
        self._quarantine = engine.quarantine
        self._book = book
        self._clock = clock
        self._publish = publish
        self._second = 0
        self._held = 0  # holds made by detectors in this second
        self._sweep_at = 0.0
        self._orders = NO_ORDERS
        self._switches: dict[str, tuple[Order, SwitchOrder | None]] = {}
        self._stopped: Callable[[Sequence[str]], StoppedCalls] | None = None
        book.on_question = self._tell_stopped
        clock.on_step.append(lambda _step_s: book.clock_stepped(clock.now()))

    def start(self) -> None:
        """Apply the persisted orders. Must be called before the first request."""
        self._book.on_change = self._obey
        self._book.load()
        self._apply(self._book.ledger.all(), foreign=False)
        self._quarantine.register = self

    async def ready(self, timeout_s: float = _ACKNOWLEDGED_S) -> bool:
        """Wait until the orders of other instances are applied. Must be called before the first request.

        Returns False if the shared store is not available; the orders persisted locally are then in force.
        """
        return await self._book.ready(timeout_s)

    async def watch(self) -> None:
        """Sleep for one tick, then run `tick`. The process runs this job repeatedly."""
        await asyncio.sleep(TICK_S)
        self.tick()

    def tick(self) -> None:
        """Expire orders and holds, and synchronize with the order store."""
        now, steady = self._clock.now(), self._clock.steady()
        if steady >= self._sweep_at:
            self._sweep_at = steady + _SWEEP_EVERY_S
            self._quarantine.sweep(now)
            self._put_in_force()  # removes expired orders
        self._book.tick(now)

    def stop_with(self, changed: Callable[[], None], stopped: Callable[[Sequence[str]], StoppedCalls]) -> None:
        """Stop calls in flight of this process: `changed` is called when an order may require it, and `stopped` returns
        what orders have stopped."""
        self._quarantine.on_stop, self._stopped = changed, stopped

    async def stopped(self, orders: Sequence[str], timeout_s: float = _COUNTED_S) -> StoppedCalls:
        """Return how many calls in flight these orders have stopped, on all instances that answer in time. An order is
        the id of a kill switch, or the `hold_key` of a hold.
        """
        found = NOTHING_STOPPED
        for answer in await self._book.ask(json.dumps(list(orders)), timeout_s):
            match json.loads(answer):
                case [int(calls), int(streams), list(agents)]:
                    found = found.plus(StoppedCalls(calls, streams, frozenset(map(str, agents))))
        return found

    def _tell_stopped(self, question: str) -> str:
        try:
            orders = json.loads(question)
        except ValueError:  # from another program
            orders = None
        found = NOTHING_STOPPED
        if self._stopped is not None and isinstance(orders, list):
            found = self._stopped([str(one) for one in orders])
        return json.dumps([found.calls, found.streams, sorted(found.agents)])

    async def acknowledged(self, timeout_s: float = _ACKNOWLEDGED_S) -> bool:
        """Wait until all orders so far are durable and shared.

        Returns False on timeout: the orders are in force here, and are written and shared as soon as possible.
        """
        return await self._book.settled(timeout_s)

    async def close(self) -> None:
        """Write pending orders and close the order store."""
        await self._book.close()

    # -- quarantine --------------------------------------------------------------------------------------------------

    def kill(
        self, project: str, agent: str, reason: str, by: str, expires_at: float | None = None, *, caller: str = ""
    ) -> Hold:
        """Hold an agent by name, of one caller or of all. Raises `OrderError`."""
        now = self._clock.now()
        until = _ends(expires_at, now)
        who, why = checked_text("agent", agent), checked_text("reason", reason)
        binds = AGENT_OF_CALLER if caller else NAME
        hold = Hold(binds, project, caller, who, now, until, why, by=checked_text("by", by))
        self._quarantine.hold(hold)
        return hold

    def kill_runs(
        self,
        project: str,
        caller: str,
        runs: Mapping[str, str],
        reason: str,
        by: str,
        *,
        expires_at: float | None = None,
        lands: bool = False,
    ) -> list[Hold]:
        """Hold sessions of a caller, each with the name of its agent, and whatever they start; with `lands`, their next
        requests pass without tools, so that they finish. Raises `OrderError`.
        """
        now, why, by = self._clock.now(), checked_text("reason", reason), checked_text("by", by)
        until = _ends(expires_at, now)
        holds = [
            Hold(RUN, project, caller, agent, now, until, why, f"{caller}|{session}", by=by, lands=lands)
            for session, agent in runs.items()
        ]
        for hold in holds:
            self._quarantine.hold(hold)
        return holds

    def release(self, project: str, *, agent: str = "", caller: str = "", run: str = "", by: str) -> list[Hold]:
        """End the holds on an agent, a caller or a run, and clear the state that was counted against it."""
        if not (agent or caller or run):
            raise OrderError(["agent: name an agent, a caller or a run"])
        by = checked_text("by", by)
        return self._quarantine.release(project, agent=agent, caller=caller, run=run, now=self._clock.now(), by=by)

    def unblock(self, project: str, *, agent: str = "", caller: str = "", by: str, seen: int = 0) -> int:
        """Clear the loop state of an agent or a caller on all instances. Returns the number of loops that were blocked;
        `seen` is the number in the history, which includes loops denied by other processes.
        """
        if not (agent or caller):
            return 0
        now, by = self._clock.now(), checked_text("by", by)
        return self._quarantine.unblock(project, agent=agent, caller=caller, now=now, by=by, seen=seen)

    def pauses(self) -> list[Hold]:
        """Return the runs that wait for the answer of a person, the oldest first."""
        return self._quarantine.pauses(self._clock.now())

    def answer(self, pause: str, answer: str, by: str) -> Hold:
        """Answer the question of a paused run. Returns the pause as it was. Raises `OrderError` if the answer is not
        one, or if the question is not open: it was answered, or its time is over.
        """
        given, by = checked_answer(answer), checked_text("by", by)
        hold = next((one for one in self.pauses() if one.question is not None and one.question.id == pause), None)
        if hold is None:
            raise OrderError(["pause: nothing waits for this answer; it was given already, or its time is over"])
        self._quarantine.answer(hold, given, self._clock.now(), by)
        return hold

    def holds(self) -> list[Hold]:
        return self._quarantine.holds(self._clock.now())

    def held(self, hold: Hold) -> None:
        """Persist a hold. `Quarantine` calls this before it publishes the hold."""
        record = self._record(HOLD, hold_key(hold), hold_value(hold), hold.until)
        self._book.put([record], at_once=bool(hold.by) or self._has_time(hold.since))

    def used(self, hold: Hold) -> None:
        self._book.put([self._record(HOLD, hold_key(hold), hold_value(hold), hold.until)], at_once=False)

    def ended(self, holds: Sequence[Hold], by: str) -> None:
        records = [self._record(HOLD, hold_key(hold), {"by": by, "of": list(hold.key)}, LIFTED) for hold in holds]
        self._book.put(records, at_once=bool(by))

    # -- kill switches -----------------------------------------------------------------------------------------------

    def set_switch(
        self,
        scope_key: str,
        scope_value: str,
        by: str,
        *,
        route: str = "",
        reason: str = "",
        expires_at: float | None = None,
    ) -> str:
        """Set a kill switch for all calls with this value of a descriptor. Returns the id of the switch. Raises
        `OrderError`.
        """
        until = _ends(expires_at, self._clock.now())
        given = {"scope_key": scope_key, "scope_value": scope_value, "route": route, "reason": reason}
        value = checked_switch(given, until) | {"by": checked_text("by", by)}
        made = secrets.token_hex(4)
        self._order(SWITCH, made, value, until)
        self._tell(KILL_SWITCH_CHANGED, {"id": made, "change": "set"} | value, until)
        return made

    def lift_switch(self, switch: str, by: str) -> bool:
        """Lift a switch that was set at run time. Returns whether it was in force."""
        return self._lift(SWITCH, switch, checked_text("by", by), KILL_SWITCH_CHANGED, "id")

    def switches(self) -> list[SwitchOrder]:
        """Return the switches that were set at run time and are in force."""
        known, live = self._switches, self._book.ledger.live(SWITCH, self._clock.now())
        # Each record is parsed once: with a thousand switches, parsing is most of the cost of a change.
        self._switches = {
            one.key: known[one.key] if one.key in known and known[one.key][0] is one else (one, switch_of(one))
            for one in live
        }
        return [made for _, made in self._switches.values() if made is not None]

    def stops(self, agent: str) -> CompiledKillSwitch | None:
        """Return the kill switch that stops all requests of an agent, from the bundle or set at run time."""
        bundle = self._engine.bundle
        return None if bundle is None else bundle.stops(agent, self._clock.now())

    def stop_webhook(self, agent: str) -> tuple[str, bool] | None:
        """Return the URL that is called when the agent is killed, and whether it may be at a private address."""
        bundle = self._engine.bundle
        terms = None if bundle is None else bundle.agents.find(agent)
        return None if terms is None else terms.stop_webhook

    # -- overrides ---------------------------------------------------------------------------------------------------

    def set_override(self, name: str, reason: str, expires_at: float | None, by: str) -> None:
        """Set `global_shadow` or `kill_switch_override` until a given time. Raises `OrderError`."""
        check_override(name, reason, expires_at)
        until = _ends(expires_at, self._clock.now())
        value = {"reason": reason, "by": checked_text("by", by)}
        self._order(OVERRIDE, name, value, until)
        self._tell(OVERRIDE_CHANGED, {"name": name, "change": "set"} | value, until)

    def lift_override(self, name: str, by: str) -> bool:
        """Lift an override that was set at run time. Returns whether it was in force. Overrides in the bundle stay."""
        return self._lift(OVERRIDE, name, checked_text("by", by), OVERRIDE_CHANGED, "name")

    def overrides(self) -> list[OverrideOrder]:
        """Return the overrides that were set at run time and are in force."""
        found = self._book.ledger.live(OVERRIDE, self._clock.now())
        return [made for record in found if (made := override_of(record)) is not None]

    # -- snoozes and agents ------------------------------------------------------------------------------------------

    def snooze(self, fingerprint: str, until: float, by: str) -> None:
        """Allow a loop to continue until a given time. Raises `OrderError`."""
        ends = _ends(until, self._clock.now())
        self._order(SNOOZE, checked_text("fingerprint", fingerprint), {"by": checked_text("by", by)}, ends)

    def snoozes(self) -> dict[str, float]:
        """Return the snoozed fingerprints, with the time at which each snooze ends."""
        return {record.key: record.expires_at for record in self._book.ledger.live(SNOOZE, self._clock.now())}

    def set_agent(self, agent: str, settings: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Override settings of an agent on top of the bundle. None removes a setting. Raises `OrderError`."""
        name = checked_text("agent", agent)
        known = self.agent_settings().get(name, {})
        value = checked_agent({**known, **settings})
        self._order(AGENT, name, {"by": checked_text("by", by), "settings": value}, math.inf if value else LIFTED)
        return value

    def agent_settings(self) -> dict[str, dict[str, Any]]:
        """Return the agent settings that were made at run time."""
        found = self._book.ledger.live(AGENT, self._clock.now())
        return {record.key: said for record in found if isinstance(said := record.value.get("settings"), dict)}

    # -- applying orders ---------------------------------------------------------------------------------------------

    def _order(self, kind: str, key: str, value: dict[str, Any], expires_at: float) -> None:
        record = self._record(kind, key, value, expires_at)
        self._book.put([record])
        self._put_in_force()

    def _lift(self, kind: str, key: str, by: str, event: str, name: str) -> bool:
        known = self._book.ledger.get(kind, key)
        if known is None or not known.live(self._clock.now()):
            return False
        self._order(kind, key, {"by": by}, LIFTED)
        self._tell(event, known.value | {name: key, "change": "lifted", "by": by}, known.expires_at)
        return True

    def _record(self, kind: str, key: str, value: dict[str, Any], expires_at: float) -> Order:
        changed_at = self._book.ledger.next_change(kind, key, self._clock.now())
        return Order(kind, key, value, expires_at, changed_at)

    def _obey(self, records: Sequence[Order]) -> None:
        self._apply(records, foreign=True)

    def _apply(self, records: Sequence[Order], *, foreign: bool) -> None:
        now = self._clock.now()
        for record in records:
            if record.kind != HOLD:
                continue
            hold = hold_of(record, now) if record.live(now) else None
            if hold is not None:
                self._quarantine.adopt(hold, foreign=foreign)
            elif (key := held_key(record)) is not None:
                self._quarantine.forget(key, now)
        if any(record.kind != HOLD for record in records):
            self._put_in_force()

    def _put_in_force(self) -> None:
        switches = [switch.compiled(index) for index, switch in enumerate(self.switches())]
        until = {one.name: one.expires_at for one in self.overrides()}
        orders = Orders(
            tuple(switches),
            until.get(GLOBAL_SHADOW, 0.0),
            until.get(KILL_SWITCH_OVERRIDE, 0.0),
            tuple(self.snoozes().items()),
            tuple(self.agent_settings().items()),
        )
        if orders != self._orders:
            self._orders = orders
            self._engine.apply_orders(orders)

    def _has_time(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._held = int(now), 0
        self._held += 1
        return self._held <= _HELD_AT_ONCE

    def _tell(self, name: str, data: dict[str, Any], expires_at: float) -> None:
        ends = None if expires_at == math.inf else expires_at
        self._publish(Event(name, self._clock.now(), data | {"expires_at": ends}))


def _ends(expires_at: float | None, now: float) -> float:
    """Return when an order ends. Raises `OrderError` if that time has passed."""
    if expires_at is None:
        return math.inf
    if not expires_at > now:
        raise OrderError(["expires_at: has passed"])
    return expires_at
