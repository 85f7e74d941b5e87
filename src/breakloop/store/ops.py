"""Operations on state, as data: detectors and limiters plan them, a store carries them out in one commit.

Every operation belongs to a `group`. Group 0 is enforced. Each shadow policy has a group of its own, so that a denial
it would have made stops its own charges and no others. The specification of an operation (`FingerprintSpec`,
`BucketSpec`, ...) is built once, when a bundle is compiled; only the key and the cost are built for each request.

An operation names the object that planned it, so that its result can be turned into a verdict: the detector of a count
(`LoopSource`), the rule and the limiter of a charge (`RuleRef`, `ChargeLimiter`), the source of a denial
(`DenialSource`). Stores never read it.

A commit runs in the order of its operations:
1. If it carries windows and the version of one has changed, nothing is written, and all changed windows are returned.
2. `CountFingerprint` always counts, unless it joins a request in flight. If it trips and its spec denies, its group is
   denied. `Deny` denies its group, `Observation` does nothing. The other operations run only while their group is not
   denied.
3. `TakeTokens` and `ChargeBudget` are checked; if too little is left, their group is denied. `CheckBreaker` counts even
   if the request is denied later; an open breaker denies its group.
4. If group 0 is not denied, everything that was checked is charged, except for denied groups: all or nothing.
   In the same way each tracked `CountFingerprint` that was counted and did not trip starts a flight.
5. The windows are written.
The keys of one commit are distinct. The caller passes the time, or the store uses its own where many callers share it.
Time may go backwards; then nothing refills and nothing expires.

`Op` is a closed union of final classes. Code that treats kinds of operations differently uses `match`, or
`type(op) is` where it runs for every request, and ends in `assert_never`: mypy then reports every place that does not
handle a new kind. Measured per operation: `match` 0.15 us, `type(op) is` 0.08 us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar, assert_never, final

from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, LoopFinding, Verdict

ENFORCED = 0
FLIGHT_S: Final = 1.0  # how long after its start other requests may join one that has no answer yet
JOINED: Final = -1  # `FingerprintCount.flight` of a request that joined another

# How long a detected loop is blocked by default: the first time, the factor for each further time, and at most.
COOLDOWN_S: Final = 30
COOLDOWN_GROWTH: Final = 2.0
COOLDOWN_MAX_S: Final = 900


# -- who planned an operation: what turning its result into a verdict needs -------------------------------------------


class DetectorTerms(Protocol):
    """The settings of a detector that verdicts and events name."""

    @property
    def policy(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def quarantine_s(self) -> int: ...


class LoopSource(Protocol):
    """The detector of a `CountFingerprint`, or the loop that a detector found in one call."""

    @property
    def config(self) -> DetectorTerms: ...
    @property
    def window_keys(self) -> tuple[str, ...]:
        """Keys beside the count that a release has to drop."""
        ...

    def finding(self, op: CountFingerprint, result: FingerprintCount) -> LoopFinding:
        """Describe a count that tripped."""
        ...

    def note(self, loop: LoopFinding) -> str:
        """Return the sentence for a model that is steered."""
        ...

    def delay_ms(self, count: int) -> int:
        """Return the delay of a throttled request."""
        ...

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent, as events name them."""
        ...


