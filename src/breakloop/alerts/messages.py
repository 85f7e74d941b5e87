"""The text of an alert: a title, a sentence, facts in a fixed order, and a severity.

Email, chat and pager channels format an `AlertMessage`; webhooks get the event's payload instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from breakloop.formatting import timestamp
from breakloop.model import events
from breakloop.model.verdict import ANSWERS, UNANSWERED

INFO, WARNING, ERROR, CRITICAL = "info", "warning", "error", "critical"
_FACT_MAX: Final = 500
_DONE: Final = {
    "warn": "warned",
    "steer": "steered",
    "throttle": "slowed down",
    "land": "landed",
    "pause": "paused",
    "reject": "stopped",
    "cut": "cut off",
    "kill": "quarantined",
}
# The fields of an event's data that are shown, with their labels, in this order.
_FACTS: Final = (
    ("agent", "Agent"), ("kind", "Kind of loop"), ("evidence", "Evidence"), ("hit_count", "Times"),
    ("action", "Action"), ("cooldown_seconds", "Blocked for"), ("reason", "Reason"), ("model", "Model"),
    ("session", "Session"), ("policy", "Policy"),
    ("rule", "Rule"), ("process", "Process"), ("ended", "Ended"), ("problem", "Problem"), ("error", "Error"),
    ("cause", "Cause"), ("scope_key", "Scope"), ("scope_value", "Value"), ("change", "Change"), ("by", "By"),
    ("caller", "Caller"), ("fingerprint", "Fingerprint"), ("tree", "Tree of agents"),
    ("tree_url", "Picture of the tree"),
)  # fmt: skip
_TITLES: Final = {
    events.AGENT_KILLED: "{who} is quarantined",
    events.AGENT_RELEASED: "{who} is released",
    events.RUN_PAUSED: "{who} is paused and waits for your answer",
    events.RUN_ANSWERED: "{who} is no longer paused",
    events.BUDGET_THRESHOLD: "Budget {rule} of {policy} is at {threshold_percent} %",
    events.BREAKER_OPENED: "Circuit breaker of {policy} is open: {spent} per minute",
    events.BREAKER_CLOSED: "Circuit breaker of {policy} is closed again",
    events.LIMIT_EXCEEDED: "Limit {rule} of {policy} denies requests",
    "limit.over": "Limit {rule} of {policy} no longer denies requests",
    events.SHADOW_WOULD_REJECT: "{policy} would deny requests (shadow)",
    "shadow.over": "{policy} would no longer deny requests (shadow)",
    events.STORE_DEGRADED: "The shared store is unavailable: each instance decides on its own",
    events.UPSTREAM_FAILED: "Upstream {upstream} is failing",
    events.STORE_RECOVERED: "The shared store is available again",
    events.BUNDLE_REJECTED: "A policy bundle was rejected; the current one stays active",
    events.BUNDLE_EXPIRED: "The policy bundle has expired and stays active",
    events.BUNDLE_LOADED: "A new policy bundle is active",
    events.WORKER_DIED: "A breakloop process died: {process}",
    events.WORKER_REPLACED: "A breakloop process was replaced: {process}",
    events.KILL_SWITCH_CHANGED: "Kill switch {id}: {change}",
    events.OVERRIDE_CHANGED: "Override {name}: {change}",
    events.MODEL_UNKNOWN: "Model {model} has no price",
    events.API_UNKNOWN: "Requests to {path} look like those of an LLM API that is not known: not judged",
    "alert.test": "Test: breakloop alerts arrive here",
}


@dataclass(frozen=True, slots=True)
class AlertMessage:
    title: str
    text: str
    facts: tuple[tuple[str, str], ...]
    severity: str
    recovered: bool
    rule: str
    key: str
    at: str
    link: str  # to the dashboard; empty if there is none
    source: str  # the agent, or the project
    answers: tuple[tuple[str, str], ...] = ()  # words and link of each answer for a paused run

    def plain(self) -> str:
        lines = [self.title, "", self.text, "", *(f"{name}: {value}" for name, value in self.facts)]
        answers = [f"{words}: {link}" for words, link in self.answers]
        return "\n".join([*lines, *([""] if answers else []), *answers, *(["", self.link] if self.link else [])]) + "\n"


def message_of(body: str, dashboard_url: str = "") -> AlertMessage:
    """Return the message for a delivery's body, as `AlertNotice.body` made it."""
    notice = json.loads(body)
    payload, about = notice["payload"], notice["about"]
    recovered, data = notice["state"] == "recovered", about["data"]
    text = _recovery_text(notice) if recovered else _text(payload["event"], data)
    incident = str(data.get("incident") or "")
    links = [(words, str(data.get(f"answer_{answer}_url") or "")) for answer, words in ANSWERS.items()]
    answers = () if recovered else tuple((words, link) for words, link in links if link)
    return AlertMessage(
        title=one_line(_title(payload["event"], data | payload["data"]), 150),
        text=one_line(text, 600),
        facts=_facts(notice, about),
        severity=INFO if recovered else severity(payload["event"], data),
        recovered=recovered,
        rule=one_line(notice["rule"], 100),
        key=notice["key"],
        at=payload["timestamp"],
        link=_link(dashboard_url, f"/incidents/{incident}" if incident else "/pauses" if answers else ""),
        source=one_line(data.get("agent") or about["project_id"] or "breakloop", 200),
        answers=answers,
    )


def _link(dashboard_url: str, path: str) -> str:
    return f"{dashboard_url.rstrip('/')}{path}" if dashboard_url and path else dashboard_url


