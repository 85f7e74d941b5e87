"""A bar chart as SVG, written by hand: groups of bars with their spread, each with its figure beside it. Readable on a
light and on a dark page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 250, 170, 56
_BAR, _GAP, _GROUP_GAP = 18, 6, 30
_PLOT = _WIDTH - _LEFT - _RIGHT
_COLOURS = ("#8a8f98", "#2f7ed8", "#1b9e77", "#d95f02", "#7b5ea7", "#c0392b")
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; } .group { font-weight: 600; } .small { font-size: 11px; fill: #656d76; }
.grid { stroke: #d0d7de; } .spread { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #8d96a0; } .grid { stroke: #3d444d; } .spread { stroke: #e6edf3; }
}"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure, between what it lay, and what to write beside it."""

    label: str
    value: float
    note: str
    low: float
    high: float


@dataclass(slots=True)
class Chart:
    """Groups of bars, in the order they are added. With `log`, every step of the scale is ten times the one before."""

    title: str
    unit: str
    log: bool = False
    groups: dict[str, list[Bar]] = field(default_factory=dict)

    def add(self, group: str, bar: Bar) -> None:
        """Add a bar; bars with the same label have the same colour."""
        self.groups.setdefault(group, []).append(bar)

    def compare(self, group: str, label: str, costs_us: Sequence[float], times: Sequence[float]) -> None:
        """Add what something costs, or without `log`, how many times as much as the peer, with the cost beside it."""
        cost_us, ratio = statistics.median(costs_us), statistics.median(times)
        told = f"{cost_us:.3g} us" if cost_us < 100 else f"{cost_us:,.0f} us"
        if self.log:
            self.add(group, Bar(label, cost_us, f"{told}, {ratio:.3g} x", min(costs_us), max(costs_us)))
        else:
            self.add(group, Bar(label, ratio, f"{ratio:.2f} x, {told}", min(times), max(times)))

    def svg(self) -> str:
        """The picture."""
        body = list(self._body())
        height = self._height()
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(self.title)}">\n<style>\n{_STYLE}\n</style>\n'
            + "\n".join(body)
            + "\n</svg>\n"
        )

    def _height(self) -> int:
        rows = sum(len(bars) for bars in self.groups.values())
        return _TOP + rows * (_BAR + _GAP) + len(self.groups) * _GROUP_GAP + 44

    def _bars(self) -> Iterator[Bar]:
        for bars in self.groups.values():
            yield from bars

    def _ends(self) -> tuple[float, float]:
        most = max(bar.high for bar in self._bars())
        if not self.log:
            return 0.0, most
        least = min(bar.low for bar in self._bars())
        return 10.0 ** math.floor(math.log10(least)), 10.0 ** math.ceil(math.log10(most))

    def _ticks(self) -> list[float]:
        least, most = self._ends()
        if self.log:
            return [least * 10.0**step for step in range(round(math.log10(most / least)) + 1)]
        step = 10.0 ** math.floor(math.log10(most))
        step = next(step * part for part in (1.0, 0.5, 0.2, 0.1) if most / (step * part) >= 4)
        return [step * number for number in range(int(most / step) + 1)]

    def _x(self, value: float) -> float:
        least, most = self._ends()
        share = math.log(value / least) / math.log(most / least) if self.log else value / most
        return round(_LEFT + share * _PLOT, 1)

    def _body(self) -> Iterator[str]:
        bottom = self._height() - 40
        yield f'<text class="title" x="16" y="28">{escape(self.title)}</text>'
        for tick in self._ticks():
            x = self._x(tick)
            yield f'<line class="grid" x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{bottom}"/>'
            yield f'<text class="small" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:,.6g}</text>'
        at = f'x="{_LEFT + _PLOT / 2}" y="{bottom + 32}"'
        yield f'<text class="small" {at} text-anchor="middle">{escape(self.unit)}</text>'
        labels = list(dict.fromkeys(bar.label for bar in self._bars()))
        y = _TOP
        for group, bars in self.groups.items():
            yield f'<text class="group" x="16" y="{y + 14}">{escape(group)}</text>'
            y += _GROUP_GAP - 8
            for bar in bars:
                yield from self._bar(bar, y, _COLOURS[labels.index(bar.label) % len(_COLOURS)])
                y += _BAR + _GAP
            y += 8

    def _bar(self, bar: Bar, y: int, colour: str) -> Iterator[str]:
        start, end, low, high = _LEFT, self._x(bar.value), self._x(bar.low), self._x(bar.high)
        middle = y + _BAR / 2
        yield f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>'
        yield f'<rect x="{start}" y="{y}" width="{max(1.0, end - start):.1f}" height="{_BAR}" rx="2" fill="{colour}"/>'
        yield f'<line class="spread" x1="{low}" y1="{middle}" x2="{high}" y2="{middle}"/>'
        yield f'<text x="{high + 8}" y="{y + 14}">{escape(bar.note)}</text>'
