"""What all limiters share. A limiter plans charges and interprets their results; it uses neither the store nor a clock.

Planning (`Limiter`)
    charges            the charges of a call, before the decision
    cacheable_between  the interval in which the charges of a sender stay the same
    total              their sum, for a circuit breaker
Results (`store.limit_ops.OpLimiter`, named by each charge)
    describe_denial    the reason for a denied charge, and when to retry
    explain            a result, for `breakloop explain`
    describe_limit     what is left, for the `RateLimit` fields
    stage_reached      the stage of a budget that warns or throttles
    adjust             the correction of a charge, once the actual usage is known

Amounts are integers (thousandths of a plain cost, tokens, micro-dollars), so that sums are exact in every store.
Bundles use decimal numbers (12.34), accounts and breakers hold units, and messages show formatted amounts.

Budgets run in calendar periods, aligned to UTC: weeks begin on Monday, and `30d` is the calendar month. A period
includes its first second and excludes its end.

ARCHITECTURE.md lists the edits that a new limiter takes.
"""

from __future__ import annotations

import math
from calendar import timegm
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple, Protocol

from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.store.limit_ops import Charge
from breakloop.store.ops import ActualUse, AdjustCharge, Op, RuleRef

LARGEST: Final = 2**53  # larger integers are not exact in every store
_CENT: Final = 10_000
_DOLLAR: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of account, and its conversions."""

    name: str  # in events and records
    scale: int  # number of units per 1 in the bundle
    shown: int  # number of units per 1 in the `RateLimit` fields, which hold integers only
    words: Callable[[float], str]

    def of(self, value: float) -> int:
        """Convert a positive number from a bundle or request to units. The result is at least 1, so that nothing is
        free.
        """
        return max(1, round(min(value * self.scale, LARGEST)))  # the product may be infinite


def _plain(units: float) -> str:
    whole, rest = divmod(round(units), 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def _tokens(units: float) -> str:
    return f"{round(units)} tokens"


def _dollars(units: float) -> str:
    """Format to the cent; amounts below one dollar that are not whole cents, to the micro-dollar."""
    microusd = round(units)
    if microusd % _CENT == 0 or microusd >= _DOLLAR:
        cents = (microusd + _CENT // 2) // _CENT
        return f"${cents // 100}.{cents % 100:02}"
    return f"$0.{microusd:06}".rstrip("0")


COST: Final = Unit("cost", 1000, 1000, _plain)
TOKENS: Final = Unit("token", 1, 1, _tokens)
# The `RateLimit` fields hold micro-dollars: whole dollars would be too coarse for budgets of a few dollars.
MICROUSD: Final = Unit("microusd", _DOLLAR, 1, _dollars)


def read_cost(text: str | None, default: float) -> float:
    """Parse the cost given by a request. Returns the default if it is missing, not a number or not positive."""
    if text is None:
        return default
    try:
        cost = float(text)
    except ValueError:
        return default
    return cost if 0.0 < cost < math.inf else default


DEFAULT_COMPLETION: Final = 1000  # assumed length of an answer if the request sets no maximum


class Estimate(NamedTuple):
    """The most that a call may use, judging by its request. All zero if it is not an LLM call."""

    prompt_tokens: int = 0
    max_completion: int | None = 0  # maximum tokens per answer; None: the request sets no maximum
    microusd: int = 0  # cost of prompt and answers
    answers: int = 1  # number of answers requested

    def completion(self, default: int = DEFAULT_COMPLETION) -> int:
        """Return the maximum tokens of all answers. A negative maximum, which some servers accept, means no maximum."""
        most = self.max_completion
        return (default if most is None or most < 0 else most) * self.answers

    @property
    def tokens(self) -> int:
        """The maximum tokens of prompt and answers."""
        return self.prompt_tokens + self.completion()


NOTHING: Final = Estimate()


class Limiter(Protocol):
    """The limiter of a rule. It plans charges; the `ChargeLimiter` named by each charge interprets the results, and is
    nearly always the same object.
    """

    families: tuple[str, ...]  # prefixes of its keys
    unit: Unit  # unit of `total`
    needs: str  # what it needs estimated: "" nothing, "tokens" or "microusd"

    def charges(
        self, call: Call, keys: Sequence[str], rule: RuleRef, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        """Return the charges of a call, or a `Deny` if it can never be allowed. `keys` has one key per family."""

    def cacheable_between(self, now: float) -> tuple[float, float] | None:
        """Return the interval in which the charges of a sender stay the same, or None if they depend on the call."""

    def total(self, ops: Sequence[Op]) -> int:
        """Return the sum of the charges, for a circuit breaker, or 0 if there are none."""


@dataclass(frozen=True, slots=True)
class LimitDenial:
    """A denial that depends on no state, because the call can never be allowed. It is the owner of a `Deny`."""

    rule: RuleRef
    denial_reason: str
    message: str

    @property
    def denied_by(self) -> tuple[str, str]:
        return self.rule.policy, self.rule.name

    def describe_denial(self, _call: Call, verdict: Verdict) -> None:
        verdict.status = self.rule.status
        verdict.policy, verdict.rule = self.denied_by
        verdict.message = self.message


def adjustments(charged: Iterable[Charge], used: ActualUse) -> list[AdjustCharge]:
    """Return the corrections to the charges of one call, once its actual usage is known."""
    return [one for op in charged if (one := op.adjust(used)) is not None]


_DAY_S: Final = 86_400
_MONDAY: Final = 4 * _DAY_S  # 1970-01-05
# name -> length in seconds (0: calendar month), start of any one period, and its wording after an amount
_PERIODS: Final = {
    "5m": (300, 0, "in 5 minutes"),
    "1h": (3600, 0, "an hour"),
    "1d": (_DAY_S, 0, "a day"),
    "7d": (7 * _DAY_S, _MONDAY, "a week"),
    "30d": (0, 0, "a month"),
}


class TimeSpan:
    """One of a sequence of consecutive periods."""

    __slots__ = ()

    words: str  # in messages, after an amount: "100 a day"

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end of the period that contains `now`."""
        raise NotImplementedError


class Period(TimeSpan):
    """A budget period, aligned to UTC."""

    __slots__ = ("_first", "_last", "_length", "words")

    def __init__(self, name: str) -> None:
        self._length, self._first, self.words = _PERIODS[name]
        self._last = (0, 0)  # the last month returned, which most later requests are in

    def bounds(self, now: float) -> tuple[int, int]:
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
    """A calendar day in a time zone. It has 23 or 25 hours when daylight saving time begins or ends."""

    __slots__ = ("_last", "_zone")

    words = "a day"

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._last = (0, 0)

    def bounds(self, now: float) -> tuple[int, int]:
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
