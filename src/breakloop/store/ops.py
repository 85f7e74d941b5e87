"""Operations on state, as data: detectors and limiters plan them, a store executes them in one commit.

Every operation belongs to a `group`. Group 0 is enforced. Each shadow policy has a group of its own, so that a denial
in shadow stops only the charges of its own policy. The specification of an operation (`FingerprintSpec`,
`BucketSpec`, ...) is built once, when a bundle is compiled; only the key and the cost are built for each request.

An operation names the object that planned it, so that its result can be turned into a verdict: the detector of a count
(`LoopSource`), the rule and the limiter of a charge (`RuleRef`, `limit_ops.OpLimiter`), the source of a denial
(`DenialSource`). Stores never read it.

A commit runs in the order of its operations:
1. If it carries windows and the version of one has changed, nothing is written, and all changed windows are returned.
2. `CountFingerprint` always counts, unless it joins a request in flight. If it trips and its spec denies, its group is
   denied, unless it is mixed (`is_mixed`) or landed (`FingerprintSpec.land_calls`). `Deny` denies its group,
   `Observation` does nothing. The other operations run only while their group is not denied.
3. `TakeTokens` and `ChargeBudget` are checked; if too little is left, their group is denied. `CheckBreaker` counts even
   if the request is denied later; an open breaker denies its group.
4. If group 0 is not denied, everything that was checked is charged, except for denied groups: all or nothing.
   In the same way each tracked `CountFingerprint` that was counted and did not trip starts a flight.
5. The windows are written.
The keys of one commit are distinct. The caller passes the time, which does not step; or the store uses its own where
many callers share it. If that clock is set back, what is stored continues from where it was: nothing refills twice, and
nothing lasts longer.

`Op` is a closed union. Code that treats its members differently uses `match`, or `type(op) is` where it runs for every
request, and ends in `assert_never`: mypy then reports every place that does not handle a new member. Measured per
operation: `match` 0.15 us, `type(op) is` 0.08 us. The operations of limiters are one member, `LimitOp`: what differs
between its kinds is in their classes (`limit_ops`), so that a new kind changes no other code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, TypeVar, assert_never, final

import msgspec

from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.model.verdict import LoopFinding, Verdict

if TYPE_CHECKING:
    from breakloop.store.memory import Entry, ExpiringTable

ENFORCED = 0
FLIGHT_S: Final = 1.0  # how long other requests may join a request that has no response yet
JOINED: Final = -1  # value of `FingerprintCount.flight` for a request that joined another

# Default cooldown of a detected loop: the first one, the growth factor for each further one, and the maximum.
COOLDOWN_S: Final = 30
COOLDOWN_GROWTH: Final = 2.0
COOLDOWN_MAX_S: Final = 900

LAND_CALLS: Final = 2  # default of how many calls of a session are landed before they are denied
LANDED_S: Final = 3600.0  # how long landed calls are counted, from the last one on; `commit.lua` has the same


# -- sources of operations: needed to turn a result into a verdict ----------------------------------------------------


class DetectorTerms(Protocol):
    """The settings of a detector that appear in verdicts and events."""

    @property
    def kind(self) -> str: ...
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


class FoundLoop(Protocol):
    """The description of a loop, however it was found."""

    @property
    def config(self) -> DetectorTerms: ...

    def note(self, loop: LoopFinding) -> str:
        """Return the sentence that is added for the model when the action is `steer`."""

    def delay_ms(self, count: int) -> int:
        """Return the delay of a throttled request."""

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent as they appear in events."""


class LoopSource(FoundLoop, Protocol):
    """The detector of a `CountFingerprint`, or the loop that a detector found in one call."""

    @property
    def window_keys(self) -> tuple[str, ...]:
        """Keys other than the count that a release has to drop."""

    def finding(self, op: CountFingerprint, result: FingerprintCount) -> LoopFinding: ...


class ObservedLoop(FoundLoop, Protocol):
    """The loop behind an `Observation`."""

    @property
    def action(self) -> str: ...
    @property
    def hits(self) -> int: ...

    def finding(self, op: Observation, result: FingerprintCount) -> LoopFinding: ...


