"""A row for each scenario: what was done, what must hold, what was observed. Printed, and written into the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "attack-and-fault-tests.md"
_BEGIN: Final = "<!-- Written by `make torture`: begin -->\n"
_END: Final = "<!-- Written by `make torture`: end -->\n"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    promise: str
    held: bool
    observed: str
    is_time: bool = False


@dataclass(slots=True)
class Row:
    """What a scenario did and found. A scenario that broke off has the reason as its `error`."""

    section: str
    name: str
    done: str = ""
    checks: list[Check] = field(default_factory=list)
    error: str = ""

    def expect(self, promise: str, held: object, observed: object) -> None:
        """Note what must hold, whether it does, and what was seen."""
        self.checks.append(Check(promise, bool(held), str(observed)))

    def expect_time(self, promise: str, held: object, observed: object) -> None:
        """The same for a duration: a target of the table, which no test asserts."""
        self.checks.append(Check(promise, bool(held), str(observed), is_time=True))

    def failures(self, *, times: bool) -> list[str]:
        """Return what does not hold, with or without durations."""
        failed = [
            f"{one.promise}: {one.observed}" for one in self.checks if not one.held and (times or not one.is_time)
        ]
        return [*failed, self.error] if self.error else failed

    @property
    def result(self) -> str:
        return "red" if self.failures(times=True) or not self.checks else "green"


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    table = Table("", "what was done", "what must hold", "observed", title="Attacks and faults", show_lines=True)
    for row in rows:
        style = "green" if row.result == "green" else "red"
        name = f"[{style}]{row.result}[/]\n{row.name}"
        table.add_row(name, row.done, *_columns(row, "\n"))
    console.print(table)


def write(rows: Sequence[Row], notes: Sequence[str], path: Path = PAGE) -> None:
    """Replace the part of the page that the rig writes."""
    before, _, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    if not found:
        raise ValueError(f"{path}: there is no place for the table")
    path.write_text(f"{before}{_BEGIN}{markdown(rows, notes)}{_END}{after}", encoding="utf-8")


def markdown(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Render all rows, a table for each section."""
    parts = ["\n", *(f"- {note}\n" for note in notes)]
    for section in dict.fromkeys(row.section for row in rows):
        parts.append(f"\n### {section}\n\n| what is done | what must hold | observed | |\n|---|---|---|---|\n")
        for row in rows:
            if row.section == section:
                promised, seen = (text.replace("|", "\\|") for text in _columns(row, "<br>"))
                parts.append(f"| {row.done} (`{row.name}`) | {promised} | {seen} | {row.result} |\n")
    return "".join([*parts, "\n"])


def _columns(row: Row, separator: str) -> tuple[str, str]:
    promised = [one.promise for one in row.checks]
    seen = [one.observed if one.held else f"NOT: {one.observed}" for one in row.checks]
    return separator.join(promised), separator.join([*seen, row.error] if row.error else seen)
