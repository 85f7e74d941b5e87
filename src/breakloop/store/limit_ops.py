"""The operations of limiters, one class per kind. A class has everything that depends on the kind: what it costs and
denies, its state in memory (`check`, `tables`), and its arguments and its result in Redis (`lua_args`, `decoded`; the
script itself is `redis/lua/limits/NAME.lua`). The engine and the stores only know `ops.LimitOp`.

To add a kind, write its class here with the next free `number` (1, 5 and 6 are in `redis/scripts.py`), add it to
`LIMIT_OPS`, and write its Lua file.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Protocol, Self, TypeVar, final

from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.ops import (
    ENFORCED,
    ActualUse,
    AdjustCharge,
    BreakerResult,
    BucketRows,
    Change,
    LimitOp,
    Op,
    Result,
    RuleRef,
    StoredAccount,
    StoredBreaker,
    Tables,
    TableSpec,
    expect,
)

if TYPE_CHECKING:
    from breakloop.store.memory import Entry

# Tolerance for rounding: a client that waits as long as advised has to pass, and ten charges of 0.1 are 1.
_DUST: Final = 1e-9
_MINUTE_S: Final = 60.0
# How long an account is stored after its end, so that usage is still known if the clock steps back into the period.
_LATE_S: Final = 3600.0
# How long an open breaker is stored after its reset, waiting for a probe; later its entry may be evicted.
_UNASKED_S: Final = 86_400.0
_LOW: Final = 1 << 30  # amounts beyond 2^53 are not exact as a double, so Redis gets them as high * 2^30 + low

_OpT_contra = TypeVar("_OpT_contra", contravariant=True)
_ResultT_contra = TypeVar("_ResultT_contra", contravariant=True)
_ResultT = TypeVar("_ResultT")


class OpLimiter(Protocol[_OpT_contra, _ResultT_contra]):
    """Interprets the results of one kind of operation."""

    def reason_for(self, op: _OpT_contra) -> str:
        """Return the reason of a denial, for records."""

    def describe_denial(self, op: _OpT_contra, result: _ResultT_contra, now: float, verdict: Verdict) -> None:
        """Set the reason, the message, when to retry (or `never`) and the state of the limit."""

    def explain(self, op: _OpT_contra, result: _ResultT_contra) -> str:
        """Describe a result for `breakloop explain`."""


class ChargeLimiter(OpLimiter[_OpT_contra, _ResultT_contra], Protocol[_OpT_contra, _ResultT_contra]):
    """Interprets the results of a charge, which may be an estimate."""

    needs: str  # which part of an estimate it needs: nothing (""), "tokens" or "microusd"
    renews: bool  # with time; only such limits appear in the `RateLimit` fields

    def describe_limit(self, name: str, op: _OpT_contra, result: _ResultT_contra, now: float) -> LimitState:
        """Return the state of the limit after the call, for the `RateLimit` fields."""

    def adjust(self, op: _OpT_contra, used: ActualUse) -> AdjustCharge | None:
        """Return the difference between actual usage and the charge, or None if the charge was right."""


class _LimiterOp(LimitOp, Generic[_ResultT]):
    """An operation whose limiter interprets its results, all of one type."""

    __slots__ = ()

    result_type: ClassVar[type]
    limiter: OpLimiter[Self, _ResultT]

    def reason(self: Self) -> str:
        return self.limiter.reason_for(self)

    def describe_denial(self: Self, result: Result, now: float, verdict: Verdict) -> None:
        self.limiter.describe_denial(self, self._typed(result), now, verdict)

    def explain(self: Self, result: Result) -> str:
        return self.limiter.explain(self, self._typed(result))

    def _typed(self, result: Result) -> _ResultT:
        typed: _ResultT = expect(self.result_type, result)
        return typed


# -- token buckets -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A token bucket that holds `burst` tokens and refills at `rate` per second."""

    rate: float
    burst: float

    @property
    def lowest(self) -> float:
        """The deepest debt: 60 times what the bucket holds or a minute refills. One wrong report of usage then denies
        for about an hour, while an answer of 100,000 tokens is charged in full by a limit of 2,000 a minute.
        """
        return -60.0 * max(self.burst, _MINUTE_S * self.rate)

    def correct(self, tables: Tables, op: AdjustCharge, now: float) -> None:
        # An expired bucket is full, not missing: usage beyond the estimate of a long call is still charged.
        buckets, key = tables["buckets"], op.key
        entry = buckets.live(key, now)
        tokens = self.burst if entry is None else min(entry[1] + (now - entry[2]) * self.rate, self.burst)
        left = min(max(tokens - op.amount, self.lowest), self.burst)
        if entry is not None or left < self.burst:
            buckets.put(key, (now + (self.burst - left) / self.rate, left, now), now)

    def lua_correction(self, op: AdjustCharge) -> tuple[object, ...]:
        return TakeTokens.number, self.rate, self.burst, self.lowest, op.amount


