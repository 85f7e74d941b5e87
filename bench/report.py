"""A table and a chart for people, JSON for machines, and whether the targets were met. The same for every benchmark."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.plot import Chart

SIZES_KB = (2, 20, 200, 600)


@dataclass(frozen=True, slots=True)
class Options:
    """How long to measure, and where to tell how far it is."""

    seconds: int
    rounds: int
    progress: Callable[[str], None]
    sizes_kb: tuple[int, ...] = SIZES_KB  # of the proxy's calls
    trees: tuple[str, ...] = ()  # other checkouts, to compare with
    cases: str = "*"  # lines of instructions and agents, as a pattern
    requests: int = 512  # of a burst of agents, at most


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that must not pass its limit, or with `least`, must reach it."""

    name: str
    value: float
    limit: float
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether the limit holds."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} {'>=' if self.least else '<='} {self.limit:g}"


@dataclass(slots=True)
class Report:
    """What one benchmark found. Figures are medians over its rounds."""

    name: str
    title: str
    columns: tuple[str, ...]
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: list[tuple[str, ...]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    chart: Chart | None = None

    def add(self, name: str, figures: dict[str, float], cells: Sequence[str]) -> None:
        """Add a line: its figures for the JSON, its cells for the table."""
        self.figures[name] = figures
        self.rows.append((name, *cells))

    def draw(self, group: str, name: str, costs_us: Sequence[float], times: Sequence[float]) -> None:
        """Add a bar to the chart, if there is one: what each round cost, and how many times as much as the peer."""
        if self.chart is not None:
            self.chart.compare(group, name, costs_us, times)

    def show(self, console: Console) -> None:
        """Print the table, then the targets, then what weakens the figures."""
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True, overflow="ignore")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for target in self.targets:
            console.print(f"{'PASS' if target.met else 'FAIL'}  {target}")
        for warning in self.warnings:
            console.print(f"note  {warning}")

    def write(self, path: Path) -> None:
        """Write everything as JSON, and the chart beside it."""
        content = {
            "benchmark": self.name,
            "title": self.title,
            "measured": datetime.now(UTC).date().isoformat(),
            "machine": {
                "processor": f"{os.cpu_count()} x {_processor()}",
                "python": platform.python_version(),
                "system": platform.platform(),
            },
            "columns": self.columns,
            "rows": self.rows,
            "figures": self.figures,
            "targets": [{**asdict(target), "met": target.met} for target in self.targets],
            "warnings": self.warnings,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if self.chart is not None:
            path.with_suffix(".svg").write_text(self.chart.svg(), encoding="utf-8")


def _processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def spread(values: Sequence[float]) -> str:
    """The median, and between what the values lie."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"
