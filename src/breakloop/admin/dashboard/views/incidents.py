"""Incidents as the dashboard shows them: which come first, what each says in a line, and what a score is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from breakloop.admin.dashboard.views import words
from breakloop.model.records import CLEARED, OPEN, STOPPED, Incident
from breakloop.quarantine import Hold

STATES: Final = (OPEN, STOPPED, CLEARED)
_RANK: Final = {OPEN: 0, STOPPED: 1, CLEARED: 2}
_SAID: Final = {OPEN: "going on", STOPPED: "stopped", CLEARED: "over"}
_MEANS: Final = {
    OPEN: "The agent repeats itself and was warned; its requests still pass.",
    STOPPED: "The agent repeats itself and its requests are denied.",
    CLEARED: "The loop is over.",
}
_SCORED: Final = (
    ("prompts", "prompt_weight", "Similar prompts"),
    ("responses", "response_weight", "Similar answers"),
    ("tools", "tool_weight", "The same tool calls"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One line of a score: how many, what each counts, what they add up to, and its share of the whole."""

    name: str
    number: str
    weight: str
    points: str
    share: float


@dataclass(frozen=True, slots=True)
class Score:
    """What a score is made of."""

    parts: tuple[Part, ...]
    total: str
    threshold: str
    window: str


def first_open(incidents: Iterable[Incident]) -> list[Incident]:
    """Return incidents with those that go on first, then the stopped ones, each the newest first."""
    return sorted(incidents, key=lambda one: (_RANK.get(one.state, 3), -one.last_at))


def state_said(state: str) -> str:
    """Return what a state is called."""
    return _SAID.get(state, words.shortened(state, 20))


def state_means(incident: Incident) -> str:
    """Return what a state means for this incident, in a sentence."""
    if incident.shadow:
        return "A policy in shadow mode saw it: nothing was done."
    if incident.state == OPEN and incident.saved_requests:
        denied = words.counted(incident.saved_requests, "request")
        return f"The agent repeats itself and was warned; {denied} of it {_was(incident.saved_requests)} denied."
    return _MEANS.get(incident.state, "")


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def held(incident: Incident, holds: Iterable[Hold]) -> Hold | None:
    """Return what holds the agent of an incident, if anything does."""
    return next((one for one in holds if (one.project, one.agent) == (incident.project, incident.agent)), None)


def score(given: Mapping[str, Any]) -> Score | None:
    """Return what a `simhash` score is made of; None where an incident has none."""
    total = _float(given.get("score"))
    if total is None:
        return None
    parts = []
    for counts, weighs, name in _SCORED:
        number, weight = _float(given.get(counts)), _float(given.get(weighs))
        if number is not None and weight is not None:
            points = number * weight
            share = min(1.0, points / total) if total else 0.0
            parts.append(Part(name, f"{number:g}", f"{weight:g}", f"{points:g}", share))
    threshold, window = _float(given.get("threshold")), _float(given.get("window_requests"))
    return Score(tuple(parts), f"{total:g}", _said(threshold), _said(window))


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _said(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
