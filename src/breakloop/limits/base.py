"""What all limiters share. A limiter plans charges and interprets what the store found; it has no store and no clock.

Planning (`Limiter`)
    charges            what a call would be charged, before it is decided
    cacheable_between  how long these charges stay the same for one sender
    total              their sum, for a circuit breaker
Results (`store.ops.ChargeLimiter`, named by each charge)
    describe_denial    the store denied the charge: why, and when to retry
    describe_limit     what is left, for the `RateLimit` fields
    stage_reached      the stage of a budget that warns or throttles
    adjust             the answer is known: what was charged too much or too little

Amounts are whole units (thousandths of a plain cost, tokens, micro-dollars), so that sums are exact in every store. A
bundle says 12.34, accounts and breakers hold units, messages use words.

Budgets run in calendar periods, aligned to UTC: weeks begin on Monday, and `30d` is the calendar month. A period
includes its first second and excludes its end.

To add a limiter that uses existing operations, edit six files: its configuration in `policy/schema/limits.py`, its rule
in `policy/schema/bundle.py` (class, `Algorithm`, `AnyRule`), a file here, a branch in `LimiterCompiler.of`
(`policy/compile.py`), its reason in `model/verdict.py`, and its description in `admin/bundles.py`.

A new kind of operation needs eight more: `store/ops.py`, `store/memory.py`, `store/snapshot_file.py`,
`store/redis/scripts.py` with `commit.lua`, `engine/fold.py`, `engine/hold_rules.py` and `replay/explain.py`. Once it is
in the union `Op`, mypy reports those that do not handle it, except for Lua and the snapshot.
"""

from __future__ import annotations

import math
from calendar import timegm
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple, Protocol, assert_never

from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.store.ops import ActualUse, AdjustCharge, Charge, ChargeBudget, Op, RuleRef, TakeTokens

LARGEST: Final = 2**53  # whole numbers beyond it are not exact in every store
_CENT: Final = 10_000
_DOLLAR: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Unit:
    """One kind of unit."""

    name: str  # for events and records
    scale: int  # so many of it are 1 in the bundle
    shown: int  # so many of it are 1 in the `RateLimit` fields, which hold whole numbers only
    words: Callable[[float], str]

    def of(self, value: float) -> int:
        """Return a positive number of the bundle or a request in units: at least one, so that nothing is free."""
        return min(max(1, round(value * self.scale)), LARGEST)


