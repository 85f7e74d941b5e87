"""Small factories for tests: bundles from plain data, a world with engine and clock, calls, chat bodies, requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.dialects.denial import VerdictHeaders
from breakloop.engine import plan as engine_plan
from breakloop.engine.breakers import Breakers, LocalLimits
from breakloop.engine.decision_state import DecisionState
from breakloop.engine.engine import Engine
from breakloop.engine.tree_budgets import TreeBudgets
from breakloop.errors import StateError
from breakloop.gateway.admission import Admission, DebugSessions
from breakloop.gateway.decision import DecisionHandler, ReportedResults
from breakloop.gateway.http_request import Reply, Request
from breakloop.model.call import Call
from breakloop.model.events import Event
from breakloop.model.verdict import Verdict
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    AdjustCharge,
    BucketRows,
    CommitResult,
    Op,
    Settle,
    Store,
    StoredAccount,
    StoredBreaker,
    StoredWindow,
    WindowWrite,
)

Json = dict[str, Any]
Fields = Mapping[str, str | bytes]

START = 1_800_000_000.0
SECRET = b"a secret for tests, 32 bytes long"
CHAT = "/v1/chat/completions"


def at(seconds: float) -> str:
    """A time stamp so many seconds after `START`, as bundles write it."""
    return datetime.fromtimestamp(START + seconds, tz=UTC).isoformat()


def bundle(*policies: Json, **top: Any) -> Json:
    """A bundle as data; the built-in loop protection is off unless `defaults` says otherwise."""
    return {"bundle_version": 1, "policies": list(policies), "defaults": {"loop_detection": "off"}, **top}


def policy(name: str, *rules: Json, prefix: str = "/", loop: Json | list[Json] | None = None, **spec: Any) -> Json:
    """A policy as data."""
    made: Json = {"selector": {"pathPrefix": prefix}, **spec}
    if rules:
        made["rules"] = list(rules)
    if loop is not None:
        made["loop_detection"] = loop
    return {"id": name, "spec": made}


def bucket(name: str = "r", rate: float = 10, burst: float = 10, keys: Iterable[str] = (), **more: Any) -> Json:
    """A token bucket rule as data; `match` and `on_missing` go to the rule, the rest to its configuration."""
    outer: Json = {key: more.pop(key) for key in ("match", "on_missing") if key in more}
    config = {"tokens_per_second": rate, "burst": burst, **more}
    return {"name": name, "limit_keys": list(keys), "algorithm": "token_bucket", "algorithm_config": config, **outer}


def exact(threshold: int = 3, window: int = 60, **more: Any) -> Json:
    """An `exact` loop block as data."""
    return {"enabled": True, "window_seconds": window, "threshold_identical_requests": threshold, **more}


def tail(**more: Any) -> Json:
    """A `tail` loop block as data, with its defaults."""
    return {"similarity": "tail", **more}


def call(path: str = "/x", method: str = "GET", headers: Fields | None = None, **more: Any) -> Call:
    """A call that is being decided: detectors and rules may be asked without an engine."""
    made = Call(method, path, headers=canonical(headers or {}), **more)
    made.decision = DecisionState()
    return made


def decide_with(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    """Every decision from now on has these values."""
    create_before = vars(engine_plan)["DecisionState"]  # of an earlier call, too

    def create(*given: Any) -> DecisionState:
        made: DecisionState = create_before(*given)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    monkeypatch.setattr(engine_plan, "DecisionState", create)


def canonical(headers: Fields) -> dict[str, bytes]:
    """Header fields as the server hands them on."""
    return {
        name.lower().replace("_", "-"): value.encode("latin-1") if isinstance(value, str) else value
        for name, value in headers.items()
    }


def user(text: Any) -> Json:
    """A message of the user."""
    return {"role": "user", "content": text}


def chat_body(*messages: Json, model: str = "gpt-x", **more: Any) -> bytes:
    """An OpenAI chat body."""
    return json.dumps({"model": model, "messages": list(messages), **more}).encode()


def chat(*messages: Json, model: str = "gpt-x", headers: Fields | None = None, **more: Any) -> Call:
    """An LLM call."""
    body = chat_body(*(messages or (user("again"),)), model=model)
    return call(CHAT, "POST", headers or {"authorization": "Bearer sk-one"}, body=body, **more)


def request(
    target: str | bytes = "/v1/decision", headers: Fields | None = None, method: str = "POST", **more: Any
) -> Request:
    """A request to the decision service."""
    raw = target.encode("latin-1") if isinstance(target, str) else target
    return Request(method, raw, canonical(headers or {}), **more)


def about(uri: str = "/x", method: str = "GET", headers: Fields | None = None, **more: Any) -> Request:
    """A gateway's question about a request."""
    return request(headers={"x-original-uri": uri, "x-original-method": method, **(headers or {})}, **more)


def lines(reply: Reply) -> list[str]:
    """The header lines of a reply, without the request id and the result id, which are new ones each time."""
    return [line for line in _all_lines(reply) if "Request-Id:" not in line and "Result-Id:" not in line]


def _all_lines(reply: Reply) -> list[str]:
    assert reply.head.endswith(b"\r\n")
    return reply.head.decode("latin-1").removesuffix("\r\n").split("\r\n")