class DenialSource(Protocol):
    """The source of a denial that depends on no state."""

    @property
    def denial_reason(self) -> str: ...
    @property
    def denied_by(self) -> tuple[str, str]: ...

    def describe_denial(self, call: Call, verdict: Verdict) -> None:
        """Set status, policy, rule and message of the denial."""


class DeniedElsewhere:
    """The source of a `Deny` that repeats the outcome of an operation in another commit."""

    denial_reason = ""
    denied_by = ("", "")

    def describe_denial(self, call: Call, verdict: Verdict) -> None:
        raise NotImplementedError("the operation that denied describes the denial")


DENIED_ELSEWHERE: Final = DeniedElsewhere()


class RuleRef(Protocol):
    """The rule of a charge, as it appears in verdicts and events."""

    policy: str
    name: str
    status: int


class ActualUse(NamedTuple):
    """The actual usage of a call, taken from its response."""

    tokens: int = 0
    microusd: int = 0


# -- operations and their results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FingerprintSpec:
    """How often a fingerprint may occur: `limit` requests pass within `window_s`, the next one trips."""

    window_s: float
    limit: int
    sliding: bool = False  # False: the count expires `window_s` after the last hit
    denies: bool = True  # False for warn and throttle, which never end evaluation
    cooldown_s: float = 0.0  # 0: no cooldown; the count itself keeps blocking
    growth: float = 1.0
    cooldown_max_s: float = 0.0
    concurrent_free: int = 0  # how many tracked requests may join one in flight without being counted
    retry_free: int = 0  # how many counts per window are taken back because the response failed
    at_once: bool = False  # the first hit trips; `limit` applies after a cooldown
    land_calls: int = 0  # how many that trip are landed, for each `CountFingerprint.landed_key`, before one is denied

    def next_cooldown_s(self, before_s: float | None) -> float:
        """Return the length of the next cooldown. `before_s` is the length of the previous one, if it is still stored.
        `commit.lua` computes the same.
        """
        return self.cooldown_s if before_s is None else min(before_s * self.growth, self.cooldown_max_s)


def blocked_at_once(
    cooldown_s: float = COOLDOWN_S, growth: float = COOLDOWN_GROWTH, max_s: float = COOLDOWN_MAX_S
) -> FingerprintSpec:
    """Return the spec for a loop that is already recognised: it is blocked on the first hit. After each cooldown one
    request passes, and the next cooldown is longer.
    """
    return FingerprintSpec(
        window_s=60.0, limit=1, sliding=True, cooldown_s=cooldown_s, growth=growth, cooldown_max_s=max_s, at_once=True
    )


@final
class CountFingerprint(msgspec.Struct, eq=False, gc=False):
    """Count a fingerprint. It is counted even if another operation denies the request.

    `tracked` means that the end of the request will be reported with `Settle`, so that it may join a request in
    flight or lead a flight.

    `traffic` is the key of what the sender sent lately. Each count adds the end of its own key to it. A request that is
    an `opening` and trips in mixed traffic is reported and not blocked.

    `landed_key` is the key under which landed calls are counted. It is only set where the spec lands calls.
    """

    spec: FingerprintSpec
    key: str
    owner: LoopSource
    group: int = ENFORCED
    own_limit: int = -1  # instead of that of the spec; -1: none
    tracked: bool = False
    traffic: str = ""
    opening: bool = False
    landed_key: str = ""

    @property
    def limit(self) -> int:
        """How many requests pass."""
        return self.spec.limit if self.own_limit < 0 else self.own_limit

    def within(self, traffic: str, *, opening: bool = False) -> CountFingerprint:
        """Set the key of the sender's traffic, and whether the request is an opening; return the operation itself."""
        self.traffic, self.opening = traffic, opening
        return self

    def landing(self, key: str) -> CountFingerprint:
        """Set the key under which landed calls are counted; return the operation itself."""
        self.landed_key = key
        return self