@final
@dataclass(slots=True, eq=False)
class TakeTokens(_LimiterOp[float]):
    """Take `cost` tokens if every limit of the commit allows it.

    The result is the number of tokens left after the charge. A negative result is a denial and gives the missing
    amount.
    """

    number = 2
    result_type = float
    lua = "take_tokens"
    # (expires, tokens, last); expires when it is full again
    tables = (TableSpec("buckets", tuple[float, float, float]),)

    spec: BucketSpec
    key: str
    cost: float
    limiter: ChargeLimiter[TakeTokens, float]
    rule: RuleRef
    group: int = ENFORCED

    def check(self, tables: Tables, now: float, results: list[Result], changes: list[Change]) -> bool:
        spec, buckets, key = self.spec, tables["buckets"], self.key
        rate, burst, cost = spec.rate, spec.burst, self.cost
        left, entry = burst, buckets.get(key)
        if entry is not None:
            expires, tokens, last = entry
            if expires > now:
                left = tokens + (now - last) * rate
                if left > burst:
                    left = burst
                if left < cost and cost - left <= _DUST:
                    left = cost
        left -= cost
        results.append(left)
        if left < 0.0:
            if entry is not None:
                buckets.move_to_end(key)  # reading counts as use
            return False
        changes.append((self.group, buckets, key, (now + (burst - left) / rate, left, now)))
        return True

    def lua_args(self) -> tuple[object, ...]:
        return self.number, self.group, self.spec.rate, self.spec.burst, self.cost

    def decoded(self, value: Any) -> float:
        return float(value)

    def denies(self, result: Result) -> bool:
        return isinstance(result, float) and result < 0

    def adjust(self, used: ActualUse) -> AdjustCharge | None:
        return self.limiter.adjust(self, used)


def bucket_rows(ops: Sequence[Op]) -> BucketRows | None:
    """Return what the operations take, for `Store.commit`; None unless all are enforced and take from buckets that can
    hold as much.
    """
    taken: list[TakeTokens] = []
    for op in ops:
        if type(op) is not TakeTokens or op.group != ENFORCED or op.cost > op.spec.burst:
            return None
        taken.append(op)
    if not taken:
        return None
    buckets = tuple([(op.spec.rate, op.spec.burst, op.cost) for op in taken])
    keys, lefts = tuple([op.key for op in taken]), tuple([burst - cost for _, burst, cost in buckets])
    shares = [left / burst for left, (_, burst, _) in zip(lefts, buckets, strict=True)]
    full = [(key, left, (b[1] - left) / b[0]) for key, left, b in zip(keys, lefts, buckets, strict=True)]
    return BucketRows(keys, buckets, tuple(full), lefts, shares.index(min(shares)), dict.fromkeys(keys))


# -- budgets -----------------------------------------------------------------------------------------------------------


