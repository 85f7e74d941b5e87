"""What every detector has (its configuration, how it reads a call, allow lists and snoozes), and the detectors that
only count a fingerprint: `similarity: exact` and `tail`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, Literal, Protocol

from breakloop.detect.advice import Advice, landing_note
from breakloop.detect.fingerprint import is_cheap, is_opening
from breakloop.model.call import EMBEDDINGS_DIALECT, TAIL_MESSAGES, Call, Step, Tree
from breakloop.model.verdict import LoopFinding
from breakloop.store.keys import SHADOW, escape, fingerprint_of, prefix
from breakloop.store.ops import COOLDOWN_S, CountFingerprint, FingerprintCount, FingerprintSpec, blocked_at_once

Entries = Mapping[str, float]  # value -> when it expires; infinity for never


def route_matches(route: str, path: str) -> bool:
    """Tell whether `path` equals `route`, or starts with it if `route` ends in `*`."""
    if route.endswith("*"):
        return path.startswith(route[:-1])
    return path == route


class CallReader(Protocol):
    """How detectors read a call. `policy.descriptors.Descriptors` is one."""

    def caller(self, call: Call) -> str: ...

    def agent(self, call: Call) -> str: ...

    def tools(self, call: Call, messages: int = TAIL_MESSAGES) -> tuple[str, ...]:
        """Return the names of the tools that the last messages call."""
        ...

    def step(self, call: Call) -> Step | None:
        """Return the newest step of an LLM request, or None for other requests."""
        ...

    def session(self, call: Call) -> str: ...

    def window(self, call: Call) -> str:
        """Return caller and session, or "" without a session."""
        ...

    def derived(self, call: Call) -> bool:
        """Tell whether the client gave the session no name, so that it is derived from how the conversation opens."""
        ...

    def model_and_system(self, call: Call) -> str:
        """Return model and system prompt as one text, or "" for other requests."""
        ...

    def task(self, call: Call) -> str:
        """Return a digest of the user's first message without times and ids; "" if there is none. This takes time."""
        ...

    def parent(self, call: Call) -> str:
        """Return the session or agent that started this one, or ""."""
        ...

    def trace(self, call: Call) -> str: ...

    def tree(self, call: Call) -> Tree:
        """Return the place of the session in a tree of agents; `NO_TREE` if nothing names one."""
        ...

    def user(self, call: Call) -> str:
        """Return the end user that the client names, or ""."""
        ...

    def states_tree(self, call: Call) -> bool:
        """Tell whether a header field of the call names its tree. This is fast."""
        ...


@dataclass(frozen=True, slots=True)
class AllowList:
    """Whose repeats are allowed. `tools` allows a call only if it lists every tool that the last messages call."""

    routes: Entries
    agents: Entries
    callers: Entries
    tools: Entries
    fingerprints: Entries
    tool_messages: int = TAIL_MESSAGES  # in how many of the last messages tools are looked for

    def __bool__(self) -> bool:
        return bool(self.routes or self.agents or self.callers or self.tools or self.fingerprints)

    def covers(self, call: Call, fingerprint: str, read: CallReader, now: float) -> bool:
        """Tell whether this call is exempt now."""
        if self.fingerprints.get(fingerprint, 0.0) > now:
            return True
        if self.agents and self.agents.get(read.agent(call), 0.0) > now:
            return True
        if self.callers and self.callers.get(read.caller(call), 0.0) > now:
            return True
        if self.tools:
            names = read.tools(call, self.tool_messages)
            if names and all(self.tools.get(name, 0.0) > now for name in names):
                return True
        return any(expires > now and route_matches(route, call.path) for route, expires in self.routes.items())


EXPECT_REPEATS_HEADER = "x-breakloop-expect-repeats"
EXPECT_REPEATS_MAX = 10_000
DELAY_STEP_MS = 100
DELAY_MAX_MS = 30_000

_COMPARED: Final = "Only its last messages were compared; earlier ones may differ. "


@dataclass(frozen=True, slots=True)
class BuiltinLoopGuard:
    """The numbers of the built-in block (`LOOP_GUARD_*`). `max_hits` 0 turns it off."""

    window_seconds: int = 60
    max_hits: int = 5
    cooldown_seconds: int = COOLDOWN_S
    deny_status: int | Literal["auto"] = "auto"


