"""Numbers, money and times as people read them: in reports, on the terminal, in the dashboard and in alerts."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def money(usd: float) -> str:
    """Return US dollars to the cent; less than a cent with four digits."""
    return f"${usd:.4f}" if usd and abs(usd) < 0.01 else f"${usd:,.2f}"


def plural(number: int, noun: str, more: str = "") -> str:
    """Return `1 request`, `1,200 requests`."""
    return f"{number:,} {noun if number == 1 else more or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if not math.isfinite(seconds):
        return "for ever"
    whole = max(0, round(seconds))
    for size, unit, smaller, below in UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def timestamp(at: float) -> str:
    """Return a date and time in UTC; a dash for a time out of range."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "\N{EN DASH}"