class BudgetStage(NamedTuple):
    """A stage of a budget: `action` applies once `units` are used."""

    percent: float
    action: str  # "warn", "steer", "throttle", "land", "pause" or "reject"
    delay_ms: int
    units: int
    budget: str = "the budget"  # in a note for a model

    @property
    def warning(self) -> str:
        """The warning that the client sees, such as `budget_warn`."""
        return f"budget_{self.action}"

    @property
    def used(self) -> str:
        """What a model is told about it."""
        return f"{self.percent:g} % of {self.budget} is used."


class BudgetLimiter(ChargeLimiter["ChargeBudget", int], Protocol):
    """A limiter of budgets, which may have stages."""

    dated: bool  # `ends` of its charges is a time of day, and not a time of the store

    def stage_reached(self, op: ChargeBudget, used: int) -> BudgetStage | None:
        """Return the highest stage that was reached."""

    def crossings(self, op: ChargeBudget, used: int, published: int) -> list[dict[str, object]]:
        """Return the data of `budget.threshold` for each stage reached above `published` units."""


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """A budget for one period, in whole units: micro-dollars, tokens, or thousandths of a plain cost."""

    budget: int

    def correct(self, tables: Tables, op: AdjustCharge, now: float) -> None:
        key = op.key
        table = tables["spent"] if key in tables["spent"] else tables["accounts"]
        entry = table.live(key, now)
        if entry is None and op.ends <= now:
            return
        ends, used = (op.ends + _LATE_S, op.known) if entry is None else entry
        used = max(0, used + round(op.amount))
        if 2 * used >= self.budget:
            table = tables["spent"]
        if key in table:
            table.change(key, (ends, used))
        else:
            table.put(key, (ends, used), now)

    def lua_correction(self, op: AdjustCharge) -> tuple[object, ...]:
        return ChargeBudget.number, *divmod(round(op.amount), _LOW), op.known, op.ends


@final
@dataclass(slots=True, eq=False)
class ChargeBudget(_LimiterOp[int]):
    """Charge `cost` to an account whose period ends at `ends`, if every limit of the commit allows it.

    The result is the usage after the charge. A result above the budget is a denial, and nothing is charged. The key
    names the period, so that a later correction applies to the period that was charged. Each charge moves the end of
    its account to `ends`; after that time, a charge with a later end starts from zero.
    """

    number = 3
    result_type = int
    lua = "charge_budget"
    # (expires, used); expires after its period has ended. An account is in `spent` from half of its budget on, so that
    # any number of invented accounts, which are used once, cannot evict it.
    tables = (
        TableSpec("accounts", tuple[float, int]),
        TableSpec("spent", tuple[float, int], share=10, overflow="accounts"),
    )

    spec: BudgetSpec
    key: str
    cost: int
    ends: float
    limiter: BudgetLimiter
    rule: RuleRef
    group: int = ENFORCED

    def check(self, tables: Tables, now: float, results: list[Result], changes: list[Change]) -> bool:
        table, key, ends, used = tables["accounts"], self.key, self.ends, self.cost
        entry = table.get(key)
        if entry is None and (spent := tables["spent"]):
            entry = spent.get(key)
            if entry is not None:
                table = spent
        # An ended period is requested only after the clock stepped back; its usage still counts.
        if entry is not None and not entry[0] - _LATE_S <= now < ends:
            used += entry[1]
        results.append(used)
        budget = self.spec.budget
        if used > budget:
            if entry is None:
                return False
            if 2 * entry[1] >= budget and table is not tables["spent"]:
                tables["spent"].put(key, entry, now)
            else:
                table.move_to_end(key)  # reading counts as use
            return False
        if 2 * used >= budget:
            table = tables["spent"]
        changes.append((self.group, table, key, ((max(now, ends)) + _LATE_S, used)))
        return True

    def remember(self, tables: Tables, used: int, ends: float, now: float) -> None:
        """Set the account to what another store has."""
        key, spent = self.key, tables["spent"]
        table = spent if 2 * used >= self.spec.budget or key in spent else tables["accounts"]
        if used or key in table:
            table.put(key, (max(now, ends) + _LATE_S, used), now)

    def lua_args(self) -> tuple[object, ...]:
        return self.number, self.group, *divmod(self.spec.budget, _LOW), *divmod(self.cost, _LOW), self.ends

    def decoded(self, value: Any) -> int:
        return value if type(value) is int else int(value[0]) * _LOW + int(value[1])

    def denies(self, result: Result) -> bool:
        return isinstance(result, int) and result > self.spec.budget

    def adjust(self, used: ActualUse) -> AdjustCharge | None:
        return self.limiter.adjust(self, used)