class ObservedLoop(Protocol):
    """The loop behind an `Observation`."""

    @property
    def config(self) -> DetectorTerms: ...
    @property
    def action(self) -> str: ...
    @property
    def hits(self) -> int: ...

    def finding(self, op: Observation, result: FingerprintCount) -> LoopFinding:
        """Describe the loop."""
        ...

    def note(self, loop: LoopFinding) -> str:
        """Return the sentence for a model that is steered."""
        ...

    def delay_ms(self, count: int) -> int:
        """Return the delay of a throttled request."""
        ...

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent, as events name them."""
        ...


class DenialSource(Protocol):
    """What denies a call without looking at any state."""

    @property
    def denial_reason(self) -> str: ...
    @property
    def denied_by(self) -> tuple[str, str]:
        """Policy and rule, for records."""
        ...

    def describe_denial(self, call: Call, verdict: Verdict) -> None:
        """Set status, policy, rule and message."""
        ...


class DeniedElsewhere:
    """The owner of a `Deny` that repeats, in another commit, what an operation has found."""

    denial_reason = ""
    denied_by = ("", "")

    def describe_denial(self, call: Call, verdict: Verdict) -> None:
        raise NotImplementedError("the operation that denied describes the denial")


DENIED_ELSEWHERE: Final = DeniedElsewhere()


class RuleRef(Protocol):
    """The rule of a charge, as verdicts and events name it."""

    @property
    def policy(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> int: ...


class ActualUse(NamedTuple):
    """What a call has used, according to its answer."""

    tokens: int = 0
    microusd: int = 0


class BudgetStage(NamedTuple):
    """A stage of a budget: `action` applies once `units` are used."""

    percent: float
    action: str  # "warn", "throttle" or "reject"
    delay_ms: int
    units: int

    @property
    def warning(self) -> str:
        """What the client sees: `budget_warn` or `budget_throttle`."""
        return f"budget_{self.action}"


_OpT_contra = TypeVar("_OpT_contra", contravariant=True)
_ResultT_contra = TypeVar("_ResultT_contra", contravariant=True)


class ChargeLimiter(Protocol[_OpT_contra, _ResultT_contra]):
    """Interprets the result of one kind of charge."""

    @property
    def needs(self) -> str:
        """What it needs of an estimate: nothing (""), "tokens" or "microusd"."""
        ...

    @property
    def renews(self) -> bool:
        """Whether what was used comes back with time; only such limits appear in the `RateLimit` fields."""
        ...

    def reason_for(self, op: _OpT_contra) -> str:
        """Return the reason of a denial, for records."""
        ...

    def describe_denial(self, op: _OpT_contra, result: _ResultT_contra, now: float, verdict: Verdict) -> None:
        """Set reason, message, when to retry (or `never`) and the state of the limit."""
        ...

    def describe_limit(self, name: str, op: _OpT_contra, result: _ResultT_contra, now: float) -> LimitState:
        """Return the state of the limit after the call, for the `RateLimit` fields."""
        ...

    def adjust(self, op: _OpT_contra, used: ActualUse) -> AdjustCharge | None:
        """Return what the answer adds to the charge or takes from it; None if the charge was right."""
        ...


class BudgetLimiter(ChargeLimiter["ChargeBudget", int], Protocol):
    """A limiter of budgets, which may have stages."""

    def stage_reached(self, op: ChargeBudget, used: int) -> BudgetStage | None:
        """Return the highest stage that was reached."""
        ...

    def crossings(self, op: ChargeBudget, used: int, published: int) -> list[dict[str, object]]:
        """Return the data of `budget.threshold` for each stage reached above `published` units."""
        ...


class BreakerLimiter(Protocol):
    """Interprets the result of a `CheckBreaker`."""

    def reason_for(self, op: CheckBreaker) -> str:
        """Return the reason of a denial, for records."""
        ...

    def describe_denial(self, op: CheckBreaker, result: BreakerResult, now: float, verdict: Verdict) -> None:
        """Set reason, message, when to retry (or `never`) and the state of the limit."""
        ...

    def event_data(self, op: CheckBreaker, result: BreakerResult) -> dict[str, object]:
        """Return the data of `breaker.opened` and `breaker.closed`."""
        ...


# -- operations and their results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FingerprintSpec:
    """How often one fingerprint may come: `limit` pass within `window_s`, the next trips."""

    window_s: float
    limit: int
    sliding: bool = False  # False: the count lives for `window_s` after the last hit
    denies: bool = True  # False: warn and throttle, which never end evaluation
    cooldown_s: float = 0.0  # 0: no cooldown; the count itself keeps blocking
    growth: float = 1.0
    cooldown_max_s: float = 0.0
    concurrent_free: int = 0  # so many tracked ones join one that is in flight, and are not counted
    retry_free: int = 0  # so many counts a window are taken back because the answer failed
    at_once: bool = False  # the first one trips: `limit` is for those after a cooldown

    def next_cooldown_s(self, before_s: float | None) -> float:
        """Return how long the next cooldown is; `before_s` is the last one's length, if it is remembered. The Redis
        script (`commit.lua`) computes the same."""
        return self.cooldown_s if before_s is None else min(before_s * self.growth, self.cooldown_max_s)


def blocked_at_once(
    cooldown_s: float = COOLDOWN_S, growth: float = COOLDOWN_GROWTH, max_s: float = COOLDOWN_MAX_S
) -> FingerprintSpec:
    """A recognised loop is blocked at once; after a cooldown the same passes once, and then the cooldown has grown."""
    return FingerprintSpec(
        window_s=60.0,
        limit=1,
        sliding=True,
        cooldown_s=cooldown_s,
        growth=growth,
        cooldown_max_s=max_s,
        at_once=True,
    )


@final
class CountFingerprint:
    """Count a fingerprint. Always done, whatever else the request meets (SPEC E-4).

    `tracked`: its end will be told (`Settle`), so it may join one that is in flight, or lead a flight itself.
    """

    __slots__ = ("group", "key", "limit", "owner", "spec", "tracked")

    def __init__(
        self,
        spec: FingerprintSpec,
        key: str,
        owner: LoopSource,
        group: int = ENFORCED,
        limit: int = -1,
        tracked: bool = False,  # noqa: FBT001, FBT002 - made per request: names cost
    ) -> None:
        self.spec = spec
        self.key = key
        self.owner = owner
        self.group = group
        self.limit = spec.limit if limit < 0 else limit
        self.tracked = tracked


class FingerprintCount(NamedTuple):
    """How often it has come. `wait_s` is how long it stays blocked from now (0 unless it tripped)."""

    hits: int
    tripped: bool = False
    fresh: bool = False  # tripped just now, and not while cooling down
    wait_s: float = 0.0
    flight: int = 0  # > 0: it leads a flight, the how-manieth of its time; JOINED: it joined one, and `hits` is its


@final
class Settle:
    """Say that a counted request has ended: its flight is over, and if it failed its count is taken back (SPEC LD-6).

    `at` is when it was counted, by the store's time (`CommitResult.at`); `flight` as its `FingerprintCount` says.
    """

    __slots__ = ("at", "flight", "key", "spec")

    def __init__(self, spec: FingerprintSpec, key: str, at: float, flight: int = 0) -> None:
        self.spec = spec
        self.key = key
        self.at = at
        self.flight = flight


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A token bucket: holds `burst`, refills `rate` a second."""

    rate: float
    burst: float


