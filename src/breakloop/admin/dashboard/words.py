"""Formats numbers and values for the dashboard, as far as `formatting` does not, and names kinds and events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from breakloop.detect.steps.kinds import BY_NAME
from breakloop.formatting import UNITS, timestamp
from breakloop.formatting import money as dollars

# Invisible characters, and those that reverse the text behind them.
_HIDDEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_DRAWN: Final = frozenset({"steps", "score"})  # of an event; its incident shows them as a picture
SHOWN_MAX: Final = 160  # characters of a value in a table
_OTHER_KINDS: Final = {
    "exact": "identical consecutive requests",
    "tail": "requests that end with the same messages",
    "simhash": "similar prompts, similar responses and the same tool calls",
    "stream": "a response that repeats itself",
    "steps": "steps without progress",
}
_EVENTS: Final = {
    "loop.detected": ("Loop detected", "warn"),
    "loop.cleared": ("Loop ended", "good"),
    "agent.killed": ("Agent quarantined", "bad"),
    "agent.released": ("Agent released", "good"),
    "run.paused": ("Run paused", "warn"),
    "run.answered": ("Pause answered", "info"),
    "limit.exceeded": ("Limit exceeded", "warn"),
    "budget.threshold": ("Budget nearly used", "warn"),
    "breaker.opened": ("Breaker opened", "bad"),
    "breaker.closed": ("Breaker closed", "good"),
    "kill_switch.changed": ("Kill switch changed", "info"),
    "override.changed": ("Override changed", "info"),
    "bundle.loaded": ("Bundle loaded", "info"),
    "bundle.rejected": ("Bundle rejected", "bad"),
    "bundle.expired": ("Bundle expired", "bad"),
    "store.degraded": ("Store degraded", "bad"),
    "store.recovered": ("Store recovered", "good"),
    "shadow.would_reject": ("Would have denied", "shadow"),
    "model.unknown": ("Unknown model", "info"),
    "api.unknown": ("Unknown API, not judged", "warn"),
    "worker.died": ("Worker died", "bad"),
    "worker.replaced": ("Worker replaced", "info"),
}
EVENT_NAMES: Final = tuple(_EVENTS)
_LARGE: Final = ((1_000_000_000, "B"), (1_000_000, "M"), (10_000, "k"))


def money(microusd: int) -> str:
    return dollars(microusd / 1_000_000)


def count(number: int) -> str:
    """Format an integer with thousands separators."""
    return f"{number:,}"


def short(number: int) -> str:
    """Format a large number in three digits: `12.4k`, `9.10M`."""
    for size, letter in _LARGE:
        if abs(number) >= size:
            value = number / (1_000 if letter == "k" else size)
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f}{letter}"
    return f"{number:,}"


def amount(number: int, unit: str) -> str:
    """Format a number of units; dollars with their sign."""
    return f"${number:,}" if unit in {"usd", "$"} else f"{number:,} {shortened(unit, 12)}"


def ago(at: float, now: float) -> str:
    """Format how long ago a time was, or how long it is until then, in one unit."""
    apart = now - at
    size, unit = next(((size, unit) for size, unit, _, _ in UNITS if abs(apart) >= size), (1, "s"))
    if abs(apart) < 2:
        return "just now"
    number = int(abs(apart) // size)
    return f"{number} {unit} ago" if apart > 0 else f"in {number} {unit}"


def stamp(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def shortened(text: object, most: int = SHOWN_MAX) -> str:
    """Format a value: truncated if it is very long, without invisible characters."""
    if isinstance(text, Mapping | list | tuple):
        text = json.dumps(text, ensure_ascii=False, default=str)
    said = _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(text))
    return said if len(said) <= most else said[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def kind_meaning(kind: str) -> str:
    """Return what a kind of loop is, in a line; empty if it is unknown."""
    known = BY_NAME.get(kind)
    return known.meaning if known is not None else _OTHER_KINDS.get(kind, "")


def event_words(name: str) -> tuple[str, str]:
    """Return the name of an event, and its tone: good, info, warn, bad or shadow."""
    return _EVENTS.get(name, (shortened(name, 60), "info"))


def details(data: Mapping[str, Any], skip: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return the fields of an event or a record as names and values, without empty ones."""
    shown = [(key, value) for key, value in data.items() if key not in {*skip, *_DRAWN} and value not in (None, "", [])]
    return [(shortened(key.replace("_", " "), 40), value_words(key, value)) for key, value in shown]


def value_words(key: str, value: object) -> str:
    """Format a value by its type and by the name of its field."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_at") and isinstance(value, int | float):
        return timestamp(value)
    if isinstance(value, int):
        return f"{value:,}"
    return shortened(value)