def _plain(units: float) -> str:
    whole, rest = divmod(round(units), 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def _tokens(units: float) -> str:
    return f"{round(units)} tokens"


def _dollars(units: float) -> str:
    """To the cent; what is less than a dollar to the micro-dollar, where there are such."""
    microusd = round(units)
    if microusd % _CENT == 0 or microusd >= _DOLLAR:
        cents = (microusd + _CENT // 2) // _CENT
        return f"${cents // 100}.{cents % 100:02}"
    return f"$0.{microusd:06}".rstrip("0")


COST: Final = Unit("cost", 1000, 1000, _plain)
TOKENS: Final = Unit("token", 1, 1, _tokens)
# A budget of a few dollars would have nothing between all and nothing if the fields held whole dollars.
MICROUSD: Final = Unit("microusd", _DOLLAR, 1, _dollars)


def read_cost(text: str | None, default: float) -> float:
    """Return the cost that a request names. One that is missing, no number or not positive is the default."""
    if text is None:
        return default
    try:
        cost = float(text)
    except ValueError:
        return default
    return cost if 0.0 < cost < math.inf else default


DEFAULT_COMPLETION: Final = 1000  # tokens of an answer whose request names no maximum


class Estimate(NamedTuple):
    """What a call may use, as far as its request tells. Of one that is no LLM call: nothing."""

    prompt_tokens: int = 0
    max_completion: int | None = 0  # the most that an answer may have; None: it names no maximum
    microusd: int = 0  # what prompt and answers would cost
    answers: int = 1  # that it asks for at once

    def completion(self, default: int = DEFAULT_COMPLETION) -> int:
        """Tokens of the longest answer, of all of them. Some servers take -1 for no maximum."""
        most = self.max_completion
        return (default if most is None or most < 0 else most) * self.answers

    @property
    def tokens(self) -> int:
        """Tokens of prompt and longest answer."""
        return self.prompt_tokens + self.completion()


NOTHING: Final = Estimate()


class Limiter(Protocol):
    """The limiter of a rule: it plans charges. The `ChargeLimiter` that each charge names interprets their results; it
    is nearly always the same object."""

    families: tuple[str, ...]  # what its keys begin with
    unit: Unit  # what `total` counts
    needs: str  # of an estimate: "" nothing, "tokens", or "microusd"

    def charges(
        self, call: Call, keys: Sequence[str], rule: RuleRef, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        """Return what the call would be charged, or a `Deny` if it can never pass. `keys` has one key a family."""
        ...

    def cacheable_between(self, now: float) -> tuple[float, float] | None:
        """Return from when to when the charges of a sender stay the same; None if they depend on the call."""
        ...

    def total(self, ops: Sequence[Op]) -> int:
        """Return the sum of its charges, for a circuit breaker; 0 if there are none."""
        ...


class LimitDenial:
    """Why a call can never pass, known without looking at any state: the owner of a `Deny`."""

    __slots__ = ("denial_reason", "message", "rule")

    def __init__(self, rule: RuleRef, reason: str, message: str) -> None:
        self.rule = rule
        self.denial_reason = reason
        self.message = message

    @property
    def denied_by(self) -> tuple[str, str]:
        return self.rule.policy, self.rule.name

    def describe_denial(self, _call: Call, verdict: Verdict) -> None:
        verdict.status = self.rule.status
        verdict.policy, verdict.rule = self.denied_by
        verdict.message = self.message


def adjustments(charged: Iterable[Charge], used: ActualUse) -> list[AdjustCharge]:
    """Return what settles the charges of one call once its answer is known."""
    found: list[AdjustCharge | None] = []
    for op in charged:
        match op:
            case TakeTokens():
                found.append(op.limiter.adjust(op, used))
            case ChargeBudget():
                found.append(op.limiter.adjust(op, used))
            case _:
                assert_never(op)
    return [one for one in found if one is not None]


_DAY_S: Final = 86_400
_MONDAY: Final = 4 * _DAY_S  # 1970-01-05, the first one
# name -> length (0: by the calendar), the start of one of them, and how a limit of it reads: "100 a day"
_PERIODS: Final = {
    "5m": (300, 0, "in 5 minutes"),
    "1h": (3600, 0, "an hour"),
    "1d": (_DAY_S, 0, "a day"),
    "7d": (7 * _DAY_S, _MONDAY, "a week"),
    "30d": (0, 0, "a month"),
}


class TimeSpan:
    """A stretch of time that follows on another like it. `bounds` is the fast way to start and end."""

    __slots__ = ()

    words: str  # in a message, behind an amount

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end of the one that `now` is in."""
        raise NotImplementedError

    def start(self, now: float) -> int:
        """Return when it began."""
        return self.bounds(now)[0]

    def end(self, now: float) -> int:
        """Return when it ends, which is when the next one begins."""
        return self.bounds(now)[1]


class Period(TimeSpan):
    """One kind of period, by UTC."""

    __slots__ = ("_first", "_last", "_length", "words")

    def __init__(self, name: str) -> None:
        self._length, self._first, self.words = _PERIODS[name]
        self._last = (0, 0)  # the month that was asked for last: the next request is in it, too

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end."""
        second = math.floor(now)
        length = self._length
        if length:
            start = second - (second - self._first) % length
            return start, start + length
        last = self._last
        if not last[0] <= second < last[1]:
            last = self._last = _month(second)
        return last


class LocalDay(TimeSpan):
    """The day of a time zone, from midnight to midnight: 23 or 25 hours long when its clocks change."""

    __slots__ = ("_last", "_zone")

    words = "a day"

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._last = (0, 0)

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end."""
        second = math.floor(now)
        last = self._last
        if not last[0] <= second < last[1]:
            today = datetime.fromtimestamp(second, self._zone).date()
            last = self._last = (self._midnight(today), self._midnight(today + timedelta(days=1)))
        return last

    def _midnight(self, day: date) -> int:
        return int(datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp())


def _month(second: int) -> tuple[int, int]:
    today = datetime.fromtimestamp(second, UTC)
    year, month = today.year, today.month
    return timegm((year, month, 1, 0, 0, 0)), timegm((year + month // 12, month % 12 + 1, 1, 0, 0, 0))
