"""Quarantine: agents that were killed for looping or by an operator, runs that have reached a limit, and paused runs.

Calls from a held sender are denied until the hold expires or an operator releases it, which also clears the state
that was counted against it. `HoldRules` decides which denials lead to a hold; `operator` persists and shares holds.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never

from breakloop.detect.run_steps import RunStepsLimit
from breakloop.engine.decision_state import state_of
from breakloop.engine.fold import denial
from breakloop.engine.pauses import ASK_AGAIN_S, DEFAULTS, DENY, KEPT_S, KILL, LAND, Question
from breakloop.errors import StateError
from breakloop.formatting import duration
from breakloop.model.call import Call
from breakloop.model.decision import PAUSED
from breakloop.model.events import (
    AGENT_KILLED,
    AGENT_RELEASED,
    RUN_ANSWERED,
    RUN_PAUSED,
    STORE_DEGRADED,
    Event,
    Publish,
)
from breakloop.model.verdict import UNANSWERED, PauseState, Verdict
from breakloop.policy.compiled import PauseTerms
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.rules import RunRule
from breakloop.store.keys import escape, window_key
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import (
    ENFORCED,
    LAND_CALLS,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    LimitOp,
    Observation,
    Op,
)

AGENT, CALLER, NAME, RUN = "agent", "caller", "name", "run"  # what a hold applies to
CALLER_AFTER: Final = 3  # number of agents of one caller, within:
CALLER_WITHIN_S: Final = 600.0
HOLDS_MAX: Final = 100_000
BLOCKED_MAX: Final = 10_000  # number of senders whose blocked loops are recorded,
BLOCKED_KEYS_MAX: Final = 256  # and of keys for each of them
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold. `until` is infinite if only an operator ends it."""

    binds: str
    project: str
    caller: str  # "" if an operator named the agent
    agent: str  # "" if the whole caller is held
    since: float
    until: float
    why: str
    run: str = ""  # the run that has reached a limit
    clears: tuple[str, ...] = ()  # keys of the state to clear when the hold ends
    by: str = ""  # the operator who ordered it
    question: Question | None = None  # of a pause
    foreign: bool = False  # made by another instance, which also publishes its end
    lands: bool = False  # the run is asked to finish: `LAND_CALLS` of its LLM requests pass without tools

    @property
    def key(self) -> Key:
        return self.binds, self.project, self.caller, self.run or self.agent

    @property
    def stops(self) -> bool:
        """Whether an operator ordered it to stop what is running, and not to finish or to wait."""
        return bool(self.by) and not self.lands and self.question is None

    @property
    def is_open(self) -> bool:
        """Whether it is a pause that waits for an answer."""
        return self.question is not None and self.question.is_open

    @property
    def grants(self) -> bool:
        """Whether it is a pause whose answer lets calls pass."""
        return self.question is not None and self.question.grants


def hold_key(hold: Hold) -> str:
    """Return the key of a hold's record."""
    return ":".join(map(escape, hold.key))


class HoldStore(Protocol):
    """Persists holds and shares them with other instances."""

    def held(self, hold: Hold) -> None: ...

    def used(self, hold: Hold) -> None:
        """Persist how much of an answer is left. It is shared at once, and on disk soon."""
        ...

    def ended(self, holds: Sequence[Hold], by: str) -> None:
        """Persist that holds ended early. `by` is empty if no operator ended them."""
        ...


