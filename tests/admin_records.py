"""Believable records for tests of the admin plane: a company's agents, their loops and what happened, at one moment.
Pure data by formula, so that every run and every picture is the same; `admin_world` serves it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from breakloop.model.records import (
    CLEARED,
    OPEN,
    STOPPED,
    AgentRecord,
    AuditRecord,
    EventRecord,
    Incident,
    Point,
    StepMark,
)

NOW = 1_800_000_000.0
PROJECT = "default"
HOSTILE = "<script>alert('x')</script>\"&amp; ünï-\u202etxet \U0001f501" + "x" * 180

# name, model, requests, denied, loops, dollars in all, dollars today, seconds since it was last seen
_SEEN: tuple[tuple[str, str, int, int, int, float, float, float], ...] = (
    ("code-fixer", "claude-sonnet-4-5", 18_240, 412, 9, 412.87, 31.42, 4),
    ("docs-writer", "gpt-5-mini", 9_120, 0, 2, 61.10, 4.05, 9),
    ("research-crew", "gpt-5", 31_877, 268, 6, 903.44, 58.90, 2),
    ("scraper-7", "gemini-2.5-flash", 44_310, 1_930, 14, 87.21, 12.66, 31),
    ("support-triage", "gpt-5-mini", 120_452, 12, 1, 240.02, 9.71, 1),
    ("invoice-bot", "claude-haiku-4-5", 7_804, 96, 3, 35.95, 0.88, 640),
    ("pr-reviewer", "claude-sonnet-4-5", 5_371, 0, 0, 188.30, 14.20, 75),
    ("sql-helper", "gpt-5-mini", 2_219, 4, 1, 8.42, 0.0, 54_000),
    ("nightly-etl", "claude-haiku-4-5", 1_204, 0, 0, 3.18, 0.0, 180_000),
    ("planner", "gpt-5", 614, 0, 0, 20.77, 2.31, 210),
)


def micro(dollars: float) -> int:
    """Dollars in micro-dollars."""
    return round(dollars * 1_000_000)


def agents() -> list[AgentRecord]:
    """The agents, the last seen first."""
    found = [
        AgentRecord(
            project=PROJECT,
            agent=name,
            callers=1 + len(name) % 3,
            first_at=NOW - 86_400.0 * 40 + 3_600.0 * index,
            last_at=NOW - ago,
            requests=requests,
            denied=denied,
            loops=loops,
            input_tokens=requests * 2_140,
            output_tokens=requests * 310,
            cost_microusd=micro(dollars),
            today_microusd=micro(today),
            saved_microusd=micro(denied * 0.041),
            model=model,
            settings={"budget_usd_per_day": 20.0, "allowed_hours": "06:00-22:00"} if name == "invoice-bot" else {},
        )
        for index, (name, model, requests, denied, loops, dollars, today, ago) in enumerate(_SEEN)
    ]
    return sorted(found, key=lambda one: -one.last_at)


def mark(at: float, tools: str, verdict: str = "pass", result: str = "", *, failed: bool = False) -> StepMark:
    """One step; what has the same tools and result is the same step."""
    step = f"{sum(map(ord, tools)) * 2654435761 % 2**64:016x}"
    return StepMark(
        at,
        tools,
        step,
        f"{sum(map(ord, result or tools)) * 40503 % 2**64:016x}",
        180 + 37 * len(tools),
        failed,
        verdict,
    )


def _cycle(start: float) -> tuple[StepMark, ...]:
    """Reads, then turns in a circle of edit, test, read, until it is stopped."""
    before = [mark(start + 11 * at, tool) for at, tool in enumerate(["list_files", "read_file main.py", "grep TODO"])]
    begun, lap, steps = start + 40, ("edit_file", "run_tests", "read_file"), []
    for at in range(21):
        verdict = "deny" if at >= 15 else "warn" if at >= 9 else "pass"
        tool = lap[at % 3]
        steps.append(mark(begun + 14 * at, tool, verdict, failed=tool == "run_tests"))
    return (*before, *steps)


def _repeat(start: float, tool: str, count: int, warn: int, deny: int) -> tuple[StepMark, ...]:
    steps = [mark(start, "search"), mark(start + 3, "open_result")]
    for at in range(count):
        verdict = "deny" if at >= deny else "warn" if at >= warn else "pass"
        steps.append(mark(start + 9 + 4 * at, tool, verdict, failed=True))
    return tuple(steps)


_BASE = Incident(
    id="",
    state=OPEN,
    project=PROJECT,
    agent="",
    caller="key:7f3a9c1e",
    model="gpt-5",
    kind="repeat",
    fingerprint="",
    policy="builtin-steps",
    action="reject",
    evidence="",
    shadow=False,
    first_at=NOW,
    last_at=NOW,
    ended_at=None,
    detections=1,
    hit_count=5,
    cooldown_seconds=60,
    spent_requests=6,
    spent_tokens=14_000,
    spent_microusd=micro(0.12),
    saved_requests=0,
    saved_tokens=0,
    saved_microusd=0,
)


def incidents() -> list[Incident]:
    """The incidents, the newest first."""
    return [
        replace(_BASE, id="inc-7c21", state=OPEN, agent="docs-writer", model="gpt-5-mini", kind="near", action="warn",
                fingerprint="9b0c44d1e2a7f350", evidence="get_section 7 times with only its numbers changed, and nothing new came back",
                first_at=NOW - 190, last_at=NOW - 9, hit_count=7, spent_requests=7, spent_tokens=61_200,
                spent_microusd=micro(0.31), steps=_repeat(NOW - 190, "get_section", 8, 5, 99)),
        replace(_BASE, id="inc-7c20", state=STOPPED, agent="code-fixer", model="claude-sonnet-4-5", kind="cycle", action="kill",
                fingerprint="3fd2a1907bc4e6d8", evidence="edit_file, run_tests, read_file: the same round 7 times, with the same results each time",
                first_at=NOW - 430, last_at=NOW - 44, detections=2, hit_count=7, cooldown_seconds=600, spent_requests=18,
                spent_tokens=402_300, spent_microusd=micro(3.42), saved_requests=212, saved_tokens=4_880_000,
                saved_microusd=micro(41.80), steps=_cycle(NOW - 430)),
        replace(_BASE, id="inc-7c1e", state=STOPPED, agent="scraper-7", model="gemini-2.5-flash", kind="failure", action="reject",
                fingerprint="c0ffee5512ab9034", evidence="fetch_page failed 8 times in a row with the same error",
                first_at=NOW - 1_400, last_at=NOW - 130, detections=4, hit_count=31, cooldown_seconds=240, spent_requests=9,
                spent_tokens=88_000, spent_microusd=micro(0.09), saved_requests=931, saved_tokens=9_100_000,
                saved_microusd=micro(9.14), steps=_repeat(NOW - 1_400, "fetch_page", 22, 4, 8)),
        replace(_BASE, id="inc-7b90", state=CLEARED, agent="research-crew", kind="simhash", policy="agents", action="kill",
                fingerprint="a81b33c09d5e7f12", evidence="score 12.5 is over 10: of the last 19 requests 5 had a similar prompt, 3 a similar answer, 1 the same tool calls",
                first_at=NOW - 9_000, last_at=NOW - 8_300, ended_at=NOW - 7_900, hit_count=12, spent_requests=19,
                spent_tokens=530_000, spent_microusd=micro(6.71), saved_requests=58, saved_tokens=1_600_000,
                saved_microusd=micro(20.48), score={
                    "score": 12.5, "threshold": 10.0, "window_requests": 19, "prompts": 5, "prompt_weight": 1.0,
                    "responses": 3, "response_weight": 2.0, "tools": 1, "tool_weight": 1.5,
                }),
        replace(_BASE, id="inc-7b11", state=CLEARED, agent="support-triage", model="gpt-5-mini", kind="monologue", shadow=True,
                policy="support-shadow", fingerprint="5500aa17de1409bc", evidence="the same answer 6 times, and nothing called",
                first_at=NOW - 22_000, last_at=NOW - 21_700, ended_at=NOW - 21_000, hit_count=6,
                steps=_repeat(NOW - 22_000, "", 7, 3, 99)),
        replace(_BASE, id="inc-7a02", state=CLEARED, agent="invoice-bot", model="claude-haiku-4-5", kind="tail", policy="builtin-tail",
                fingerprint="77de0912ff3a4c01", evidence="same last messages sent 6 times in 60 s", first_at=NOW - 61_000,
                last_at=NOW - 60_400, ended_at=NOW - 60_000, hit_count=6, saved_requests=96, saved_tokens=310_000,
                saved_microusd=micro(1.02)),
    ]  # fmt: skip


def _event(number: int, ago: float, name: str, agent: str = "", incident: str = "", **data: Any) -> EventRecord:
    shown = {"agent": agent, **data} if agent else data
    return EventRecord(number, name, NOW - ago, PROJECT, agent, f"req-{number:05x}", incident, shown)


def events() -> list[EventRecord]:
    """What happened, the newest first."""
    found = [
        _event(990, 9, "loop.detected", "docs-writer", "inc-7c21", kind="near", action="warn", hit_count=7, policy="builtin-steps", fingerprint="9b0c44d1e2a7f350"),
        _event(989, 44, "agent.killed", "code-fixer", "inc-7c20", binds="agent", reason="cycle loop (edit_file, run_tests, read_file)", expires_at=None, by=""),
        _event(988, 44, "loop.detected", "code-fixer", "inc-7c20", kind="cycle", action="kill", hit_count=7, policy="builtin-steps", fingerprint="3fd2a1907bc4e6d8", caller="key:4f2a", tree="nightly-refactor"),
        _event(987, 102, "loop.detected", "code-fixer", "inc-7c20", kind="cycle", action="warn", hit_count=4, policy="builtin-steps", fingerprint="3fd2a1907bc4e6d8"),
        _event(986, 130, "loop.detected", "scraper-7", "inc-7c1e", kind="failure", action="reject", hit_count=31, policy="builtin-steps", fingerprint="c0ffee5512ab9034"),
        _event(985, 300, "breaker.opened", policy="spend-guard", key="cb:default:spend-guard:per-team:blue", rate=7, threshold=5, unit="usd", shadow=False),
        _event(984, 610, "budget.threshold", "invoice-bot", key="budget:default:team-budget:month:finance", threshold_percent=80, used=802_000_000, budget=1_000_000_000),
        _event(983, 900, "limit.exceeded", "scraper-7", policy="fair-use", rule="per-agent", reason="token_bucket_exceeded"),
        *(_event(971 - at, 1_000 + 71 * at, "shadow.would_reject", "support-triage", policy="support-shadow", rule="per-agent" if at % 3 else "loop", reason="token_bucket_exceeded" if at % 3 else "loop_detected") for at in range(12)),
        _event(940, 3_600, "kill_switch.changed", id="9f21c0aa", change="set", scope_key="agent:id", scope_value="sql-helper", reason="drops tables", by="ada", expires_at=None),
        _event(939, 8_300, "agent.killed", "research-crew", "inc-7b90", binds="agent", reason="simhash loop (score 12.5)", expires_at=NOW - 7_900, by=""),
        _event(938, 8_300, "loop.detected", "research-crew", "inc-7b90", kind="simhash", action="kill", hit_count=12, policy="agents", fingerprint="a81b33c09d5e7f12"),
        _event(937, 7_900, "agent.released", "research-crew", "inc-7b90", binds="agent", reason="released", by="ada"),
        _event(930, 30_000, "bundle.loaded", version=14, digest="sha256:61b0a2", policies=5),
    ]  # fmt: skip
    return sorted(found, key=lambda one: -one.id)


def audit() -> list[AuditRecord]:
    """Who did what, the newest first."""
    return [
        AuditRecord(
            41, NOW - 3_600, "ada", "operator", "switch.set", "agent:id=sql-helper", {"reason": "drops tables"}
        ),
        AuditRecord(40, NOW - 7_900, "ada", "operator", "agent.release", "default/research-crew", {"ended": 1}),
        AuditRecord(39, NOW - 30_000, "ci", "operator", "bundle.apply", "version 14", {"digest": "sha256:61b0a2"}),
        AuditRecord(
            38, NOW - 90_000, "grace", "operator", "agent.kill", "default/nightly-etl", {"reason": "on holiday"}
        ),
    ]


def curve(since: float, until: float, step_s: int, share: float = 1.0) -> list[Point]:
    """A working day: quiet at night, a loop in the last hours, stopped."""
    points = []
    for at in range(int(since) // step_s * step_s, int(until), step_s):
        day = 0.55 + 0.45 * math.sin((at % 86_400) / 86_400 * 2 * math.pi - 1.2)
        burst = 1.0 if 7_000 < NOW - at < 10_000 or NOW - at < 1_600 else 0.0
        requests = share * step_s * (0.9 * day + 0.12 * math.sin(at / 977) + 0.2 + burst * 0.35)
        denied = share * step_s * (0.01 + 0.012 * math.sin(at / 1_301) ** 2 + burst * 0.31)
        cost = requests * 0.0034 * 1e6
        points.append(Point(float(at), round(requests), round(denied), round(cost), round(denied * 0.041 * 1e6)))
    return points


def hostile_incident() -> Incident:
    """One with markup, tricks and very long values wherever others put words."""
    steps = tuple(mark(NOW - 90 + at, HOSTILE, "deny" if at % 2 else "pass", failed=True) for at in range(30))
    named = replace(
        _BASE, id="inc-evil", agent=HOSTILE, caller=HOSTILE, model=HOSTILE, kind=HOSTILE[:40], evidence=HOSTILE
    )
    return replace(
        named,
        project=HOSTILE,
        fingerprint=HOSTILE,
        policy=HOSTILE,
        action=HOSTILE[:40],
        steps=steps,
        score={HOSTILE: HOSTILE},
    )