_COOLDOWN: Final = blocked_at_once()
_SAME_REQUEST: Final = Advice("Change course, use what you already have, or finish.")


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """What a policy sets for a detector, whatever it detects."""

    kind: str  # the block's `similarity`
    policy: str
    index: int  # of the block in its policy: two blocks may count the same fingerprint differently
    actions: tuple[str, str, str]  # of notice, block and stop
    status: int  # 0: the one that ends the run in the client (`dialects.clients`)
    expect_repeats: frozenset[str] = frozenset()  # callers whose `X-Breakloop-Expect-Repeats` is accepted
    allow: AllowList | None = None
    cooldown: FingerprintSpec = _COOLDOWN  # of the loops that a stateful detector denies
    landing: FingerprintSpec | None = None  # the same, of those whose action is `land`
    advice: Mapping[str, Advice] = field(default_factory=dict)  # by kind of loop, instead of the built-in ones
    quarantine_s: int = 0  # how long `kill` holds an agent; 0: until an operator releases it
    setting: str = ""  # the setting it comes from, if that is not a `loop_detection` block
    key_prefix: str = ""  # in keys, before the policy: `|` for default blocks, which no policy's name can contain

    @property
    def action(self) -> str:
        """The action of a block, which is what counting detectors apply."""
        return self.actions[1]

    @property
    def rule(self) -> str:
        """The detector's name in verdicts and records."""
        return self.setting or f"loop_detection[{self.index}]"


def announced(call: Call, config: DetectorConfig, read: CallReader) -> int:
    """Return how many repeats a caller listed in `expect_repeats` has announced; -1 for none (LD-6)."""
    value = call.headers.get(EXPECT_REPEATS_HEADER) if config.expect_repeats else None
    if value is None or not value.isdigit() or read.caller(call) not in config.expect_repeats:
        return -1
    return min(int(value[:8]), EXPECT_REPEATS_MAX)


def frequency(spec: FingerprintSpec, result: FingerprintCount, unit: str = "seconds") -> str:
    """Return how often and in which time it was sent, as far as the count shows: it has no time of the first one."""
    times, window = f"{result.hits} times", f"{math.ceil(spec.window_s)} {unit}"
    if spec.cooldown_s and not result.fresh and not result.mixed:  # blocked requests are counted too, beyond the window
        return f"{times}, also while it was blocked"
    return f"{times} in {window}" if spec.sliding else f"{times}, never more than {window} apart"


class CountingDetector:
    """Plans one `CountFingerprint` for each call; `finding` describes its result."""

    __slots__ = ("_fingerprint", "_has_terms", "_key", "_read", "_senders", "config", "of_unnamed", "spec")

    def __init__(
        self,
        config: DetectorConfig,
        spec: FingerprintSpec,
        fingerprint: Callable[[Call], str | None],
        read: CallReader,
        senders: str = "",
    ) -> None:
        self.config = config
        self.spec = spec
        self._fingerprint = fingerprint
        self._read = read
        self._senders = senders  # who sent it, for the evidence
        self.of_unnamed = False
        self._has_terms = config.allow is not None or bool(config.expect_repeats)  # for some callers or calls
        family = "ld" if config.kind == "exact" else "cnt"
        self._key = (f"{family}:", f":{config.key_prefix}{escape(config.policy)}:{config.index}:")

    def plan(self, call: Call, project: str, group: int, now: float) -> CountFingerprint | None:
        """Return the count, or None if the call has no fingerprint or is on the allow list."""
        read = self._fingerprint  # first: calling an attribute takes longer than calling a local name
        fingerprint = read(call)
        if fingerprint is None:
            return None
        spec, limit = self.spec, -1
        if self._has_terms:
            config = self.config
            if config.allow is not None and config.allow.covers(call, fingerprint, self._read, now):
                return None
            limit = max(spec.limit, announced(call, config, self._read))
        family, middle = self._key
        key = f"shadow:{family}{project}{middle}{fingerprint}" if group else f"{family}{project}{middle}{fingerprint}"
        op = CountFingerprint(spec, key, self, group, limit, call.tracked)
        if spec.land_calls:
            # Who changes the name of its session has no more calls that are landed.
            session = "" if self._senders else self._read.window(call)
            owner = escape(session) if session else f"*{escape(self._read.caller(call))}"
            op.landing(f"{prefix(group)}land:{project}{middle}{owner}")
        return op

    def finding(self, op: CountFingerprint, result: FingerprintCount) -> LoopFinding:
        """Return a tripped count as verdicts and events describe it."""
        config = self.config
        exact = config.kind == "exact"
        what = "identical request" if exact else "same last messages"
        return LoopFinding(
            kind=config.kind,
            fingerprint=fingerprint_of(op.key),
            hit_count=result.hits,
            window_s=math.ceil(self.spec.window_s),
            cooldown_s=math.ceil(result.wait_s),
            action=self._action(op, result),
            fresh=result.fresh,
            message=self._message(result),
            evidence=f"{what} sent{self._senders} {frequency(op.spec, result, 'seconds' if exact else 's')}",
        )

    def _action(self, op: CountFingerprint, result: FingerprintCount) -> str:
        action = self.config.action
        if action == "pause" and not op.spec.denies:  # a person let the run go on
            return "warn"
        return action if action != "land" or result.landed else "reject"

    def _message(self, result: FingerprintCount) -> str:
        # People search for the first sentence, so it is the same for both kinds.
        compared = "" if self.config.kind == "exact" else _COMPARED
        return (
            f"Blocked: identical request sent {frequency(self.spec, result)}. This usually indicates an agent retry "
            f"loop, infinite recursion, or misconfigured automation. {compared}Do not send it again: change the "
            "request, work with the answers you have, or stop. "
            f"It stays blocked for {math.ceil(result.wait_s)} seconds."
        )

    window_keys: tuple[str, ...] = ()  # besides the key of the count

    def sender(self, call: Call) -> tuple[str, str]:
        return self._read.caller(call), self._read.agent(call)

    def note(self, loop: LoopFinding) -> str:
        why = f"You have sent the same request {loop.hit_count} times without progress."
        return landing_note(why, _SAME_REQUEST) if loop.action == "land" else f"{why} {_SAME_REQUEST.instead}"

    def delay_ms(self, count: int) -> int:
        """Return how long a throttled request waits: 100 ms for each repeat, at most 30 s."""
        return min(count * DELAY_STEP_MS, DELAY_MAX_MS)


