"""A world for tests of the admin plane: fakes of history, bundles and hooks filled with believable data, a real
`Operator` on an engine in memory, and the `AdminServices` made of them. `full()`, `empty()` and `hostile()` are its kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from breakloop.admin.actions import AdminServices
from breakloop.clock import FakeClock
from breakloop.engine.breakers import BreakerState
from breakloop.engine.engine import Engine
from breakloop.engine.operator import Operator
from breakloop.engine.tree_budgets import TreeSpending
from breakloop.errors import BundleError, Problem
from breakloop.history.tree_book import TreeBook
from breakloop.model.events import Activity, Event, TreeNodeUse
from breakloop.model.records import (
    CLEARED,
    OPEN,
    AgentRecord,
    AuditRecord,
    EventFilter,
    EventRecord,
    Incident,
    IncidentFilter,
    Point,
    TotalsRecord,
)
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import FileOrderStore
from tests import admin_records as records
from tests.admin_records import HOSTILE, NOW, PROJECT
from tests.builders import SECRET, bundle, compiled

Row = Mapping[str, Any]


@dataclass
class FakeHistory:
    """`history.api.History` over lists."""

    event_rows: list[EventRecord] = field(default_factory=list)  # newest first, as all of them
    incident_rows: list[Incident] = field(default_factory=list)
    agent_rows: list[AgentRecord] = field(default_factory=list)
    audit_rows: list[AuditRecord] = field(default_factory=list)
    shadow_rows: list[tuple[str, str, str, int]] = field(default_factory=list)
    now: float = NOW
    written: list[Event] = field(default_factory=list)

    def write(self, events: Sequence[Event], activity: Activity, now: float) -> None:
        self.written += events

    def end_quiet(self, now: float) -> list[Event]:
        return []

    def events(self, wanted: EventFilter) -> list[EventRecord]:
        found = [one for one in self.event_rows if _wanted(one, wanted)]
        return (found[::-1] if wanted.after else found)[: wanted.most]

    def incidents(self, wanted: IncidentFilter) -> list[Incident]:
        found = [
            replace(one, steps=())
            for one in self.incident_rows
            if all(getattr(one, name) == getattr(wanted, name) for name in _EQUAL if getattr(wanted, name))
            and wanted.shadow in {None, one.shadow}
            and one.last_at < wanted.before
        ]
        return found[: wanted.most]

    def incident(self, incident_id: str) -> Incident | None:
        return next((one for one in self.incident_rows if one.id == incident_id), None)

    def agents(self, project: str = "", find: str = "", most: int = 200) -> list[AgentRecord]:
        return [one for one in self.agent_rows if find in one.agent and project in {"", one.project}][:most]

    def agent(self, project: str, agent: str) -> AgentRecord | None:
        return next((one for one in self.agent_rows if (one.project, one.agent) == (project, agent)), None)

    def set_agent(self, project: str, agent: str, settings: Mapping[str, Any]) -> None:
        known = self.agent(project, agent) or AgentRecord(project, agent, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, "")
        self.agent_rows = [one for one in self.agent_rows if one is not known]
        self.agent_rows.insert(0, replace(known, settings=dict(settings)))

    def totals(self, since: float, project: str = "") -> TotalsRecord:
        points = self.curve(since, self.now, 600)
        incidents = self.incident_rows
        return TotalsRecord(
            requests=sum(one.requests for one in points),
            denied=sum(one.denied for one in points),
            loops=sum(one.first_at >= since for one in incidents),
            incidents_open=sum(one.state == OPEN for one in incidents),
            agents=sum(one.last_at >= since for one in self.agent_rows),
            cost_microusd=sum(one.cost_microusd for one in points),
            saved_requests=sum(one.saved_requests for one in incidents if one.last_at >= since),
            saved_microusd=sum(one.saved_microusd for one in incidents if one.last_at >= since),
        )

    def curve(self, since: float, until: float, step_s: int, project: str = "", agent: str = "") -> list[Point]:
        if not self.agent_rows:
            return [Point(float(at), 0, 0, 0, 0) for at in range(int(since), int(until), step_s)]
        return records.curve(since, until, step_s, 0.1 if agent else 1.0)

    def shadow(self, since: float, policy: str = "") -> list[tuple[str, str, str, int]]:
        return [row for row in self.shadow_rows if policy in {"", row[0]}]

    def add_audit(self, who: str, role: str, action: str, target: str, detail: Mapping[str, Any], now: float) -> None:
        number = max((one.id for one in self.audit_rows), default=0) + 1
        self.audit_rows.insert(0, AuditRecord(number, now, who, role, action, target, dict(detail)))

    def audit(self, before: int = 0, most: int = 100) -> list[AuditRecord]:
        return [one for one in self.audit_rows if not before or one.id < before][:most]

    def purge(self, now: float) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


_EQUAL = ("state", "project", "agent", "kind", "policy")


def _wanted(one: EventRecord, wanted: EventFilter) -> bool:
    texts = ("project", "agent", "incident")
    return (
        (not wanted.names or one.name in wanted.names)
        and all(getattr(one, name) == getattr(wanted, name) for name in texts if getattr(wanted, name))
        and wanted.since <= one.at <= wanted.until
        and (not wanted.before or one.id < wanted.before)
        and one.id > wanted.after
    )


POLICIES: list[Row] = [
    {
        "id": "builtin-steps",
        "mode": "enforce",
        "selector": "every LLM call",
        "rules": [],
        "loop_detection": "steps, sensitivity normal: warns, then rejects, then quarantines for 10 min",
    },
    {
        "id": "fair-use",
        "mode": "enforce",
        "selector": "POST /v1/*",
        "rules": [
            {"name": "per-agent", "algorithm": "token_bucket", "keys": ["agent:id"], "words": "10 requests a second, 40 at once"},
            {"name": "tokens", "algorithm": "llm_tokens", "keys": ["agent:id", "llm:model"], "words": "400,000 tokens a minute, 20 million a day"},
        ],
        "loop_detection": "",
    },
    {
        "id": "spend-guard",
        "mode": "enforce",
        "selector": "everything",
        "rules": [{"name": "per-team", "algorithm": "circuit_breaker", "keys": ["header:x-team"], "words": "opens at $5 a minute, tries again after 5 min"}],
        "loop_detection": "",
    },
    {
        "id": "support-shadow",
        "mode": "shadow",
        "selector": "agent support-*",
        "rules": [{"name": "per-agent", "algorithm": "token_bucket", "keys": ["agent:id"], "words": "2 requests a second, 10 at once"}],
        "loop_detection": "exact: 5 identical requests in 60 s are rejected",
    },
]  # fmt: skip


class FakeBundles:
    """`BundleAdmin` that remembers what it was asked."""

    def __init__(self, policies: Sequence[Row]) -> None:
        self.rows = [dict(one) for one in policies]
        self.promoted: list[str] = []

    def current(self) -> Row:
        return {"version": 14, "digest": "sha256:61b0a2f8", "origin": "policy.yaml", "loaded_at": NOW - 30_000, "text": "version: 14\n", "problems": []}  # fmt: skip

    def policies(self) -> list[Row]:
        return list(self.rows)

    def validate(self, text: bytes) -> Sequence[Row]:
        return [] if text.startswith(b"version") else [{"line": 1, "column": 1, "path": "", "message": "is no bundle", "hint": ""}]  # fmt: skip

    def diff(self, text: bytes) -> str:
        return "" if text == b"version: 14\n" else "--- in force\n+++ yours\n"

    def apply(self, text: bytes, *, force: bool, by: str = "") -> Row:
        if self.validate(text):
            raise BundleError([Problem("bundle", 1, 1, "", "is no bundle")])
        return self.current()

    def rollback(self, version: int, *, by: str = "") -> Row:
        return self.current()

    def earlier(self) -> list[Row]:
        return [{"version": 13, "digest": "sha256:0a71", "applied_at": NOW - 90_000, "by": "grace"}]

    def promote(self, policy: str, *, by: str = "") -> Row:
        found = next((one for one in self.rows if one["id"] == policy and one["mode"] == "shadow"), None)
        if found is None:
            raise BundleError([Problem("bundle", 1, 1, "", f"there is no policy {policy} in shadow mode")])
        found["mode"] = "enforce"
        self.promoted.append(policy)
        return self.current()


class FakeHooks:
    """`Alerts` that remembers what it was asked."""

    def __init__(self, hooks: Sequence[Row], deliveries: Sequence[Row], rules: Sequence[Row]) -> None:
        self.hooks = list(hooks)
        self.sent = list(deliveries)
        self.rule_rows = list(rules)
        self.tested: list[str] = []

    def webhooks(self) -> list[Row]:
        return list(self.hooks)

    def add_webhook(self, url: str, events: Sequence[str], *, allow_private: bool) -> Row:
        made = {"id": f"wh_{len(self.hooks) + 1}", "url": url, "events": list(events), "allow_private": allow_private}
        self.hooks.append({**made, "created_at": NOW, "state": "ok"})
        return {"id": made["id"], "secret": "whsec_c2VjcmV0IGZvciB0ZXN0cw=="}

    def remove_webhook(self, webhook: str) -> bool:
        kept = [one for one in self.hooks if one["id"] != webhook]
        found, self.hooks = len(kept) < len(self.hooks), kept
        return found

    def rotate_webhook(self, webhook: str) -> Row:
        return {"id": webhook, "secret": "whsec_bmV3"}

    def retry(self, delivery: str) -> bool:
        found = [one for one in self.sent if one["id"] == delivery and one["state"] == "failed"]
        self.sent = [{**one, "state": "pending"} if one in found else one for one in self.sent]
        return bool(found)

    async def test(self, webhook: str) -> Row:
        self.tested.append(webhook)
        return {"delivered": True, "status": 200}

    def deliveries(self, limit: int = 100) -> list[Row]:
        return self.sent[:limit]

    def rules(self) -> list[Row]:
        return list(self.rule_rows)


WEBHOOKS: list[Row] = [
    {"id": "wh_1", "url": "https://hooks.example.com/breakloop", "events": ["loop.detected", "agent.killed"], "allow_private": False, "created_at": NOW - 500_000, "state": "ok"},
    {"id": "wh_2", "url": "https://pager.example.net/in/loops", "events": [], "allow_private": False, "created_at": NOW - 90_000, "state": "failing"},
]  # fmt: skip
DELIVERIES: list[Row] = [
    {"id": "msg_31", "webhook": "wh_2", "event": "loop.detected", "state": "pending", "attempts": 3, "status": 503, "error": "answered 503", "at": NOW - 44, "next_at": NOW + 76},
    {"id": "msg_30", "webhook": "wh_1", "event": "agent.killed", "state": "delivered", "attempts": 1, "status": 204, "error": "", "at": NOW - 44, "next_at": None},
    {"id": "msg_29", "webhook": "wh_2", "event": "loop.detected", "state": "failed", "attempts": 9, "status": 0, "error": "no connection", "at": NOW - 80_000, "next_at": None},
]  # fmt: skip
RULES: list[dict[str, Any]] = [
    {"name": "loops to the team", "type": "loop", "agent": "*", "cooldown_seconds": 300, "recovery": True, "targets": ["slack"], "last_at": NOW - 44},
    {"name": "money", "type": "budget", "agent": "", "cooldown_seconds": 3600, "recovery": False, "targets": ["email"], "last_at": None},
]  # fmt: skip
BREAKERS = [
    BreakerState("spend-guard", "cb:default:spend-guard:per-team:blue", "header:x-team=blue", "open", 7, 5, "usd", PROJECT, NOW - 300, NOW + 180),
    BreakerState("spend-guard", "cb:default:spend-guard:per-team:red", "header:x-team=red", "closed", 1, 5, "usd", PROJECT),
]  # fmt: skip
TREES = [
    TreeSpending(
        PROJECT, "key:4f2a", "nightly-refactor", 19_400_000, 20_000_000, 4_810_000, None, NOW - 12, shadow=False
    ),
    TreeSpending(PROJECT, "key:4f2a", "triage-0815", 1_200_000, 20_000_000, 210_000, None, NOW - 3_000, shadow=False),
]
NODES = {
    ("lead-01", "", "lead"): (41, 2, 1_900_000, 7_200_000, 2_400, 12),
    ("plan-02", "lead-01", "planner"): (12, 0, 310_000, 1_150_000, 2_300, 1_500),
    ("code-03", "lead-01", "code-fixer"): (88, 0, 1_640_000, 6_900_000, 1_900, 20),
    ("test-04", "code-03", "tester"): (52, 9, 700_000, 3_050_000, 1_200, 15),
    ("test-05", "code-03", "tester"): (19, 0, 260_000, 1_100_000, 900, 700),
}  # requests, denied, tokens, micro-dollars, seconds since its first and its last request
COUNTERS: list[Row] = [
    {"key": "tb:default:fair-use:per-agent:code-fixer", "kind": "bucket", "value": "31 of 40 left", "expires_at": NOW + 40},
    {"key": "budget:default:team-budget:month:finance", "kind": "budget", "value": "$802.00 of $1,000.00", "expires_at": NOW + 900_000},
]  # fmt: skip
SETTINGS = [
    ("port", "8787", "default"),
    ("admin_port", "8788", "default"),
    ("upstream", "openai=https://api.openai.com", "flag"),
    ("policy", "policy.yaml", "breakloop.yaml"),
    ("state", "redis://***@10.0.0.7/0", "BREAKLOOP_STATE"),
    ("admin_token", "********", "BREAKLOOP_ADMIN_TOKEN"),
]


@dataclass
class World:
    """Services, and a way to look behind them."""

    clock: FakeClock
    history: FakeHistory
    operator: Operator
    bundles: FakeBundles
    hooks: FakeHooks
    services: AdminServices
    published: list[Event]
    reset: list[tuple[str, str]]
    listeners: list[asyncio.Queue[Row | None]]

    @property
    def snoozed(self) -> dict[str, float]:
        """The snoozed fingerprints, and until when."""
        return self.operator.snoozes()

    def tell(self, item: Row | None) -> None:
        """Hand something to whoever listens live; None ends it."""
        for listener in self.listeners:
            listener.put_nowait(item)


def _operator(clock: FakeClock, publish: Callable[[Event], None]) -> Operator:
    descriptors = Descriptors(ContextSettings(secret=SECRET), clock)
    engine = Engine(MemoryStore(), clock, descriptors, publish=publish)
    engine.set_bundle(compiled(bundle(), descriptors))
    operator = Operator(engine, FileOrderStore(None, lambda _trouble: None), clock, publish)
    operator.start()
    return operator


async def _aside(work: Callable[[], Any]) -> Any:
    return work()


def world(history: FakeHistory, bundles: FakeBundles, hooks: FakeHooks, *, breakers: Sequence[BreakerState] = (), trees: Sequence[TreeSpending] = (), counters: Sequence[Row] = ()) -> World:  # fmt: skip
    """Make one of these parts."""
    clock, published = FakeClock(NOW), list[Event]()
    reset: list[tuple[str, str]] = []
    listeners: list[asyncio.Queue[Row | None]] = []
    operator = _operator(clock, published.append)

    async def listed() -> list[BreakerState]:
        return list(breakers)

    async def closed(policy: str, key: str) -> BreakerState | None:
        reset.append((policy, key))
        return next((one for one in breakers if (one.policy, one.key) == (policy, key) and one.state != "closed"), None)

    async def spent() -> list[TreeSpending]:
        return list(trees)

    async def emptied(project: str, caller: str, root: str) -> TreeSpending | None:
        reset.append((caller, root))
        return next((one for one in trees if (one.project, one.caller, one.root) == (project, caller, root)), None)

    async def counted(prefix: str) -> list[Row]:
        return [one for one in counters if str(one["key"]).startswith(prefix)]

    def live() -> AsyncIterator[Row]:
        """Listen from the call on, and not from the first item that is asked for."""
        queue: asyncio.Queue[Row | None] = asyncio.Queue()
        listeners.append(queue)
        return heard(queue)

    async def heard(queue: asyncio.Queue[Row | None]) -> AsyncIterator[Row]:
        while (item := await queue.get()) is not None:
            yield item
        listeners.remove(queue)

    book = TreeBook()
    if trees:
        for (session, parent, agent), (requests, denied, tokens, cost, first_s, last_s) in NODES.items():
            key = (PROJECT, trees[0].caller, trees[0].root, trees[0].root if not parent else session)
            above = trees[0].root if parent == "lead-01" else parent
            book.add({key: TreeNodeUse(last_at=NOW - first_s, agent=agent, parent=above)}, NOW)
            book.add({key: TreeNodeUse(requests, denied, tokens, cost, NOW - last_s)}, NOW)
    services = AdminServices(
        clock=clock, history=cast("Any", history), operator=operator, bundles=cast("Any", bundles), alerts=cast("Any", hooks), project=PROJECT,
        status=lambda: {"version": "0.1.0", "url": "http://127.0.0.1:8787", "uptime_seconds": 98_200.0, "state": "memory", "degraded": False, "workers": 1, "tally": {"allowed": 10}},
        settings=lambda: SETTINGS if history.agent_rows else SETTINGS[:2], metrics=lambda: b"breakloop_up 1\n", breakers=listed, reset_breaker=closed, trees=book, tree_budgets=spent, reset_tree_budget=emptied,
        counters=counted, live=live, in_thread=_aside,
    )  # fmt: skip
    return World(clock, history, operator, bundles, hooks, services, published, reset, listeners)


def full() -> World:
    """A company in the middle of a working day."""
    shadow = [
        ("support-shadow", "per-agent", "token_bucket_exceeded", 8),
        ("support-shadow", "loop", "loop_detected", 4),
    ]
    history = FakeHistory(records.events(), records.incidents(), records.agents(), records.audit(), shadow)
    made = world(history, FakeBundles(POLICIES), FakeHooks(WEBHOOKS, DELIVERIES, RULES), breakers=BREAKERS, trees=TREES, counters=COUNTERS)  # fmt: skip
    made.operator.kill(PROJECT, "code-fixer", "cycle loop (edit_file, run_tests, read_file)", "breakloop")
    made.operator.kill(PROJECT, "scraper-7", "hammers one page", "ada", NOW + 1_500)
    made.operator.set_switch("agent:id", "sql-helper", "ada", reason="drops tables")
    return made


def empty() -> World:
    """The first minute after the first start."""
    return world(FakeHistory(), FakeBundles([]), FakeHooks([], [], []))


def hostile() -> World:
    """Markup, tricks and very long values in every place that others can write to."""
    incident = records.hostile_incident()
    agent = replace(
        records.agents()[0], project=HOSTILE, agent=HOSTILE, model=HOSTILE, settings={"budget_usd_per_day": HOSTILE}
    )
    event = EventRecord(
        7, HOSTILE, NOW - 5, HOSTILE, HOSTILE, HOSTILE, "inc-evil", {HOSTILE: HOSTILE, "agent": [HOSTILE]}
    )
    entry = AuditRecord(1, NOW - 5, HOSTILE, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    history = FakeHistory([event], [incident, replace(incident, id="inc-over", state=CLEARED)], [agent], [entry], [(HOSTILE, HOSTILE, HOSTILE, 3)])  # fmt: skip
    policy = {"id": HOSTILE, "mode": "shadow", "selector": HOSTILE, "rules": [{"name": HOSTILE, "algorithm": HOSTILE, "keys": [HOSTILE], "words": HOSTILE}], "loop_detection": HOSTILE}  # fmt: skip
    hook = {
        "id": HOSTILE,
        "url": HOSTILE,
        "events": [HOSTILE],
        "allow_private": True,
        "created_at": NOW,
        "state": HOSTILE,
    }
    sent = {"id": HOSTILE, "webhook": HOSTILE, "event": HOSTILE, "state": HOSTILE, "attempts": 1, "status": 0, "error": HOSTILE, "at": NOW, "next_at": None}  # fmt: skip
    breaker = replace(BREAKERS[0], policy=HOSTILE, key=HOSTILE, label=HOSTILE)
    made = world(history, FakeBundles([policy]), FakeHooks([hook], [sent], [RULES[1] | {"name": HOSTILE, "type": HOSTILE, "targets": [HOSTILE]}]), breakers=[breaker], trees=[replace(TREES[0], caller=HOSTILE, root=HOSTILE)], counters=[{"key": HOSTILE, HOSTILE: HOSTILE}])  # fmt: skip
    made.operator.set_switch("agent:id", HOSTILE[:60], HOSTILE, reason=HOSTILE)
    made.operator.kill(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    return made