_STORED_ACCOUNT: Final = Struct("<B3d")  # values.lua: kind, expires, high, low
_ACCOUNT_KIND: Final = ord("a")


def accounts_in_memory(tables: Tables, prefix: str, now: float, most: int) -> list[StoredAccount]:
    """Return the accounts whose key begins with a prefix, the most used first."""
    found = [
        StoredAccount(key, entry[1], entry[0] - _LATE_S)
        for table in (tables["spent"], tables["accounts"])
        for key, entry in table.items()
        if key.startswith(prefix) and entry[0] - _LATE_S > now
    ]
    return most_used(found, most)


def account_in_redis(key: str, value: bytes | None, now: float) -> StoredAccount | None:
    """Parse a stored account; None if it is not one, or has ended."""
    if value is None or len(value) != _STORED_ACCOUNT.size or value[0] != _ACCOUNT_KIND:
        return None
    _, expires, high, low = _STORED_ACCOUNT.unpack(value)
    ends = expires - _LATE_S
    return StoredAccount(key, int(high) * _LOW + int(low), ends) if ends > now else None


def most_used(accounts: Iterable[StoredAccount], most: int) -> list[StoredAccount]:
    """Return the accounts of which most is used."""
    return heapq.nlargest(most, accounts, key=lambda one: one.used)


# -- circuit breakers --------------------------------------------------------------------------------------------------


class BreakerLimiter(OpLimiter["CheckBreaker", BreakerResult], Protocol):
    """Interprets the result of a `CheckBreaker`."""

    def event_data(self, op: CheckBreaker, result: BreakerResult) -> dict[str, object]:
        """Return the data of `breaker.opened` and `breaker.closed`."""


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """A breaker that opens when `threshold` is reached within a sliding minute."""

    threshold: float
    reset_s: float  # 0: only an operator closes it


# (expires, minute, spend of that minute, spend of the one before, open since)
_BREAKER_ENTRY: Final = tuple[float, float, float, float, float]


