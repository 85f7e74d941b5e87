"""`Figures`: what one process has to show as metrics, at one moment, as plain numbers that can be sent to another and
added up. Who gathers them and how they are written is `observe`'s business."""

from __future__ import annotations

from dataclasses import dataclass, field

Labels = tuple[str, ...]  # values, in the order of the metric's labels
Series = dict[Labels, float]


@dataclass(slots=True)
class Spread:
    """A histogram: how many in each bucket, the rest in the last, and their sum."""

    counts: list[int]
    total: float


@dataclass(slots=True)
class Figures:
    """By name of the metric."""

    counters: dict[str, Series] = field(default_factory=dict)  # only ever grow
    sums: dict[str, Series] = field(default_factory=dict)  # now; those of several processes are added
    highest: dict[str, Series] = field(default_factory=dict)  # now; the highest of several processes counts
    spreads: dict[str, dict[Labels, Spread]] = field(default_factory=dict)

    def count(self, name: str, value: float, *labels: str) -> None:
        """Set a counter, or add to what it has under the same labels."""
        _add(self.counters.setdefault(name, {}), labels, value)

    def level(self, name: str, value: float, *labels: str) -> None:
        """Set what is there now."""
        _add(self.sums.setdefault(name, {}), labels, value)

    def mark(self, name: str, value: float, *labels: str) -> None:
        """Set what is so now, for all processes if it is for one."""
        _raise(self.highest.setdefault(name, {}), labels, value)

    def spread(self, name: str, counts: list[int], total: float, *labels: str) -> None:
        """Set a histogram, or add to what it has under the same labels."""
        self._add_spread(name, labels, Spread(counts, total))

    def add(self, more: Figures, *, gone: bool = False) -> None:
        """Add another process's; of one that is `gone` only what it had counted."""
        for name, series in more.counters.items():
            for labels, value in series.items():
                _add(self.counters.setdefault(name, {}), labels, value)
        for name, spreads in more.spreads.items():
            for labels, spread in spreads.items():
                self._add_spread(name, labels, spread)
        if gone:
            return
        for name, series in more.sums.items():
            for labels, value in series.items():
                _add(self.sums.setdefault(name, {}), labels, value)
        for name, series in more.highest.items():
            for labels, value in series.items():
                _raise(self.highest.setdefault(name, {}), labels, value)

    def _add_spread(self, name: str, labels: Labels, more: Spread) -> None:
        ours = self.spreads.setdefault(name, {})
        known = ours.get(labels)
        if known is None:
            ours[labels] = Spread(list(more.counts), more.total)
        else:
            known.counts = [one + other for one, other in zip(known.counts, more.counts, strict=True)]
            known.total += more.total


def _add(series: Series, labels: Labels, value: float) -> None:
    series[labels] = series.get(labels, 0) + value


def _raise(series: Series, labels: Labels, value: float) -> None:
    series[labels] = max(series.get(labels, value), value)


class FigureTotals:
    """The figures of several processes together, those that are gone included."""

    __slots__ = ("_gone", "_live")

    def __init__(self) -> None:
        self._live: dict[int, Figures] = {}  # by process id
        self._gone = Figures()

    def heard(self, pid: int, figures: Figures) -> None:
        """A process has come so far."""
        self._live[pid] = figures

    def ended(self, pid: int) -> None:
        """A process is gone; what it counted stays."""
        figures = self._live.pop(pid, None)
        if figures is not None:
            self._gone.add(figures, gone=True)

    def sum(self) -> Figures:
        """Return all of them together, now."""
        total = Figures()
        for figures in (self._gone, *self._live.values()):
            total.add(figures)
        return total
