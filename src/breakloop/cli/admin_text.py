"""How the commands that talk to the admin API write numbers, times and names. Names come from outside: what could move
a terminal's cursor is written out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich import box
from rich.table import Table

from breakloop.cli.output import print_table

_TEXT_MAX: Final = 60
_DIGEST: Final = re.compile(r"(?:\w+:)?[0-9a-f]{16,}(?:\.\.\.)?")
_DIGEST_SHOWN: Final = 12
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_UNSAID: Final = frozenset({"agent", "caller", "steps", "score"})  # of an event: shown elsewhere, or too long
# What is worth the most comes first.
_FIRST: Final = ("kind", "action", "policy", "rule", "reason", "hit_count", "evidence")


def clean(text: object, most: int = _TEXT_MAX) -> str:
    """Return a text from outside so that it can be printed on one line."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def moment(at: float | None) -> str:
    """Return a time; of none, nothing."""
    return "" if at is None else datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def until(at: float | None) -> str:
    """Return when something ends."""
    return "until it is released" if at is None else f"until {moment(at)}"


def span(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    left, words = max(0, int(seconds)), list[str]()
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or words:
            words.append(f"{count} {unit}")
    return " ".join(word for word in words[:2] if not word.startswith("0 ")) or "0 s"


def ago(at: float | None, now: float) -> str:
    """Return how long ago something was."""
    return "never" if not at else f"{span(now - at)} ago"


def dollars(microusd: int) -> str:
    """Return an amount, to the cent; what is less than that, but something, is not nothing."""
    return f"${microusd / 1e6:,.2f}" if microusd >= 10_000 or not microusd else "<$0.01"


def count(number: int, noun: str) -> str:
    """Return so many of something."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def words(data: Mapping[str, Any]) -> str:
    """Return what an event carries, the weightiest first."""
    names = [name for name in _FIRST if name in data] + [name for name in data if name not in _FIRST]
    said = [
        f"{name}={_value(name, data[name])}" for name in names if name not in _UNSAID and data[name] not in ("", None)
    ]
    return " ".join(said)


def _value(name: str, value: object) -> str:
    """Times as times, no more digits than anybody reads, and of a digest its beginning, as people tell them apart."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_at"):
            return moment(value).replace(" ", "T")
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = clean(value)
    return f"{text[:_DIGEST_SHOWN]}..." if _DIGEST.fullmatch(text) else text


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; columns in `right` are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", no_wrap=head != heads[-1])
    for row in rows:
        table.add_row(*row)
    print_table(table)