_SENDERS_MAX: Final = 1024
_TASKS_MAX: Final = 4096


class TailDetector(CountingDetector):
    """The count of `tail` for each sender. Embeddings and pings are only reported, and so is an opening if its sender
    also sends many other requests: those of many people who share a key. Tasks of one sender that begin with the same
    steps have counts of their own.
    """

    __slots__ = ("_reporting", "_sender_keys", "_tasks")

    def __init__(
        self,
        config: DetectorConfig,
        spec: FingerprintSpec,
        fingerprint: Callable[[Call], str | None],
        read: CallReader,
    ) -> None:
        super().__init__(config, spec, fingerprint, read)
        self._reporting = replace(spec, denies=False, cooldown_s=0.0, land_calls=0)
        self._sender_keys: dict[tuple[str, str], str] = {}
        self._tasks: dict[str, str] = {}  # which task has a key; "" as long as it came only once

    def plan(self, call: Call, project: str, group: int, now: float) -> CountFingerprint | None:
        op = CountingDetector.plan(self, call, project, group, now)  # `super()` takes as long as the rest of this call
        chat, who = call.parsed.chat, call.identity  # the fingerprint has read both
        if op is None or not chat:
            return op
        if (chat.max_tokens == 1 or chat.dialect == EMBEDDINGS_DIALECT) and is_cheap(call, chat):
            op.spec = self._reporting
            return op
        names = who.caller or "", who.agent or ""
        sender = self._sender_keys.get(names) or self._sender_key(names)
        if who.named:
            sender = f"{sender}||{escape(who.named)}"
        key = f"mix:{project}{self._key[1]}{sender}"
        op.traffic = SHADOW + key if group else key
        if chat.message_count <= len(chat.tail):
            op.opening = is_opening(chat)
        elif not who.named:
            self._separate(op, call)
        return op

    def _separate(self, op: CountFingerprint, call: Call) -> None:
        """Give a request a key of its own if its last messages are known from another task: twelve tasks of a program
        may all read the same two files first. Nearly all requests have last messages that no other one has, so the task
        is only read where they come again.
        """
        tasks, key = self._tasks, op.key
        owner = tasks.get(key)
        if owner is None:
            if len(tasks) >= _TASKS_MAX:
                tasks.clear()
            tasks[key] = ""
            return
        task = self._read.task(call)
        if not owner:
            tasks[key] = task
        elif task != owner:
            fingerprint = fingerprint_of(key)
            own = blake2b(f"{fingerprint}{task}".encode(), digest_size=len(fingerprint) // 2).hexdigest()
            op.key = key.removesuffix(fingerprint) + own

    def _sender_key(self, names: tuple[str, str]) -> str:
        """Return the part of a key for caller and agent, which are the same in thousands of requests."""
        caller, agent = names
        made = escape(caller) if agent == caller else f"{escape(caller)}|{escape(agent)}"
        if len(self._sender_keys) >= _SENDERS_MAX:
            self._sender_keys.clear()
        self._sender_keys[names] = made
        return made

    def _action(self, op: CountFingerprint, result: FingerprintCount) -> str:
        return "warn" if result.mixed or op.spec is self._reporting else super()._action(op, result)


def is_snoozed(op: object, snoozed: Mapping[str, float], now: float) -> bool:
    """Tell whether an operator has snoozed the fingerprint that an operation counts: the last part of its key."""
    return type(op) is CountFingerprint and snoozed.get(fingerprint_of(op.key), 0.0) > now