MARK: Final = 8  # characters at the end of a key, which stand for it in the traffic of a sender
TRAFFIC_MARKS: Final = 18  # how many of the last requests of a sender are kept


def is_mixed(marks: str, limit: int) -> bool:
    """Tell whether a sender sends many different requests: more than a third of its last ones (`marks`, the newest at
    the end) differ from each other, and the last `limit` + 1 are not all the same. `commit.lua` computes the same.
    """
    in_a_row = marks[-MARK:] * min(limit + 1, TRAFFIC_MARKS)
    if marks.endswith(in_a_row):
        return False
    different = {marks[at : at + MARK] for at in range(0, len(marks), MARK)}
    return len(different) * 3 * MARK > len(marks)


class FingerprintCount(NamedTuple):
    """The count of a fingerprint. `wait_s` is how long it stays blocked from now (0 unless it tripped)."""

    hits: int
    tripped: bool = False
    fresh: bool = False  # tripped by this request, not by a running cooldown
    wait_s: float = 0.0
    flight: int = 0  # > 0: leads a flight, with this number; JOINED: joined one, and `hits` is the leader's count
    mixed: bool = False  # tripped by an opening in mixed traffic: reported, and neither denied nor blocked from now on
    landed: int = 0  # > 0: tripped, and landed instead of denied, as this many calls by now; nothing is blocked


# Most counts are small and do not trip, so their results are shared.
SMALL_COUNTS: Final = tuple(FingerprintCount(count) for count in range(64))


@final
class Settle(msgspec.Struct, eq=False, gc=False):
    """Report the end of a counted request: its flight ends, and if it failed its count is taken back.

    `at` is the time of the count by the store's clock (`CommitResult.at`); `flight` is copied from its
    `FingerprintCount`.
    """

    spec: FingerprintSpec
    key: str
    at: float
    flight: int = 0


Tables = Mapping[str, "ExpiringTable"]  # the state of limiters in memory, by the names of their tables
Change = tuple[int, "ExpiringTable", str, "Entry"]  # an entry to write if the request passes: group, table, key, entry


@final
class BucketRows(msgspec.Struct, frozen=True, gc=False):
    """What some `TakeTokens` do together, and what that leaves of buckets that are all full, as most are."""

    keys: tuple[str, ...]
    buckets: tuple[tuple[float, float, float], ...]  # rate, burst and cost
    full: Sequence[tuple[str, float, float]]  # key, tokens left, and the seconds until the bucket is full again
    lefts: Sequence[float]
    tightest: int  # the index of the one with the smallest share left
    unsaved: dict[str, None]  # the keys, as `ExpiringTable.dirty` has them


class TableSpec(NamedTuple):
    """A table of the memory store: its name on disk, the type of its entries, and its share of the store's size."""

    name: str
    entry: object
    share: int = 1  # 10: a tenth
    overflow: str = ""  # the table that gets what is evicted from this one


class LimitOp(ABC):
    """An operation of a limiter. Each kind is one class of `limit_ops`.

    It runs only while its group is not denied. If its check fails, its group is denied.
    """

    __slots__ = ("group", "key", "rule")

    number: ClassVar[int]  # of the kind, in the arguments of commit.lua
    lua: ClassVar[str]  # the file of its branch in commit.lua
    tables: ClassVar[tuple[TableSpec, ...]]  # its state in memory

    key: str
    rule: RuleRef
    group: int

    @abstractmethod
    def check(self, tables: Tables, now: float, results: list[Result], changes: list[Change]) -> bool:
        """Execute it in memory: append its result and what it charges; return whether the request passes."""

    @abstractmethod
    def lua_args(self) -> tuple[object, ...]:
        """Return its arguments for commit.lua: its number, its group, and what its branch reads."""

    @abstractmethod
    def decoded(self, value: object) -> Result:
        """Restore the type of a result from Lua, where whole doubles become integers."""

    @abstractmethod
    def denies(self, result: Result) -> bool:
        """Whether this result denies its group."""

    @abstractmethod
    def reason(self) -> str:
        """Return the reason of a denial, for records."""

    @abstractmethod
    def describe_denial(self, result: Result, now: float, verdict: Verdict) -> None:
        """Set the reason, the message, when to retry (or `never`) and the state of the limit."""

    @abstractmethod
    def explain(self, result: Result) -> str:
        """Describe a result for `breakloop explain`."""


