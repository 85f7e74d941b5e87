"""A notice in words, for people: a title, a sentence, facts in order, and how grave it is. What all targets for people
(mail, chat, pagers) make their messages of; how they look is each target's business.

How a mail looks: an HTML part made of tables and inline styles, which is what mail programs understand, in light and
dark. Everything that comes from outside is escaped. The text part is `words.Message.plain`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from breakloop.model import events

INFO, WARNING, ERROR, CRITICAL = "info", "warning", "error", "critical"
_FACT_MAX: Final = 500
_DONE: Final = {
    "warn": "warned",
    "steer": "steered",
    "throttle": "slowed down",
    "reject": "stopped",
    "cut": "cut off",
    "kill": "held",
}
# Which of an event's data are shown, under which name, in this order.
_FACTS: Final = (
    ("agent", "Agent"), ("kind", "Kind of loop"), ("evidence", "Seen"), ("hit_count", "Times"), ("action", "Action"),
    ("cooldown_seconds", "Blocked for"), ("reason", "Reason"), ("model", "Model"), ("policy", "Policy"),
    ("rule", "Rule"), ("process", "Process"), ("ended", "Ended"), ("problem", "Problem"), ("error", "Error"),
    ("cause", "Cause"), ("scope_key", "Scope"), ("scope_value", "Value"), ("change", "Change"), ("by", "By"),
    ("caller", "Caller"), ("fingerprint", "Fingerprint"),
)  # fmt: skip


_TITLES: Final = {
    events.AGENT_KILLED: "{who} is held",
    events.AGENT_RELEASED: "{who} runs again",
    events.BUDGET_THRESHOLD: "Budget {rule} of {policy} is at {threshold_percent} %",
    events.BREAKER_OPENED: "Circuit breaker of {policy} is open: {spent} a minute",
    events.BREAKER_CLOSED: "Circuit breaker of {policy} is closed again",
    events.LIMIT_EXCEEDED: "Limit {rule} of {policy} denies requests",
    "limit.over": "Limit {rule} of {policy} denies nothing any more",
    events.SHADOW_WOULD_REJECT: "{policy} would deny requests (shadow)",
    "shadow.over": "{policy} would deny nothing any more (shadow)",
    events.STORE_DEGRADED: "The shared store fails: each instance decides alone",
    events.UPSTREAM_FAILED: "The upstream {upstream} fails",
    events.STORE_RECOVERED: "The shared store is used again",
    events.BUNDLE_REJECTED: "A policy bundle was refused; the one in force stays",
    events.BUNDLE_EXPIRED: "The policy bundle has expired and stays in force",
    events.BUNDLE_LOADED: "A policy bundle is in force",
    events.WORKER_DIED: "A process of breakloop died: {process}",
    events.WORKER_REPLACED: "A process of breakloop was replaced: {process}",
    events.KILL_SWITCH_CHANGED: "Kill switch {id}: {change}",
    events.OVERRIDE_CHANGED: "Override {name}: {change}",
    events.MODEL_UNKNOWN: "Model {model} has no price",
    "alert.test": "Test: alerts of breakloop arrive here",
}


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """What a person is told."""

    title: str
    text: str
    facts: tuple[tuple[str, str], ...]
    severity: str
    recovered: bool
    rule: str
    key: str
    at: str
    link: str  # to the dashboard; empty where there is none
    source: str  # the agent, or the project

    def plain(self) -> str:
        """Return it as text without any marks."""
        lines = [self.title, "", self.text, "", *(f"{name}: {value}" for name, value in self.facts)]
        return "\n".join([*lines, *(["", self.link] if self.link else [])]) + "\n"


def message(body: str, link: str = "") -> AlertMessage:
    """Put what `router.Notice.body` made into words; `link` is where the dashboard is."""
    notice = json.loads(body)
    payload, about = notice["payload"], notice["about"]
    recovered, data = notice["state"] == "recovered", about["data"]
    text = _over(notice) if recovered else _text(payload["event"], data)
    incident = str(data.get("incident") or "")
    return AlertMessage(
        title=clean(_title(payload["event"], data | payload["data"]), 150),
        text=clean(text, 600),
        facts=_facts(notice, about),
        severity=INFO if recovered else severity(payload["event"], data),
        recovered=recovered,
        rule=clean(notice["rule"], 100),
        key=notice["key"],
        at=payload["timestamp"],
        link=f"{link.rstrip('/')}/incidents/{incident}" if link and incident else link,
        source=clean(data.get("agent") or about["project_id"] or "breakloop", 200),
    )


def clean(text: object, most: int) -> str:
    """Return one line without control characters: names come from requests, and may hold anything."""
    line = re.sub(r"\s+", " ", "".join(sign if sign.isprintable() else " " for sign in str(text))).strip()
    return line if len(line) <= most else line[: most - 1] + "…"


def money(microusd: object) -> str:
    """Return an amount in dollars."""
    if not isinstance(microusd, int | float):
        return ""
    usd = microusd / 1_000_000
    return f"${usd:,.2f}" if usd >= 0.01 or not usd else f"${usd:.6f}".rstrip("0")


def severity(event: str, data: Mapping[str, Any]) -> str:
    """Return how grave an event is."""
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
    return WARNING if event in {events.BUNDLE_EXPIRED, events.KILL_SWITCH_CHANGED} else INFO


class _Words(dict[str, str]):
    """Data of an event as words; what is missing is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _title(event: str, data: Mapping[str, Any]) -> str:
    agent = clean(data.get("agent") or "", 60)
    who = f"Agent {agent}" if agent else "An agent"
    shadow = " (shadow)" if data.get("shadow") else ""
    if event == events.LOOP_DETECTED:
        spent = money(data.get("spent_microusd"))
        done = _DONE.get(str(data.get("action")), str(data.get("action")))
        return f"{who} loops ({data.get('kind') or 'loop'}), {done}{f', {spent} spent' if spent else ''}{shadow}"
    if event == events.LOOP_CLEARED:
        saved = money(data.get("saved_microusd"))
        return f"{who} loops no more{f', {saved} saved' if saved else ''}{shadow}"
    known = _Words(
        {name: clean(value, 60) for name, value in data.items()} | {"who": who, "spent": amount(data, "rate")}
    )
    return _TITLES.get(event, event.replace("{", "").replace("}", "")).format_map(known) + shadow


