"""Converts records into what templates show. Pure functions, without a server, a clock or a database."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from breakloop.admin.dashboard import words
from breakloop.engine.quarantine import RUN, Hold
from breakloop.engine.tree_budgets import TreeSpending
from breakloop.errors import OrderError
from breakloop.formatting import plural
from breakloop.history.tree_book import ACTIVE_S as TREE_ACTIVE_S
from breakloop.history.tree_book import TreeNode, TreeRecord
from breakloop.model.records import CLEARED, OPEN, STOPPED, AgentRecord, EventRecord, Incident, Point
from breakloop.model.verdict import REASONS
from breakloop.policy.compiled import CompiledKillSwitch

RUNNING, QUARANTINED, KILL_SWITCH, INACTIVE, OFF = "running", "quarantined", "kill switch", "inactive", "off"
AGENT_STATES: Final = (RUNNING, QUARANTINED, KILL_SWITCH, INACTIVE, OFF)
ACTIVE_S: Final = 900.0  # an agent that was seen within this time is running


@dataclass(frozen=True, slots=True)
class AgentRow:
    agent: AgentRecord
    state: str
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class AgentField:
    name: str
    label: str
    hint: str
    kind: str  # "number", "text" or "switch"
    value: str = ""
    step: str = "any"


FIELDS: Final = (
    AgentField("active", "May send requests", "Off: every request is denied.", "switch"),
    AgentField("budget_usd_per_day", "US dollars per day", "Empty: no budget of its own.", "number"),
    AgentField("allowed_hours", "Hours", "For example 08:00-18:00; empty: always.", "text"),
    AgentField("timezone", "Time zone", "Of hours and budget, for example Europe/Paris.", "text"),
    AgentField("requests_per_minute", "Requests per minute", "Empty: no limit of its own.", "number", step="1"),
    AgentField(
        "max_steps_per_run",
        "Steps per run",
        "At the limit the run is stopped until it is released.",
        "number",
        step="1",
    ),
    AgentField(
        "max_usd_per_run", "US dollars per run", "At the limit the run is stopped until it is released.", "number"
    ),
    AgentField("max_runs_per_hour", "Runs per hour", "Empty: any number may open.", "number", step="1"),
    AgentField(
        "max_usd_per_tree",
        "US dollars per tree",
        "Denied once the agents that started each other have spent this together.",
        "number",
    ),
    AgentField("max_tokens_per_tree", "Tokens per tree", "The same in tokens.", "number", step="1"),
    AgentField(
        "kill_switch_enabled", "Quarantine on similar requests", "Scores prompts, responses and tool calls.", "switch"
    ),
)


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A session in the picture of a tree. The bar is from its first to its last request, in percent of the time of the
    tree; `share` is its part of the cost, or of the tokens if nothing has a price.
    """

    node: TreeNode
    left: float
    width: float
    share: float
    held: str  # "stopped", or "finishing" if it is asked to; "" if it is neither
    at_work: bool
    started: int  # sessions that it started, directly or not


_HELD: Final = {None: "", False: "stopped", True: "finishing"}


def tree_rows(tree: TreeRecord, held: Mapping[str, bool], now: float) -> list[TreeRow]:
    """Return the rows of the picture of a tree. `held` are the runs that are stopped, or asked to finish (True)."""
    begin, whole_s = tree.first_at, max(tree.last_at - tree.first_at, 1.0)
    total, priced = max(tree.cost_microusd or tree.tokens, 1), tree.cost_microusd > 0
    rows: list[TreeRow] = []
    for node in tree.nodes:
        use = node.use
        at, until = (node.first_at - begin) / whole_s, (use.last_at - begin) / whole_s
        spent = use.cost_microusd if priced else use.tokens
        rows.append(
            TreeRow(
                node,
                left=100 * min(at, 0.99),
                width=max(100 * (until - at), 1.0),
                share=spent / total,
                held=_HELD[held.get(f"{tree.caller}|{node.session}")],
                at_work=now - use.last_at < TREE_ACTIVE_S,
                started=len(tree.below(node.session)) - 1,
            )
        )
    return rows


def incidents_of(tree: TreeRecord, events: Iterable[EventRecord]) -> list[EventRecord]:
    """Return the newest event of each incident in a tree."""
    named = (tree.caller, tree.root)
    found = [one for one in events if one.incident and (one.data.get("caller"), one.data.get("tree")) == named]
    return list({one.incident: one for one in reversed(found)}.values())[::-1]


def is_of(spent: TreeSpending, tree: TreeRecord) -> bool:
    """Tell whether a budget is that of a tree."""
    named = (spent.project, spent.caller, spent.root)
    return named == (tree.project, tree.caller, tree.root) and not spent.shadow