class BreakerResult(NamedTuple):
    """The state of a breaker for one request. Open denies."""

    open: bool
    rate: float  # spend of the last minute, including this request if it was counted
    wait_s: float = 0.0  # seconds until the reset; 0 if closed, or if only an operator can close it
    changed: str = ""  # "opened" or "closed" by this request; only a successful probe closes


class StoredBreaker(NamedTuple):
    """A breaker as it is stored."""

    key: str
    rate: float  # spend of the last minute
    since: float | None  # when it last opened; None: it is closed


class StoredAccount(NamedTuple):
    """The account of a budget as it is stored."""

    key: str
    used: int
    ends: float  # by the store's time


class AdjustableSpec(Protocol):
    """The spec of a charge that can be corrected."""

    def correct(self, tables: Tables, op: AdjustCharge, now: float) -> None:
        """Correct a charge in memory."""

    def lua_correction(self, op: AdjustCharge) -> tuple[object, ...]:
        """Return the arguments of correct.lua."""


@final
class AdjustCharge(msgspec.Struct, eq=False, gc=False):
    """Correct a charge to the actual usage: `amount` is the difference, negative for a refund.

    A bucket that was charged too little may become negative (`BucketSpec.lowest` at most), even if it has refilled in
    the meantime; a refund fills it up to `burst` at most. An account does not become negative.
    """

    spec: AdjustableSpec
    key: str
    amount: float
    # An account that no longer exists is created with `known` before the correction, if its period `ends` later.
    known: int = 0
    ends: float = 0.0


@final
class Observation(msgspec.Struct, eq=False, gc=False):
    """Record a loop that is only reported. It denies nothing and keeps its position among the operations."""

    owner: ObservedLoop
    group: int = ENFORCED
    ceiling: str = ""  # it is no loop: a run has nearly reached its ceiling, as this says, and is landed

    def check(self, _tables: Tables, _now: float, results: list[Result], _changes: list[Change]) -> bool:
        results.append(None)
        return True


@final
class Deny(msgspec.Struct, eq=False, gc=False):
    """Deny without reading any state (for example, a missing descriptor), in its position among the operations."""

    owner: DenialSource
    group: int = ENFORCED

    def check(self, _tables: Tables, _now: float, results: list[Result], _changes: list[Change]) -> bool:
        results.append(None)
        return False


Keyed = CountFingerprint | LimitOp  # operations that read or write state
Op = Keyed | Deny | Observation
Result = FingerprintCount | BreakerResult | float | int | None  # None: skipped, because its group was already denied

_ResultT = TypeVar("_ResultT")


def expect(kind: type[_ResultT], result: Result) -> _ResultT:
    """Narrow a result to the type that its operation returns."""
    if not isinstance(result, kind):
        raise TypeError(f"expected {kind.__name__}, not {result!r}")
    return result


def denies(op: Op, result: Result) -> bool:
    """Whether this result denies the group of its operation."""
    match op:
        case Deny():
            return True
        case Observation():
            return False
        case CountFingerprint():
            return (
                isinstance(result, FingerprintCount)
                and result.tripped
                and op.spec.denies
                and not (result.mixed or result.landed)
            )
        case LimitOp():
            return op.denies(result)
        case _:
            assert_never(op)


class StoredWindow(NamedTuple):
    """A packed session window and the version it was read at. Version 0: no window exists yet."""

    version: int
    data: bytes


NO_WINDOW: Final = StoredWindow(0, b"")