def amount(data: Mapping[str, Any], name: str) -> str:
    """Return a number of a budget or a breaker with its unit."""
    value, unit = data.get(name), data.get("unit")
    if not isinstance(value, int | float):
        return "?"
    if unit == "microusd":
        return money(value)
    return f"{value:,.0f} tokens" if unit == "token" else f"{value / 1000:,.3f}".rstrip("0").rstrip(".")


def _text(event: str, data: Mapping[str, Any]) -> str:
    if event == events.LOOP_DETECTED:
        spent, saved = money(data.get("spent_microusd")), money(data.get("saved_microusd"))
        told = [
            str(data.get("evidence") or "The same again and again."),
            f"{spent} went into the loop." if spent else "",
        ]
        return " ".join([*(one for one in told if one), *([f"Stopping it saved {saved}."] if saved else [])])
    if event == events.AGENT_KILLED:
        until = "until somebody releases it" if data.get("expires_at") is None else "for a while"
        return f"Its requests are denied {until}. {data.get('reason') or ''}"
    if event in {events.BUDGET_THRESHOLD, events.BREAKER_OPENED}:
        names = ("used", "budget") if event == events.BUDGET_THRESHOLD else ("rate", "threshold")
        return f"{amount(data, names[0])} of {amount(data, names[1])}."
    return str(data.get("error") or data.get("problem") or data.get("reason") or "")


def _over(notice: Mapping[str, Any]) -> str:
    why = str(notice["payload"]["data"].get("reason") or "")
    times = f"It was seen {notice['count']} times since {notice['since']}." if notice["count"] > 1 else ""
    return " ".join(part for part in (f"It is over: {why}." if why else "It is over.", times) if part)


