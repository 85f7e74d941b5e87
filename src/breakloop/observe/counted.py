"""What is counted off the path of a request: events by their names, loops by kind, denials by policy, and money by
project and model. Listens to `bus.Fan` and to the sums that history gets; bounded, for names come from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from breakloop.model.activity import Activity
from breakloop.model.events import LIMIT_EXCEEDED, LOOP_DETECTED, SHADOW_WOULD_REJECT, Event
from breakloop.model.figures import Figures, Labels
from breakloop.observe.metric_table import OTHER

KEPT: Final = 2_000  # combinations of one metric; more are counted under `other`
_BY_POLICY: Final = {
    LIMIT_EXCEEDED: "breakloop_limit_denials_total",
    SHADOW_WOULD_REJECT: "breakloop_shadow_rejects_total",
}


class Counted:
    """Counts since start."""

    __slots__ = ("_figures", "_kept")

    def __init__(self, kept: int = KEPT) -> None:
        self._figures = Figures()
        self._kept = kept

    def take(self, events: Sequence[Event]) -> None:
        """Count events; a listener of `bus.Fan`."""
        for event in events:
            self._add("breakloop_events_total", 1, event.name)
            if event.name == LOOP_DETECTED:
                labels = _texts(event, "kind", "action")
                shadow = "true" if event.data.get("shadow") else "false"
                self._add("breakloop_loops_total", 1, *labels, shadow)
            elif event.name in _BY_POLICY:
                self._add(_BY_POLICY[event.name], 1, *_texts(event, "policy", "reason"))

    def spent(self, activity: Activity) -> None:
        """Count what agents spent, and what was saved."""
        for (project, _, _), use in activity.agents.items():
            if use.cost_microusd:
                self._add("breakloop_spend_microusd_total", use.cost_microusd, project)
                self._add("breakloop_model_spend_microusd_total", use.cost_microusd, use.model)
        for (project, _, _, _), loop in activity.loops.items():
            if loop.stopped:
                self._add("breakloop_saved_requests_total", loop.stopped, project)
                self._add("breakloop_saved_microusd_total", loop.stopped_microusd, project)

    def breakers(self, is_open: int) -> None:
        """Take down how many circuit breakers are open now."""
        self._figures.highest["breakloop_breakers_open"] = {(): is_open}

    def figures(self) -> Figures:
        """Return what was counted."""
        return self._figures

    def _add(self, name: str, value: float, *labels: str) -> None:
        known = self._figures.counters.get(name, {})
        bounded: Labels = labels if labels in known or len(known) < self._kept else (OTHER,) * len(labels)
        self._figures.count(name, value, *bounded)


def _texts(event: Event, *names: str) -> list[str]:
    return [str(event.data.get(name, "")) for name in names]