class Quarantine:
    """The holds in force in this process. Releasing a sender clears the state that was counted against it."""

    __slots__ = (
        "_blocked", "_drop_keys", "_landed", "_publish", "_recent", "by_key", "on_change", "on_stop", "register",
    )  # fmt: skip

    def __init__(self, drop: Callable[[Sequence[str]], None], publish: Publish) -> None:
        self._drop_keys = drop
        self.register: HoldStore | None = None
        self._publish = publish
        self.on_change: Callable[[Hold], None] | None = None  # called when a hold begins, changes or ends
        self.on_stop: Callable[[], None] | None = None  # called when calls in flight may have to be stopped
        self.by_key: dict[Key, Hold] = {}
        self._landed: dict[Key, int] = {}  # how many requests of a run that is asked to finish have passed
        self._recent: dict[tuple[str, str], list[tuple[float, str]]] = {}  # agents killed, by project and caller
        # By project, caller and agent: the keys in which denied loops were counted, and until when each blocks.
        self._blocked: dict[tuple[str, str, str], dict[str, float]] = {}

    def drop_with(self, drop: Callable[[Sequence[str]], None]) -> None:
        """Replace the function that clears state, for example to also clear a shared store."""
        self._drop_keys = drop

    def __len__(self) -> int:
        return len(self.by_key)

    def find(
        self,
        project: str,
        caller: str,
        agent: str,
        run: Callable[[], str],
        now: float,
        above: Callable[[], Sequence[str]] = tuple,
    ) -> Hold | None:
        """Return the hold that applies to a sender: first by an operator, then on the agent, the caller and the run,
        and last an operator's hold on a run that started it (`above`). A pause whose answer lets calls pass is returned
        only if there is no other hold.
        """
        keys = [(NAME, project, "", agent), (AGENT, project, caller, agent), (CALLER, project, caller, "")]
        if agent != caller:  # an agent without a name is its caller: it cannot end its hold by giving itself a name
            keys += ((NAME, project, "", caller), (AGENT, project, caller, caller))
        held = [hold for key in keys if (hold := self._live(key, now)) is not None]
        found = next((hold for hold in held if not hold.grants), None)
        if found is not None:
            return found
        # Finding the run may require parsing the body, so it comes last.
        of_run = self._live((RUN, project, caller, run()), now)
        if of_run is not None and not of_run.grants:
            return of_run
        holds = [hold for one in above() if (hold := self._live((RUN, project, caller, one), now)) is not None]
        return next((hold for hold in holds if hold.by), None) or of_run or (held[0] if held else None)

    def _live(self, key: Key, now: float) -> Hold | None:
        hold = self.by_key.get(key)
        if hold is None:
            return None
        if hold.until > now:
            return hold if hold.question is None else self._with_default(hold, hold.question, now)
        self._end(hold, now, "its time is over")  # the agent still counts towards a hold on its caller
        return None

    def lands(self, hold: Hold) -> bool:
        """Count a request of a run that is asked to finish. Returns whether it passes."""
        passed = self._landed.get(hold.key, 0)
        self._landed[hold.key] = passed + 1
        return passed < LAND_CALLS

    # -- pauses ------------------------------------------------------------------------------------------------------

    def pause(self, hold: Hold, request_id: str = "") -> Hold:
        """Hold a run and ask a person. A hold that is there already stays. Returns the hold that applies."""
        known = self._live(hold.key, hold.since)
        if known is not None and not known.grants:
            return known
        self._set(hold)
        if self.register is not None:
            self.register.held(hold)
        self._tell_pause(RUN_PAUSED, hold, hold.since, request_id)
        return hold

    def answer(self, hold: Hold, answer: str, now: float, by: str = "") -> Hold:
        """Answer the question of a hold; without `by`, its time is over. Returns the hold with the answer."""
        assert hold.question is not None  # noqa: S101 - checked by the caller
        question, until = hold.question.answered(answer, by, now)
        made = replace(hold, question=question, until=until, clears=hold.clears if answer == DENY else ())
        ours = by or not hold.foreign
        if ours:
            self._tell_pause(RUN_ANSWERED, made, now)
        if answer == KILL:
            made = replace(hold, question=None, since=now, until=math.inf, by=by)
            self._put(made)
            return made
        self._set(made)
        if ours and self.register is not None:
            self.register.held(made)
        if question.grants:
            self._clear(hold, now)
        return made

    def use(self, hold: Hold, now: float, amount: int = 1) -> None:
        """Count a call that passes because of an answer, or what it has cost, in micro-dollars."""
        question = hold.question
        if question is None or not question.left or self.by_key.get(hold.key) is not hold:
            return
        left = max(0, question.left - amount)
        if left or question.answer == LAND:
            made = replace(hold, question=replace(question, left=left))
            self._set(made)
            if self.register is not None:
                self.register.used(made)
            return
        if self.register is not None:
            self.register.ended([hold], "")
        self._end(hold, now, "")

    @property
    def paused(self) -> int:
        """The number of runs that wait for an answer."""
        return sum(hold.is_open for hold in self.by_key.values())

    def pauses(self, now: float) -> list[Hold]:
        """Return the runs that wait for an answer, the oldest first."""
        self.sweep(now)
        return [hold for hold in self.by_key.values() if hold.is_open]

    def _with_default(self, hold: Hold, question: Question, now: float) -> Hold:
        """Return a pause after its default was applied, if it is due."""
        due = question.is_open and question.due <= now
        return self.answer(hold, DEFAULTS[question.then], now) if due else hold

    def _tell_pause(self, name: str, hold: Hold, now: float, request_id: str = "") -> None:
        question = hold.question
        assert question is not None  # noqa: S101 - only called for pauses
        data: dict[str, object] = {
            "id": question.id,
            "agent": hold.agent,
            "caller": hold.caller,
            "session": hold.run.removeprefix(f"{hold.caller}|"),
            "reason": hold.why,
        }
        if question.is_open:
            data |= {"answer_by": question.due, "then": question.then}
        else:
            data |= {"answer": question.answer, "by": question.by}
        self._publish(Event(name, now, data, hold.project, request_id))

    # -- holds -------------------------------------------------------------------------------------------------------

    def hold(self, hold: Hold) -> None:
        """Hold an agent. After three agents of one caller within ten minutes, the caller is held as well."""
        self._put(hold)
        if hold.binds != AGENT or hold.by:
            return
        recent = self._count(hold)
        if len(recent) >= CALLER_AFTER:
            within = f"within {CALLER_WITHIN_S / 60:g} minutes"
            why = f"{len(recent)} of its agents were stopped {within}; the last: {hold.why}"
            self._put(Hold(CALLER, hold.project, hold.caller, "", hold.since, hold.until, why))

    def adopt(self, hold: Hold, *, foreign: bool) -> None:
        """Apply a hold that was made before a restart or by another instance and is already published and persisted."""
        self._set(replace(hold, foreign=foreign))
        if hold.binds == AGENT and not hold.by and hold.question is None:
            self._count(hold)

    def blocked(self, who: tuple[str, str, str], keys: Mapping[str, float]) -> None:
        """Record the keys that block a sender (project, caller, agent) without a hold, and until when each of them
        blocks.
        """
        known = self._blocked.pop(who, None) or {}
        for key, until in keys.items():
            known.pop(key, None)
            known[key] = until
        while len(known) > BLOCKED_KEYS_MAX:
            del known[next(iter(known))]
        self._blocked[who] = known
        if len(self._blocked) > BLOCKED_MAX:
            del self._blocked[next(iter(self._blocked))]

    def unblock(
        self, project: str, *, agent: str = "", caller: str = "", now: float, by: str = "", seen: int = 0
    ) -> int:
        """Clear the loop state of an agent (of one caller or of all) or of a caller, in this process and, if ordered by
        an operator, on all instances. Returns the number of loops that were blocked; `seen` is a number known from
        elsewhere.
        """
        loops = max(seen, self._unblock(project, agent, caller, now))
        if by:
            why = "released: its loops were cleared"
            binds = (AGENT if caller else NAME) if agent else CALLER
            order = Hold(binds, project, caller, agent, now, math.inf, why, by=by)
            if self.register is not None:
                self.register.ended([order], by)
            if loops:
                self._tell(AGENT_RELEASED, order, now, why, by)
        return loops

    def _unblock(self, project: str, agent: str, caller: str, now: float) -> int:
        found = [who for who in self._blocked if who[0] == project and agent in {"", who[2]} and caller in {"", who[1]}]
        keys = {key: until for who in found for key, until in self._blocked.pop(who).items()}
        if keys:
            self._drop(tuple(keys), project, now)
        return sum(until > now for until in keys.values())

    def forget(self, key: Key, now: float) -> None:
        """End a hold that another instance has ended and published."""
        binds, project, caller, last = key
        if binds != RUN:
            self._unblock(project, last, caller, now)
        hold = self.by_key.pop(key, None)
        if hold is not None:
            self._landed.pop(key, None)
            self._recent.pop((hold.project, hold.caller), None)
            self._clear(hold, now)
            self._changed(hold)

    def _count(self, hold: Hold) -> list[tuple[float, str]]:
        """Return the agents of the same caller that were stopped recently, including this one."""
        who = (hold.project, hold.caller)
        recent = [one for one in self._recent.get(who, ()) if one[0] > hold.since - CALLER_WITHIN_S]
        recent = [one for one in recent if one[1] != hold.agent] + [(hold.since, hold.agent)]
        self._recent[who] = recent
        if len(self._recent) > HOLDS_MAX:
            del self._recent[next(iter(self._recent))]
        return recent

    def _put(self, hold: Hold) -> None:
        known = self.by_key.get(hold.key)
        # The latest order of an operator always applies.
        if known is not None and known.until >= hold.until and not hold.by:
            return
        self._set(hold)
        if self.register is not None:
            self.register.held(hold)
        self._tell(AGENT_KILLED, hold, hold.since, hold.why, hold.by)

    def _set(self, hold: Hold) -> None:
        if len(self.by_key) >= HOLDS_MAX and hold.key not in self.by_key:
            self._make_room(hold.since)
        self.by_key[hold.key] = hold
        self._landed.pop(hold.key, None)
        self._changed(hold)
        if hold.stops and self.on_stop is not None:
            self.on_stop()

    def _changed(self, hold: Hold) -> None:
        if self.on_change is not None:
            self.on_change(hold)

    def release(
        self, project: str, *, agent: str = "", caller: str = "", run: str = "", now: float, by: str = ""
    ) -> list[Hold]:
        """End the holds on an agent (of one caller or of all), on a caller or on a run. Returns the ended holds."""
        ended = [
            hold
            for hold in self.by_key.values()
            if hold.project == project
            and (not agent or hold.agent == agent)
            and (not caller or hold.caller == caller)
            and (not run or hold.run == run)
        ]
        if ended and self.register is not None:
            self.register.ended(ended, by)
        for hold in ended:
            self._recent.pop((hold.project, hold.caller), None)
            self._end(hold, now, "released", by)
        return ended

    def sweep(self, now: float) -> None:
        """End expired holds, including those of senders that make no more requests."""
        for key in [key for key, hold in self.by_key.items() if hold.until <= now or hold.question is not None]:
            self._live(key, now)

    def step(self, step_s: float) -> None:
        """Move along with a step of the clock: a hold lasts as long as it was meant to."""
        for key, hold in self.by_key.items():
            if hold.until != math.inf:
                question = hold.question and replace(hold.question, due=hold.question.due + step_s)
                since, until = hold.since + step_s, hold.until + step_s
                self.by_key[key] = replace(hold, since=since, until=until, question=question)
        for recent in self._recent.values():
            recent[:] = [(at + step_s, agent) for at, agent in recent]
        for keys in self._blocked.values():
            keys.update([(key, until + step_s) for key, until in keys.items()])

    def holds(self, now: float) -> list[Hold]:
        """Return the holds that deny requests."""
        return [hold for hold in self.by_key.values() if hold.until > now and not hold.grants]

    def _end(self, hold: Hold, now: float, how: str, by: str = "") -> None:
        del self.by_key[hold.key]
        self._landed.pop(hold.key, None)
        self._clear(hold, now)
        if (by or not hold.foreign) and how:
            self._tell(AGENT_RELEASED, hold, now, how, by)
        self._changed(hold)

    def _clear(self, hold: Hold, now: float) -> None:
        self._drop(hold.clears, hold.project, now)

    def _drop(self, keys: Sequence[str], project: str, now: float) -> None:
        try:
            self._drop_keys(keys)
        except StateError as error:  # the state that was counted against the sender expires by itself
            self._publish(Event(STORE_DEGRADED, now, {"error": str(error)}, project))

    def _make_room(self, now: float) -> None:
        """Make room when many invented names fill the table: remove expired holds, or else the oldest that no operator
        made.
        """
        over = [key for key, hold in self.by_key.items() if hold.until <= now]
        oldest = next((key for key, hold in self.by_key.items() if not hold.by), next(iter(self.by_key)))
        if not over and self.register is not None:
            self.register.ended([self.by_key[oldest]], "")
        for key in over or [oldest]:
            del self.by_key[key]
            self._landed.pop(key, None)

    def _tell(self, name: str, hold: Hold, now: float, why: str, by: str) -> None:
        data: dict[str, object] = {
            "binds": hold.binds,
            "agent": hold.agent,
            "caller": hold.caller,
            "reason": why,
            "expires_at": None if hold.until == math.inf else hold.until,
            "by": by,
        }
        self._publish(Event(name, now, data, hold.project))