def holds_of(agent: AgentRecord, holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Return the holds on an agent or one of its runs."""
    return tuple(one for one in holds if (one.project, one.agent) == (agent.project, agent.agent))


def unseen(project: str, name: str) -> AgentRecord:
    """Return the record of an agent that was never seen but is quarantined."""
    return AgentRecord(project, name, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, "")


def state_of(agent: AgentRecord, holds: Sequence[Hold], stops: CompiledKillSwitch | None, now: float) -> str:
    """Return its state: quarantined, stopped by a kill switch, disabled, running, or not seen recently."""
    if any(one.binds != RUN for one in holds):
        return QUARANTINED
    if stops is not None:
        return KILL_SWITCH
    if agent.settings.get("active") is False:
        return OFF
    return RUNNING if now - agent.last_at < ACTIVE_S else INACTIVE


def rows(
    agents: Iterable[AgentRecord],
    holds: Sequence[Hold],
    stops: Callable[[str], CompiledKillSwitch | None],
    now: float,
    state: str = "",
) -> list[AgentRow]:
    """Return agents with their states, only those in `state` if it is given."""
    found = []
    for agent in agents:
        held = holds_of(agent, holds)
        found.append(AgentRow(agent, state_of(agent, held, stops(agent.agent), now), held))
    return [row for row in found if state in {"", row.state}]


def dearest(agents: Iterable[AgentRecord], most: int = 5) -> list[tuple[AgentRecord, float]]:
    """Return the agents that cost most today, each with its share of the highest cost."""
    spent = sorted((one for one in agents if one.today_microusd), key=lambda one: -one.today_microusd)[:most]
    return [(one, one.today_microusd / spent[0].today_microusd) for one in spent]


def ends(hold: Hold) -> float | None:
    """Return when a hold expires; None if it must be released."""
    return None if math.isinf(hold.until) else hold.until


def fields(settings: Mapping[str, Any]) -> list[AgentField]:
    """Return the settings form, filled with the run-time settings."""
    limit = settings.get("rate_limit")
    given = dict(settings)
    if isinstance(limit, Mapping):
        given["requests_per_minute"] = limit.get("requests_per_minute", "")
    given.setdefault("active", True)
    return [replace(one, value=_shown(one, given.get(one.name))) for one in FIELDS]


def _shown(field: AgentField, value: object) -> str:
    if value is None or value is False or (field.kind == "number" and not isinstance(value, int | float)):
        return ""
    return "on" if value is True else str(value)


def changes(form: Mapping[str, str], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a form; None removes a setting, so that the bundle applies. Raises `OrderError`."""
    made: dict[str, Any] = {}
    for one in FIELDS:
        text = form.get(one.name, "").strip()
        if one.kind == "switch":
            default = one.name == "active"
            made[one.name] = None if bool(text) is default else not default
        elif one.kind == "number":
            made[one.name] = _number(one, text) if text else None
        else:
            made[one.name] = text or None
    rate, before = made.pop("requests_per_minute"), kept.get("rate_limit")
    limit = dict(before) if isinstance(before, Mapping) else {}
    made["rate_limit"] = None if rate is None else limit | {"requests_per_minute": rate}
    return made


def _number(field: AgentField, text: str) -> int | float:
    try:
        return int(text) if field.step == "1" else float(text)
    except ValueError:
        raise OrderError([f"{field.name}: must be a {'whole ' if field.step == '1' else ''}number"]) from None


_TONES: Final = {
    "delivered": "good",
    "ok": "good",
    "pending": "warn",
    "waiting": "warn",
    "failing": "warn",
    "failed": "bad",
    "disabled": "bad",
}


def tone(state: object) -> str:
    return _TONES.get(str(state), "info")


ROWS_MAX: Final = 200


def counters_table(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and the rows. The key comes first."""
    names = list(dict.fromkeys(["key", *(name for row in found for name in row)])) if found else []
    return [words.shortened(name.replace("_", " "), 40) for name in names], [
        [words.value_words(name, row.get(name, "")) for name in names] for row in found[:ROWS_MAX]
    ]


TABLE_ROWS: Final = 24


@dataclass(frozen=True, slots=True)
class CurveSpan:
    """A span of time up to now."""

    name: str
    said: str
    length_s: int
    step_s: int

    def since(self, now: float) -> float:
        """Return its begin, aligned to an interval."""
        return (now - self.length_s) // self.step_s * self.step_s


SPANS: Final = (
    CurveSpan("1h", "last hour", 3_600, 60),
    CurveSpan("24h", "last 24 hours", 86_400, 900),
    CurveSpan("7d", "last 7 days", 7 * 86_400, 7_200),
    CurveSpan("30d", "last 30 days", 30 * 86_400, 21_600),
)
DAY: Final = SPANS[1]


def span(name: str) -> CurveSpan:
    """Return the span of this name; a day by default."""
    return next((one for one in SPANS if one.name == name), DAY)


def chart(points: Sequence[Point]) -> str:
    """Return JSON: times, allowed requests, denials, dollars spent and saved."""
    columns: list[list[Any]] = [
        [one.at for one in points],
        [max(0, one.requests - one.denied) for one in points],
        [one.denied for one in points],
        [one.cost_microusd / 1e6 for one in points],
        [one.saved_microusd / 1e6 for one in points],
    ]
    return json.dumps(columns, separators=(",", ":"))


def curve_table(points: Sequence[Point], rows: int = TABLE_ROWS) -> list[tuple[float, str, str, str, str]]:
    """Return the same as a table of at most `rows` rows, the newest first: begin, requests, denied, spent, saved."""
    size = max(1, (len(points) + rows - 1) // rows)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [
        (
            group[0].at,
            words.count(sum(one.requests for one in group)),
            words.count(sum(one.denied for one in group)),
            words.money(sum(one.cost_microusd for one in group)),
            words.money(sum(one.saved_microusd for one in group)),
        )
        for group in reversed(groups)
    ]


def anything(points: Sequence[Point]) -> bool:
    return any(one.requests or one.denied for one in points)


INCIDENT_STATES: Final = (OPEN, STOPPED, CLEARED)
_RANK: Final = {OPEN: 0, STOPPED: 1, CLEARED: 2}
_STATE_NAMES: Final = {OPEN: "open", STOPPED: "stopped", CLEARED: "over"}
_MEANS: Final = {
    OPEN: "The agent repeats itself and was warned; its requests are still allowed.",
    STOPPED: "The agent repeats itself and its requests are denied.",
    CLEARED: "The loop is over.",
}
_LANDED: Final = {  # the last that was done
    OPEN: "The agent repeats itself; its requests pass with tools switched off, and the model is asked to finish.",
    CLEARED: "The loop is over: the model was asked to finish, with tools switched off.",
}
_SCORED: Final = (
    ("prompts", "prompt_weight", "Similar prompts"),
    ("responses", "response_weight", "Similar responses"),
    ("tools", "tool_weight", "The same tool calls"),
)


def first_open(incidents: Iterable[Incident]) -> list[Incident]:
    """Return incidents: open ones first, then the stopped ones, each the newest first."""
    return sorted(incidents, key=lambda one: (_RANK.get(one.state, 3), -one.last_at))


def state_said(state: str) -> str:
    return _STATE_NAMES.get(state, words.shortened(state, 20))


def state_means(incident: Incident) -> str:
    """Return what a state means for this incident, in a sentence."""
    if incident.shadow:
        return "Detected by a policy in shadow mode: nothing was done."
    if incident.action == "land" and incident.state in _LANDED:
        return _LANDED[incident.state]
    if incident.state == OPEN and incident.saved_requests:
        denied = plural(incident.saved_requests, "request")
        return f"The agent repeats itself and was warned; {denied} of it {_was(incident.saved_requests)} denied."
    return _MEANS.get(incident.state, "")


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def held(incident: Incident, holds: Iterable[Hold]) -> Hold | None:
    """Return the hold on the agent of an incident, if there is one."""
    return next((one for one in holds if (one.project, one.agent) == (incident.project, incident.agent)), None)


def score(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a `simhash` score and its `parts`: how many of what, the weight of each, the sum, and its share of the
    total. None if an incident has none."""
    total = _float(given.get("score"))
    if total is None:
        return None
    parts = []
    for counts, weighs, name in _SCORED:
        number, weight = _float(given.get(counts)), _float(given.get(weighs))
        if number is not None and weight is not None:
            points = number * weight
            share = min(1.0, points / total) if total else 0.0
            parts.append({"name": name, "number": number, "weight": weight, "points": points, "share": share})
    limits = {"threshold": _float(given.get("threshold")), "window": _float(given.get("window_requests"))}
    return {"parts": parts, "total": total, **limits}


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


Counts = Sequence[tuple[str, str, str, int]]  # policy, rule, reason, how often


def policies(given: Sequence[Mapping[str, Any]], counts: Counts, events: Sequence[EventRecord]) -> list[dict[str, Any]]:
    """Return the policies, those in shadow mode first: they wait for a decision. Adds what they would have denied."""
    made = [
        {**one, "in_shadow": one["mode"] == "shadow", "shadow": _denials(one["id"], counts, events)} for one in given
    ]
    return sorted(made, key=lambda one: not one["in_shadow"])


def _denials(policy: str, counts: Counts, events: Sequence[EventRecord]) -> dict[str, Any]:
    """Return what a policy in shadow mode would have denied; `parts` are rule, reason, its meaning, how often."""
    mine = sorted((row for row in counts if row[0] == policy), key=lambda row: -row[3])
    return {
        "total": sum(times for _, _, _, times in mine),
        "parts": [(rule, reason, _meaning(reason), times) for _, rule, reason, times in mine],
        "events": [one for one in events if one.data.get("policy") == policy],
    }


def _meaning(reason: str) -> str:
    known = REASONS.get(reason)
    return known.meaning.replace("`", "") if known is not None else ""