@final
@dataclass(slots=True, eq=False)
class CheckBreaker(_LimiterOp[BreakerResult]):
    """Count `amount` into the rate of a key. A rate that reaches the threshold opens the breaker; an open breaker
    denies.

    The rate covers a sliding minute: the current clock minute, plus the share of the previous one that is still
    within 60 s. It measures requested spend: a request that is denied because this breaker opens, or by a later
    limit, stays counted. Otherwise a limit would hide a runaway. Requests that were denied earlier in the same group
    are not counted, and none are counted while the breaker is open.

    The first request after `reset_s` is the probe. Its own rate decides immediately: below the threshold the breaker
    closes, otherwise it opens again. So there is never more than one probe, and none has to be waited for.
    """

    number = 4
    result_type = BreakerResult
    lua = "check_breaker"
    # Two tables, so that counting any number of invented keys cannot evict an open breaker.
    tables = (TableSpec("rates", _BREAKER_ENTRY), TableSpec("open", _BREAKER_ENTRY, share=10))

    spec: BreakerSpec
    key: str
    amount: float
    limiter: BreakerLimiter
    rule: RuleRef
    group: int = ENFORCED

    def check(self, tables: Tables, now: float, results: list[Result], changes: list[Change]) -> bool:  # noqa: ARG002
        """Count and write at once: the count stays even if the request is denied."""
        result = self._counted(tables, now)
        results.append(result)
        return not result.open

    def _counted(self, tables: Tables, now: float) -> BreakerResult:
        spec, key, rates, opened = self.spec, self.key, tables["rates"], tables["open"]
        entry = opened.get(key) if opened else None
        probe = entry is not None
        minute = now // _MINUTE_S
        if entry is None:
            entry = rates.get(key)
        elif not spec.reset_s or now < entry[4] + spec.reset_s:
            opened.move_to_end(key)  # reading counts as use
            rate = _sliding(*_spent(entry, minute), now)
            return BreakerResult(True, rate, entry[4] + spec.reset_s - now if spec.reset_s else 0.0)
        current, previous = _spent(entry, minute)
        current += self.amount
        rate = _sliding(current, previous, now)
        if rate >= spec.threshold - _DUST:
            kept_s = spec.reset_s + _UNASKED_S if spec.reset_s else float("inf")
            rates.discard(key)
            opened.put(key, (now + kept_s, minute, current, previous, now), now)
            return BreakerResult(True, rate, spec.reset_s, "opened")
        if probe:
            opened.discard(key)
        rates.put(key, ((minute + 2.0) * _MINUTE_S, minute, current, previous, 0.0), now)
        return BreakerResult(False, rate, 0.0, "closed" if probe else "")

    def lua_args(self) -> tuple[object, ...]:
        return self.number, self.group, self.spec.threshold, self.spec.reset_s, self.amount

    def decoded(self, value: Any) -> BreakerResult:
        opened, rate, wait_s, changed = value
        return BreakerResult(opened, float(rate), float(wait_s), changed)

    def denies(self, result: Result) -> bool:
        return isinstance(result, BreakerResult) and result.open


def _spent(entry: Entry | None, minute: float) -> tuple[float, float]:
    """Return the spend of this minute and of the previous one."""
    if entry is not None:
        if entry[1] == minute:
            return entry[2], entry[3]
        if entry[1] == minute - 1.0:
            return 0.0, entry[2]
    return 0.0, 0.0


def _sliding(current: float, previous: float, now: float) -> float:
    """Return the rate of the last 60 s, including the share of the previous minute that is still within them."""
    return current + previous * (_MINUTE_S - now % _MINUTE_S) / _MINUTE_S if previous else current


def breakers_in_memory(tables: Tables, prefix: str, now: float, most: int) -> list[StoredBreaker]:
    """Return open breakers by key, then closed ones, most recently counted first."""
    minute, rates, opened = now // _MINUTE_S, tables["rates"], tables["open"]
    keys = heapq.nsmallest(most, [key for key in opened if key.startswith(prefix)])
    closed = (key for key in reversed(rates) if key.startswith(prefix) and rates.live(key, now))
    entries = [(key, opened[key], True) for key in keys]
    entries += [(key, rates[key], False) for key in islice(closed, most - len(entries))]
    return [
        StoredBreaker(key, _sliding(*_spent(entry, minute), now), entry[4] if is_open else None)
        for key, entry, is_open in entries
    ]


_STORED_BREAKER: Final = Struct("<B6d")  # values.lua: kind, last, minute, its spend, previous, open, since
_BREAKER_KIND: Final = ord("k")


def breaker_in_redis(key: str, value: bytes | None, now: float) -> StoredBreaker | None:
    """Parse a stored breaker; None if it is not one, or if none of its spend is within the last minute."""
    if value is None or len(value) != _STORED_BREAKER.size or value[0] != _BREAKER_KIND:
        return None
    _, last, minute, spent, earlier, is_open, since = _STORED_BREAKER.unpack(value)
    now = max(now, last)
    if not is_open and now >= (minute + 2) * _MINUTE_S:
        return None
    rate = _sliding(*_spent((0.0, minute, spent, earlier), now // _MINUTE_S), now)
    return StoredBreaker(key, rate, since if is_open else None)


Charge = TakeTokens | ChargeBudget  # may be estimates, which `AdjustCharge` corrects
LIMIT_OPS: Final[Sequence[type[LimitOp]]] = (TakeTokens, ChargeBudget, CheckBreaker)