def held(hold: Hold, now: float) -> Verdict:
    """Return the denial for a held sender."""
    if hold.question is not None:
        return _paused(hold, hold.question, now)
    end = "A person has to release it." if hold.until == math.inf else f"It ends in {math.ceil(hold.until - now)} s."
    if hold.binds == RUN and hold.by:
        what = "asked to finish" if hold.lands else "stopped"
        verdict = denial("agent_quarantined", 429, f"This agent was {what} with its tree: {hold.why}. {end}")
    elif hold.binds == RUN:
        verdict = denial("run_limit_exceeded", 429, f"This run has reached its ceiling: {hold.why}. {end}")
    else:
        what = "This caller" if hold.binds == CALLER else f'Agent "{hold.agent}"'
        verdict = denial("agent_quarantined", 429, f"{what} is quarantined: {hold.why}. {end}")
    verdict.rule = f"quarantine/{hold.binds}"
    verdict.retry_after_s = None if hold.until == math.inf else math.ceil(hold.until - now)
    verdict.never = True
    return verdict


def _paused(hold: Hold, question: Question, now: float) -> Verdict:
    """Return the denial for a run that waits for an answer, or that nobody let go on."""
    if question.is_open:
        verdict = denial(PAUSED, 429, "")
        wait_s = max(1, math.ceil(question.due - now))
        verdict.retry_after_s = min(wait_s, ASK_AGAIN_S)
        asked = "A person was asked whether it may go on: send the same again later, or wait."
        end = f"Without an answer within {duration(wait_s)}, {UNANSWERED[question.then]}."
        verdict.message = f"This run is paused: {_sentence(hold.why)} {asked} {end}"
    elif question.answer == LAND:
        verdict = denial("agent_quarantined", 429, "This run had to finish, and has made its last calls.")
        verdict.never = True
    else:
        why = f"This run is paused: {_sentence(hold.why)} Nobody answered in time.{_RELEASE}"
        verdict = denial(PAUSED, 429, why)
        verdict.never = True
    verdict.rule = "pause"
    if verdict.reason == PAUSED:
        verdict.pause = PauseState(hold.key, question.hold_open_s if question.is_open else 0.0)
    return verdict