@final
class TakeTokens:
    """Take `cost` tokens, if every limit of the commit allows it.

    Its result is what is left after the charge; less than nothing means denied, and by how much it fell short.
    """

    __slots__ = ("cost", "group", "key", "limiter", "rule", "spec")

    def __init__(
        self,
        spec: BucketSpec,
        key: str,
        cost: float,
        limiter: ChargeLimiter[TakeTokens, float],
        rule: RuleRef,
        group: int = ENFORCED,
    ) -> None:
        self.spec = spec
        self.key = key
        self.cost = cost
        self.limiter = limiter
        self.rule = rule
        self.group = group


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """A budget of one period, in whole units: micro-dollars, tokens, thousandths of a plain cost."""

    budget: int


@final
class ChargeBudget:
    """Charge `cost` to an account whose period `ends`, if every limit of the commit allows it.

    Its result is what is used after the charge; more than the budget means denied, and nothing charged. The key names
    the period, so that a later correction finds the one that was charged. Each charge moves the end of its account to
    `ends`; once that has passed, a charge with a later one begins anew.
    """

    __slots__ = ("cost", "ends", "group", "key", "limiter", "rule", "spec")

    def __init__(
        self,
        spec: BudgetSpec,
        key: str,
        cost: int,
        ends: float,
        limiter: BudgetLimiter,
        rule: RuleRef,
        group: int = ENFORCED,
    ) -> None:
        self.spec = spec
        self.key = key
        self.cost = cost
        self.ends = ends
        self.limiter = limiter
        self.rule = rule
        self.group = group


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """A breaker: opens when `threshold` is reached within a sliding minute."""

    threshold: float
    reset_s: float  # 0: only an operator closes it