class WindowWrite(NamedTuple):
    """Write `data` if the window still has `version`; otherwise the whole commit changes nothing.

    Without data nothing is written, but the version is still checked: the decision was made from a copy of this
    window, which has to be current.
    """

    key: str
    version: int
    data: bytes | None
    ttl_s: float
    first: int = 1  # version of a new window; where copies are cached, one that no earlier window had
    step: int = 1  # between versions; where copies are cached, another one in each process

    @property
    def becomes(self) -> int:
        return self.version + self.step if self.version else self.first


class CommitResult(msgspec.Struct, eq=False, gc=False):
    """The outcome of a commit. `denied_at` is the index of the first enforced denial, or -1."""

    results: list[Result]
    denied_at: int = -1
    conflict: dict[str, StoredWindow] | None = (
        None  # windows with a newer version, as they are now; nothing was changed
    )
    at: float = 0.0  # time of the commit by the store's clock, for `Settle`
    # The index of the token bucket with the smallest share left, if nothing trips or denies, and no other limit counts.
    tightest: int = -1

    def __eq__(self, other: object) -> bool:
        """Compare outcomes, whenever they were committed."""
        if not isinstance(other, CommitResult):
            return NotImplemented
        return (self.results, self.denied_at, self.conflict) == (other.results, other.denied_at, other.conflict)

    __hash__ = None  # type: ignore[assignment]  # it can be changed


class Store(Protocol):
    """The synchronous interface, for stores that do no I/O."""

    def commit(
        self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = (), rows: BucketRows | None = None
    ) -> CommitResult:
        """Execute `ops` and write `windows` atomically; see the module docstring.

        `rows` may be given if there are no windows, the last operations are enforced `TakeTokens`, and all before them
        are counts. They are what these take, so that a store need not look at each operation.
        """

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Report that requests have ended; return how many counts were taken back.

        A flight is open to tracked requests with its key for `FLIGHT_S`, until its leader is settled, the key is
        detected (cooldown), or `concurrent_free` requests have joined. A request that joins is not counted and gets
        the leader's count as its result; the next one is counted and may lead the next flight.

        The count of a failed request is taken back once, if it is still in the window, no detection has consumed it,
        and fewer than `retry_free` counts of its key were taken back within `window_s`. Cooldowns are never undone.
        """

    def correct(self, ops: Sequence[AdjustCharge], now: float) -> None:
        """Correct charges, each independently and in any order; see `AdjustCharge`."""

    def read_window(self, key: str, now: float) -> StoredWindow:
        """Return the session window under `key`, with version 0 if there is none."""

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        """Return up to `most` breakers whose key begins with `prefix`: open ones first, sorted by key, then closed ones
        with a rate in any order. May scan the whole store: for operators, not for requests.
        """

    def accounts(self, prefix: str, now: float, most: int) -> list[StoredAccount]:
        """Return up to `most` accounts that have not ended and whose key begins with `prefix`, the most used first. May
        scan the whole store: for operators, not for requests.
        """

    def drop(self, keys: Sequence[str]) -> None:
        """Drop the entries with exactly these keys."""


class RemoteStore(Protocol):
    """The same operations over a connection. No call blocks: each returns immediately, and `then` is called exactly
    once on the event loop, with the result or a `StateError`. Time is the store's own.

    A command may be executed even if its response never arrives, so commands that charge or count are never sent
    twice.
    """

    def commit(
        self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: Callable[[CommitResult | StateError], None]
    ) -> None:
        """Execute `ops` and write `windows` atomically; `CommitResult.at` is the store's time."""

    def read_windows(self, keys: Sequence[str], then: Callable[[list[StoredWindow] | StateError], None]) -> None:
        """Read several windows in one round trip, in the order of their keys."""

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        """Report that requests have ended; `then` gets how many counts were taken back."""

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None: ...

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None:
        """Drop the entries with exactly these keys."""

    def note(self, key: str, value: str, ttl_s: float) -> None:
        """Store a text for other instances. There is no confirmation, and the text may be lost."""

    def recall(self, key: str, then: Callable[[str | StateError], None]) -> None:
        """Return a text stored with `note`, or ""."""

    def probe(self, then: Callable[[StateError | None], None]) -> None:
        """Check whether the store responds and accepts writes."""
