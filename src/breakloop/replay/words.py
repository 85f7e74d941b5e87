"""How counts, tokens, money and times are written in reports, on the terminal and in HTML alike."""

from __future__ import annotations

from datetime import UTC, datetime

from breakloop.replay.cost import Spent

_DATES_FROM = 1e8  # smaller numbers of seconds are on a scale of the recording's own
_DATES_TO = 2.5e11


def counted(number: int, noun: str) -> str:
    """Return `1 turn`, `1,200 turns`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def tokens(spent: Spent) -> str:
    """Return a number of tokens; an estimate says so, and is not more exact than it can be."""
    if not spent.estimated:
        return f"{spent.tokens:,}"
    return f"about {rounded(spent.tokens):,}"


def rounded(number: int) -> int:
    """Return two digits of a number, and zeros."""
    size = int("1".ljust(len(str(abs(number))) - 1, "0"))
    return round(number / size) * size


def money(amount: float | None) -> str:
    """Return US dollars, or nothing when the price is not known."""
    if amount is None:
        return ""
    return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"


def lasted(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return ""
    whole = round(seconds)
    for size, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def moment(at_s: float | None) -> str:
    """Return a date and time, if the recording has any."""
    if at_s is None or not _DATES_FROM < at_s < _DATES_TO:
        return ""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
