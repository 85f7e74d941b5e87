"""`Limiter`: what every limiter can do, so that a rule need not know which one it has. It plans charges, and reads what
the store says about them; it has no store and no clock. Charges name their rule (`owner`), which leads back here.

charges     what a call would be charged, before it is decided
denied      the store refused one of them: why, and when to come again
limit       what is left of one, for the `RateLimit` fields
staged      what passes, and is to be warned or slowed
correction  the answer is there: what was charged too much or too little

What costs are counted in: whole units, so that sums are exact in every store. Thousandths of a plain cost, tokens,
micro-dollars (SPEC L-5). A bundle writes 12.34; accounts and breakers hold units; people read words.

Calendar periods that budgets run in (SPEC L-2): aligned to UTC, weeks begin on Monday, `30d` is the calendar month.
A period holds its first second and not its end. Time is handed in; nothing here reads a clock.
"""

from __future__ import annotations

import math
from calendar import timegm
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple, Protocol

from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.ops import AdjustCharge, Op, Owner

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


class ActualUse(NamedTuple):
    """What a call has used, as its answer tells."""

    tokens: int = 0
    microusd: int = 0


class BudgetStage(NamedTuple):
    """A stage of a budget: from `units` used on, `action` applies."""

    percent: float
    action: str  # "warn", "throttle" or "reject"
    delay_ms: int
    units: int

    @property
    def warning(self) -> str:
        """The word for the client: `budget_warn` or `budget_throttle`."""
        return f"budget_{self.action}"


class Limiter(Protocol):
    """A limiter of a rule. `op` is one of its own charges, and `result` what the store said about it."""

    families: tuple[str, ...]  # what its keys begin with
    unit: Unit  # what `spend` counts
    needs: str  # of an estimate: "" nothing, "tokens", or "microusd"
    renews: bool  # what is left comes back by itself: such limits stand in the `RateLimit` fields

    def charges(
        self, call: Call, keys: Sequence[str], owner: Owner, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        """Return what the call would be charged; `keys` has one key a family. A `Refuse` if it can never pass."""
        ...

    def holds(self, now: float) -> tuple[float, float] | None:
        """Return from when to when a sender's charges stay the same; None where they depend on the call."""
        ...

    def spend(self, ops: Sequence[Op]) -> int:
        """Return what its charges come to, for a circuit breaker; 0 where there are none."""
        ...

    def reason_for(self, op: Any) -> str:
        """Return the reason of a denial by this charge, for records."""
        ...

    def denied(self, op: Any, result: Any, now: float, verdict: Verdict) -> None:
        """Say why: reason, message, when to retry or that it never helps, and the limit's state."""
        ...

    def limit(self, name: str, op: Any, result: Any, now: float) -> LimitState:
        """Return the limit's state after the call."""
        ...

    def staged(self, op: Any, result: Any) -> BudgetStage | None:
        """Return the highest stage that was reached, or None."""
        ...

    def correction(self, op: Any, used: ActualUse) -> AdjustCharge | None:
        """Return what is to be charged more or given back, or None if the charge was right."""
        ...


class LimitDenial:
    """Why a call can never pass, known before any state is looked at. It owns its `Refuse` in the rule's place."""

    __slots__ = ("message", "refusal", "rule")

    def __init__(self, rule: Owner, reason: str, message: str) -> None:
        self.rule = rule
        self.refusal = reason
        self.message = message

    @property
    def refusal_at(self) -> tuple[str, str]:
        """Where it comes from, for records: policy and rule."""
        return self.rule.policy, self.rule.name

    def refused(self, _call: Call, verdict: Verdict) -> None:
        """Say it."""
        verdict.status = self.rule.status
        verdict.policy, verdict.rule = self.refusal_at
        verdict.message = self.message


def corrections(charged: Iterable[Any], used: ActualUse) -> tuple[AdjustCharge, ...]:
    """Return what settles the charges of one call, whichever limiters they are of."""
    found = [op.owner.limiter.correction(op, used) for op in charged]
    return tuple(one for one in found if one is not None)


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