def one_line(text: object, max_length: int) -> str:
    """Return one line without control characters: names come from requests and can contain anything."""
    line = re.sub(r"\s+", " ", "".join(char if char.isprintable() else " " for char in str(text))).strip()
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def money(microusd: object) -> str:
    if not isinstance(microusd, int | float):
        return ""
    usd = microusd / 1_000_000
    return f"${usd:,.2f}" if usd >= 0.01 or not usd else f"${usd:.6f}".rstrip("0")


def severity(event: str, data: Mapping[str, Any]) -> str:
    if event in {events.AGENT_KILLED, events.BREAKER_OPENED}:
        return CRITICAL
    if event == events.LOOP_DETECTED:
        stopped = data.get("action") in {"reject", "kill", "cut"} and not data.get("shadow")
        return CRITICAL if stopped else WARNING
    if event == events.BUDGET_THRESHOLD:
        percent = data.get("threshold_percent")
        return CRITICAL if isinstance(percent, int | float) and percent >= 100 else WARNING
    if event in {events.STORE_DEGRADED, events.BUNDLE_REJECTED, events.WORKER_DIED, events.UPSTREAM_FAILED}:
        return ERROR
    return WARNING if event in {events.BUNDLE_EXPIRED, events.KILL_SWITCH_CHANGED, events.RUN_PAUSED} else INFO


class _Placeholders(dict[str, str]):
    """The values of a title; a missing one is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _title(event: str, data: Mapping[str, Any]) -> str:
    agent = one_line(data.get("agent") or "", 60)
    who = f"Agent {agent}" if agent else "An agent"
    shadow = " (shadow)" if data.get("shadow") else ""
    if event == events.LOOP_DETECTED:
        spent = money(data.get("spent_microusd") or None)
        done = _DONE.get(str(data.get("action")), str(data.get("action")))
        return f"{who} loops ({data.get('kind') or 'loop'}), {done}{f', {spent} spent' if spent else ''}{shadow}"
    if event == events.LOOP_CLEARED:
        saved = money(data.get("saved_microusd"))
        return f"{who} no longer loops{f', {saved} saved' if saved else ''}{shadow}"
    known = _Placeholders(
        {name: one_line(value, 60) for name, value in data.items()} | {"who": who, "spent": amount(data, "rate")}
    )
    return _TITLES.get(event, event.replace("{", "").replace("}", "")).format_map(known) + shadow


def amount(data: Mapping[str, Any], name: str) -> str:
    """Format a number of a budget or a breaker with its unit."""
    value, unit = data.get(name), data.get("unit")
    if not isinstance(value, int | float):
        return "?"
    if unit == "microusd":
        return money(value)
    return f"{value:,.0f} tokens" if unit == "token" else f"{value / 1000:,.3f}".rstrip("0").rstrip(".")


def _text(event: str, data: Mapping[str, Any]) -> str:
    if event == events.LOOP_DETECTED:
        spent, saved = (money(data.get(name) or None) for name in ("spent_microusd", "saved_microusd"))
        sentences = [
            str(data.get("evidence") or "The agent repeats itself."),
            f"The loop cost {spent}." if spent else "",
            f"Stopping it saved {saved}." if saved else "",
        ]
        return " ".join(sentence for sentence in sentences if sentence)
    if event == events.AGENT_KILLED:
        until = "until it is released" if data.get("expires_at") is None else "for a limited time"
        return f"Its requests are denied {until}. {data.get('reason') or ''}"
    if event in {events.BUDGET_THRESHOLD, events.BREAKER_OPENED}:
        names = ("used", "budget") if event == events.BUDGET_THRESHOLD else ("rate", "threshold")
        landed = " From here on, requests pass with tools switched off." if data.get("action") == "land" else ""
        return f"{amount(data, names[0])} of {amount(data, names[1])}.{landed}"
    if event == events.RUN_PAUSED:
        due = data.get("answer_by")
        then = UNANSWERED.get(str(data.get("then")), "")
        end = f". Without an answer by {timestamp(due)}, {then}." if isinstance(due, int | float) else ""
        return f"{str(data.get('reason') or '').rstrip('.')}{end}"
    return str(data.get("error") or data.get("problem") or data.get("reason") or "")


def _recovery_text(notice: Mapping[str, Any]) -> str:
    why = str(notice["payload"]["data"].get("reason") or "")
    times = f"It occurred {notice['count']} times since {notice['since']}." if notice["count"] > 1 else ""
    return " ".join(part for part in (f"It is over: {why}." if why else "It is over.", times) if part)


def _facts(notice: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    data = about["data"]
    told = {"reason"} if about["event"] == events.RUN_PAUSED else set()  # in the text
    shown = [(name, label) for name, label in _FACTS if name not in told and data.get(name) not in (None, "", 0)]
    found = [(label, _fact(name, data[name])) for name, label in shown]
    for name, label in (
        ("spent_microusd", "Cost of the loop"),
        ("saved_microusd", "Saved"),
        ("saved_requests", "Denied"),
    ):
        if data.get(name):
            found.append((label, money(data[name]) if name.endswith("usd") else f"{data[name]} requests"))
    found += [("Project", one_line(about["project_id"], 100)), ("Alert rule", one_line(notice["rule"], 100))]
    found.append(("Time", notice["payload"]["timestamp"]))
    return tuple((label, value) for label, value in found if value)


def _fact(name: str, value: object) -> str:
    return f"{value} s" if name == "cooldown_seconds" else one_line(value, _FACT_MAX)