@final
class CheckBreaker:
    """Count `amount` into the rate of a key; a rate that reaches the threshold opens it, and open denies.

    The rate is over a sliding minute: this minute of the clock, and of the one before what is still within 60 s. It is
    of what was asked for: who is denied by this breaker's opening, or by a limit behind it, is counted for good (else a
    limit would hide a runaway). Who was denied before it in its group is not, and nobody is while it is open.

    From `reset_s` after its opening the next request is the probe. Its own rate decides at once: below the threshold
    it closes, else it opens again. So there is never more than one, and none whose end has to be waited for.
    """

    __slots__ = ("amount", "group", "key", "limiter", "rule", "spec")

    def __init__(
        self,
        spec: BreakerSpec,
        key: str,
        amount: float,
        limiter: BreakerLimiter,
        rule: RuleRef,
        group: int = ENFORCED,
    ) -> None:
        self.spec = spec
        self.key = key
        self.amount = amount
        self.limiter = limiter
        self.rule = rule
        self.group = group


class BreakerResult(NamedTuple):
    """The state of a breaker for one request. Open denies."""

    open: bool
    rate: float  # spend of the last minute, this request's included where it was counted
    wait_s: float = 0.0  # until its reset; 0 where only an operator closes it, or it is closed
    changed: str = ""  # "opened" or "closed" by this request; only a probe that passes closes


class StoredBreaker(NamedTuple):
    """A breaker as a store keeps it."""

    key: str
    rate: float  # spend of the last minute
    since: float | None  # when it opened, or opened again; None: it is closed


@final
class AdjustCharge:
    """Say what was really used of something that was charged: `amount` more, or less than nothing.

    A bucket that was charged too little may fall below nothing, also from being full again meanwhile, and one that was
    charged too much fills up to its brim. An account does not fall below nothing; one that is gone stays so.
    """

    __slots__ = ("amount", "key", "spec")

    def __init__(self, spec: BucketSpec | BudgetSpec, key: str, amount: float) -> None:
        self.spec = spec
        self.key = key
        self.amount = amount


@final
class Observation:
    """Record a loop that is only reported: it denies nothing, and stays in its position among the operations."""

    __slots__ = ("group", "owner")

    def __init__(self, owner: ObservedLoop, group: int = ENFORCED) -> None:
        self.owner = owner
        self.group = group


@final
class Deny:
    """Deny without looking at any state (a missing descriptor), in its position among the operations."""

    __slots__ = ("group", "owner")

    def __init__(self, owner: DenialSource, group: int = ENFORCED) -> None:
        self.owner = owner
        self.group = group


Charge = TakeTokens | ChargeBudget
Keyed = CountFingerprint | TakeTokens | ChargeBudget | CheckBreaker  # operations that read or write state
Op = Keyed | Deny | Observation
Result = FingerprintCount | BreakerResult | float | int | None  # None: skipped, its group had been denied


def denies(op: Op, result: Result) -> bool:
    """Whether this result denies the group of its operation."""
    match op:
        case Deny():
            return True
        case Observation():
            return False
        case CountFingerprint():
            return isinstance(result, FingerprintCount) and result.tripped and op.spec.denies
        case TakeTokens():
            return isinstance(result, float) and result < 0
        case ChargeBudget():
            return isinstance(result, int) and result > op.spec.budget
        case CheckBreaker():
            return isinstance(result, BreakerResult) and result.open
        case _:
            assert_never(op)