def header(reply: Reply, name: str) -> str | None:
    """One header field of a reply."""
    found = [line.partition(": ")[2] for line in _all_lines(reply) if line.partition(":")[0].lower() == name.lower()]
    assert len(found) <= 1, f"{name} is there twice"
    return found[0] if found else None


@dataclass
class World:
    """An engine with everything around it, and a clock that is moved by hand."""

    engine: Engine
    clock: FakeClock
    store: Store
    descriptors: Descriptors
    events: list[Event]
    guard: BuiltinLoopGuard
    door: DecisionHandler = field(init=False)

    def __post_init__(self) -> None:
        self.door = self.make_door()

    def use(self, data: Json | None) -> CompiledBundle:
        """Put a bundle in force."""
        made = compiled(data, self.descriptors, self.guard)
        self.engine.set_bundle(made)
        return made

    def decide(self, asked: Call, times: int = 1) -> Verdict:
        """Judge a call, so many times, at this time; return the last verdict."""
        verdict = self.engine.decide(fresh(asked))
        for _ in range(times - 1):
            verdict = self.engine.decide(fresh(asked))
        return verdict

    @property
    def breakers(self) -> Breakers:
        """Its circuit breakers, as operators see them."""
        limits = LocalLimits(self.store, self.clock)
        return Breakers(limits, lambda: self.engine.bundle, self.clock, self.events.append)

    @property
    def tree_budgets(self) -> TreeBudgets:
        """What its trees of agents have spent."""
        return TreeBudgets(LocalLimits(self.store, self.clock), lambda: self.engine.bundle)

    def ask(self, asked: Request, times: int = 1) -> Reply:
        """Ask the decision service, so many times; return the last reply."""
        reply: Reply = self.door(asked)
        for _ in range(times - 1):
            reply = self.door(asked)
        return reply

    def make_door(self, prefix: str = "X-Breakloop-", debug_secret: str = "") -> DecisionHandler:
        """A decision service over this engine."""
        debug = DebugSessions(debug_secret, prefix, self.clock) if debug_secret else None
        judging = Admission(
            self.engine,
            self.descriptors,
            VerdictHeaders(prefix, SECRET),
            run_id="t-",
            debug=debug,
        )
        results = ReportedResults(self.engine, self.descriptors, self.clock)
        return DecisionHandler(judging, ready=lambda: (200, {"status": "ready"}), results=results)

    def named(self, name: str) -> list[Mapping[str, object]]:
        """What the events of one name carried."""
        return [event.data for event in self.events if event.name == name]


def fresh(asked: Call) -> Call:
    """The same call again, without what was remembered on it."""
    return Call(
        asked.method,
        asked.path,
        host=asked.host,
        query=asked.query,
        headers=asked.headers,
        peer=asked.peer,
        body=asked.body,
        body_unseen=asked.body_unseen,
        request_id=asked.request_id,
        path_agent=asked.path_agent,
        upstream=asked.upstream,
        repeated=asked.repeated,
    )


def compiled(data: Json | None, descriptors: Descriptors, guard: BuiltinLoopGuard | None = None) -> CompiledBundle:
    """A bundle ready for the engine, through the whole of validation."""
    if data is None:
        return compile_bundle(None, "", descriptors, SECRET, guard or BuiltinLoopGuard())
    loaded = load_text(json.dumps(data).encode(), "bundle.json")
    return compile_bundle(loaded.bundle, loaded.digest, descriptors, SECRET, guard or BuiltinLoopGuard())


def world(
    data: Json | None = None,
    *,
    store: Store | None = None,
    guard: BuiltinLoopGuard | None = None,
    settings: ContextSettings | None = None,
    load: bool = True,
) -> World:
    """A world with this bundle in force (None: no policy configured; `load=False`: none loaded yet)."""
    clock = FakeClock(START)
    kept = MemoryStore() if store is None else store
    descriptors = Descriptors(settings or ContextSettings(secret=SECRET), clock)
    events: list[Event] = []
    engine = Engine(kept, clock, descriptors, publish=events.append)
    made = World(engine, clock, kept, descriptors, events, guard or BuiltinLoopGuard())
    if load:
        made.use(data)
    return made


class SpyStore(MemoryStore):
    """Remembers what was committed."""

    __slots__ = ("commits",)

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[list[Op]] = []

    def commit(
        self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = (), rows: BucketRows | None = None
    ) -> CommitResult:
        """Remember and carry out."""
        self.commits.append(list(ops))
        return super().commit(ops, now, windows, rows)

    def keys(self) -> list[str]:
        """Every key in it."""
        return [key for table in self._tables() for key in table]


class FailingStore:
    """A store that is not there."""

    def commit(
        self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = (), rows: BucketRows | None = None
    ) -> CommitResult:
        """Fail."""
        raise StateError("the store is gone")

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Fail."""
        raise StateError("the store is gone")

    def correct(self, ops: Sequence[AdjustCharge], now: float) -> None:
        """Fail."""
        raise StateError("the store is gone")

    def read_window(self, key: str, now: float) -> StoredWindow:
        """Fail."""
        raise StateError("the store is gone")

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        """Fail."""
        raise StateError("the store is gone")

    def accounts(self, prefix: str, now: float, most: int) -> list[StoredAccount]:
        """Fail."""
        raise StateError("the store is gone")

    def drop(self, keys: Sequence[str]) -> None:
        """Fail."""
        raise StateError("the store is gone")