def _sentence(why: str) -> str:
    return why if why.endswith(".") else f"{why}."


_RELEASE: Final = " A person has to release it."


class HoldRules:
    """Evaluates denials."""

    __slots__ = ("_quarantine", "_who")

    def __init__(self, quarantine: Quarantine, descriptors: Descriptors) -> None:
        self._quarantine = quarantine
        self._who = descriptors

    def denied(self, call: Call, ops: Sequence[Op], done: CommitResult, verdict: Verdict, now: float) -> None:
        """Hold the sender of a denied call if the denial requires it."""
        op = ops[done.denied_at]
        match op:
            case Deny():
                if isinstance(op.owner, RunStepsLimit):
                    self._hold_run(call, op.owner.owner(call), op.owner.why, (), now)
            case ChargeBudget():
                reached = op.rule.reached(ops, done) if isinstance(op.rule, RunRule) else None
                if reached is not None and isinstance(op.rule, RunRule):
                    self._hold_run(call, op.rule.owner(call), *reached, now)
                    verdict.message += _RELEASE
            case CountFingerprint():
                if verdict.loop is not None and verdict.loop.action == "kill":
                    self._hold_agent(call, op, verdict, now)
            case LimitOp() | Observation():
                pass
            case _:
                assert_never(op)

    def blocked(
        self, call: Call, ops: Sequence[Op], done: CommitResult, windows: Sequence[str], now: float
    ) -> tuple[str, ...]:
        """Record the keys in which a call that was denied for a loop was counted, and return them. Releasing the sender
        clears them all, so that another detector that also counted the loop does not deny the next request. `windows`
        are the windows that the call was evaluated with.
        """
        keys = dict.fromkeys(windows, 0.0)
        for op, result in zip(ops, done.results, strict=True):
            if isinstance(op, CountFingerprint) and op.group == ENFORCED:
                keys[op.key] = now + result.wait_s if isinstance(result, FingerprintCount) and result.tripped else 0.0
                if op.spec.land_calls:
                    keys[op.landed_key] = 0.0
        self._quarantine.blocked((call.identity.project, self._who.caller(call), self._who.agent(call)), keys)
        return tuple(keys)

    def pause(self, call: Call, why: str, clears: tuple[str, ...], terms: PauseTerms, now: float) -> Hold:
        """Hold the run of a call, or the agent if the call has no session, and ask a person. `clears` are the keys of
        what was counted against it.
        """
        caller, agent, run = self._who.caller(call), self._who.agent(call), self._who.window(call)
        due = now + terms.answer_within_s
        question = Question(secrets.token_hex(6), due, terms.then, terms.hold_open_s)
        binds, project, until = RUN if run else AGENT, call.identity.project, due + KEPT_S
        hold = Hold(binds, project, caller, agent, now, until, why, run, clears, question=question)
        return self._quarantine.pause(hold, call.request_id)

    def _hold_run(self, call: Call, owner: str, why: str, accounts: tuple[str, ...], now: float) -> None:
        """Hold a run. Releasing it clears its window, so that a new run begins whichever limit was reached."""
        clears = (window_key(f"{call.identity.shard or escape(call.identity.project)}:{owner}"), *accounts)
        caller, agent, run = self._who.caller(call), self._who.agent(call), self._who.window(call)
        self._quarantine.hold(Hold(RUN, call.identity.project, caller, agent, now, math.inf, why, run, clears))

    def _hold_agent(self, call: Call, op: CountFingerprint, verdict: Verdict, now: float) -> None:
        loop, seconds = verdict.loop, op.owner.config.quarantine_s
        why = f"{loop.kind} loop ({loop.evidence})" if loop is not None else ""
        until = now + seconds if seconds else math.inf
        clears = (op.key, *op.owner.window_keys, *[key for key, _ in state_of(call).windows or ()])
        caller, agent = self._who.caller(call), self._who.agent(call)
        self._quarantine.hold(Hold(AGENT, call.identity.project, caller, agent, now, until, why, clears=clears))