def _facts(notice: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    data = about["data"]
    found = [(label, _fact(name, data[name])) for name, label in _FACTS if data.get(name) not in (None, "", 0)]
    for name, label in (("spent_microusd", "Spent in it"), ("saved_microusd", "Saved"), ("saved_requests", "Denied")):
        if data.get(name):
            found.append((label, money(data[name]) if name.endswith("usd") else f"{data[name]} requests"))
    found += [("Project", clean(about["project_id"], 100)), ("Alert rule", clean(notice["rule"], 100))]
    found.append(("Time", notice["payload"]["timestamp"]))
    return tuple((label, value) for label, value in found if value)


def _fact(name: str, value: object) -> str:
    return f"{value} s" if name == "cooldown_seconds" else clean(value, _FACT_MAX)


_TONES: Final = {CRITICAL: "#b42318", ERROR: "#b54708", WARNING: "#a15c07", INFO: "#175cd3"}
_OVER: Final = "#067647"
_LABELS: Final = {CRITICAL: "Critical", ERROR: "Error", WARNING: "Warning", INFO: "Notice"}
_FONT: Final = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_STYLE: Final = (
    ":root{color-scheme:light dark;supported-color-schemes:light dark}"
    "@media (prefers-color-scheme:dark){.page{background:#101418!important}.card{background:#1a2027!important;"
    "border-color:#2c353f!important}.ink{color:#e6eaee!important}.soft{color:#9aa7b4!important}"
    ".line{border-color:#2c353f!important}}"
)


def html(message: AlertMessage) -> str:
    """Return the HTML part."""
    tone = _OVER if message.recovered else _TONES[message.severity]
    label = "Recovered" if message.recovered else _LABELS[message.severity]
    inner = _badge(label, tone) + _headline(message) + _facts_html(message) + _button(message, tone) + _foot(message)
    card = (
        '<table role="presentation" class="card" width="600" cellpadding="0" cellspacing="0" style="width:100%;'
        "max-width:600px;background:#ffffff;border:1px solid #e4e7ec;border-radius:10px;"
        f'border-top:4px solid {tone};border-collapse:separate"><tr><td style="padding:28px 32px;{_FONT}">'
        f"{inner}</td></tr></table>"
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(message.title)}</title><style>{_STYLE}</style></head>"
        '<body class="page" style="margin:0;padding:0;background:#f4f6f8">'
        f'<div style="display:none;max-height:0;overflow:hidden">{escape(message.text)}</div>'
        '<table role="presentation" class="page" width="100%" cellpadding="0" cellspacing="0" '
        f'style="background:#f4f6f8"><tr><td align="center" style="padding:24px 12px">{card}</td></tr></table>'
        "</body></html>\n"
    )


def _badge(label: str, tone: str) -> str:
    return (
        f'<span style="display:inline-block;padding:3px 10px;border-radius:999px;background:{tone};color:#ffffff;'
        f'font-size:12px;font-weight:600;letter-spacing:.02em">{escape(label)}</span>'
    )


def _headline(message: AlertMessage) -> str:
    text = (
        f'<p class="soft" style="margin:0 0 20px;font-size:15px;line-height:22px;color:#475467">'
        f"{escape(message.text)}</p>"
    )
    return (
        '<h1 class="ink" style="margin:14px 0 8px;font-size:20px;line-height:27px;font-weight:650;color:#101828">'
        f"{escape(message.title)}</h1>{text if message.text else ''}"
    )


def _facts_html(message: AlertMessage) -> str:
    cell = "padding:8px 0;border-top:1px solid #eaecf0;font-size:14px;line-height:20px;vertical-align:top"
    rows = "".join(
        f'<tr><th class="soft line" scope="row" align="left" style="{cell};width:34%;font-weight:500;color:#667085">'
        f'{escape(name)}</th><td class="ink line" style="{cell};color:#101828;word-break:break-word">'
        f"{escape(value)}</td></tr>"
        for name, value in message.facts
    )
    return f'<table width="100%" cellpadding="0" cellspacing="0" style="border-collapse:collapse">{rows}</table>'


def _button(message: AlertMessage, tone: str) -> str:
    if not message.link:
        return ""
    return (
        f'<p style="margin:24px 0 0"><a href="{escape(message.link)}" style="display:inline-block;padding:10px 18px;'
        f'border-radius:8px;background:{tone};color:#ffffff;font-size:14px;font-weight:600;text-decoration:none">'
        "Open the dashboard</a></p>"
    )


def _foot(message: AlertMessage) -> str:
    return (
        '<p class="soft" style="margin:22px 0 0;font-size:12px;line-height:18px;color:#667085">'
        f"Sent by breakloop, alert rule “{escape(message.rule)}”.</p>"
    )