class StoredWindow(NamedTuple):
    """A packed session window and the version it was read at. Version 0: there is none yet."""

    version: int
    data: bytes


class WindowWrite(NamedTuple):
    """Write `data` if the window still has `version`; otherwise the whole commit changes nothing.

    Without data nothing is written: the decision goes by a copy of this window, which has to be the newest.
    """

    key: str
    version: int
    data: bytes | None
    ttl_s: float
    first: int = 1  # its version where there was none: where copies are kept, one that no earlier window had

    @property
    def becomes(self) -> int:
        """The version that is written."""
        return self.version + 1 if self.version else self.first


@dataclass(slots=True)
class CommitResult:
    """What a commit did. `denied_at` is the index of the first enforced denial, or -1."""

    results: list[Result]
    denied_at: int = -1
    conflict: dict[str, StoredWindow] | None = None  # windows that moved on, as they are now; nothing was changed
    at: float = field(default=0.0, compare=False)  # when, by the store's time: for `Settle`


class Store(Protocol):
    """Synchronous form, for stores that do no I/O."""

    def commit(self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = ()) -> CommitResult:
        """Carry out `ops` and write `windows`, all in one; see the module's contract."""
        ...

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Say that requests have ended; return how many counts were taken back.

        A flight is open to tracked requests of its key for `FLIGHT_S`, until its leader is settled, the key is
        detected (cooldown), or `concurrent_free` have joined. Who joins is not counted and has the leader's count as
        its result; the next one counts and may lead the next flight.

        A failed one's count is taken back, once, if it is still in the window, no detection has used it up, and fewer
        than `retry_free` of its key were taken back within `window_s`. No cooldown is undone.
        """
        ...

    def correct(self, ops: Sequence[AdjustCharge], now: float) -> None:
        """Correct what was charged (SPEC L-3), each for itself and in any order; see `AdjustCharge`."""
        ...

    def read_window(self, key: str, now: float) -> StoredWindow:
        """Return the session window under `key`, with version 0 if there is none."""
        ...

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        """Return up to `most` breakers whose key begins with `prefix`: open ones first, by key; then, in any order,
        closed ones with a rate. May walk everything: for operators, not for requests."""
        ...

    def drop(self, keys: Sequence[str]) -> None:
        """Drop what is kept under these very keys."""
        ...

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many."""
        ...


class RemoteStore(Protocol):
    """The same over a connection. Nothing here waits: each call returns at once, and `then` gets the result, or the
    `StateError` in its place, exactly once and on the event loop. Time is the store's own.

    What was sent may be carried out though its answer never comes: nothing is sent twice that charges or counts.
    """

    def commit(
        self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: Callable[[CommitResult | StateError], None]
    ) -> None:
        """Carry out `ops` and write `windows`, all in one; `CommitResult.at` is the store's time."""
        ...

    def read_windows(self, keys: Sequence[str], then: Callable[[list[StoredWindow] | StateError], None]) -> None:
        """Read several windows in one round trip, in the order of their keys."""
        ...

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        """Say that requests have ended; `then` gets how many counts were taken back."""
        ...

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None:
        """Correct what was charged."""
        ...

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None:
        """Drop what is kept under these very keys."""
        ...

    def note(self, key: str, value: str, ttl_s: float) -> None:
        """Keep a text for others to find. Nobody waits for it, and it may be lost."""
        ...

    def recall(self, key: str, then: Callable[[str | StateError], None]) -> None:
        """Return what somebody noted, or ""."""
        ...

    def breakers(self, prefix: str, most: int, then: Callable[[list[StoredBreaker] | StateError], None]) -> None:
        """Find breakers whose key begins with `prefix`, open ones first: for operators, not for requests."""
        ...

    def probe(self, then: Callable[[StateError | None], None]) -> None:
        """Find out whether the store answers and takes writes."""
        ...

    def forget(self, prefix: str, then: Callable[[int | StateError], None]) -> None:
        """Drop every key that begins with `prefix`: for operators, not for requests."""
        ...
