"""One compiled `loop_detection` block: counts a fingerprint, and says what follows when it comes too often.

Allow lists of a loop detector (SPEC LD-6): what is never judged, or only until a time (a snooze).

Loops that a person lets go on for a while (SPEC LD-6): by the fingerprint that the denial and the event name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from breakloop.model.call import Call
from breakloop.model.verdict import LoopFinding
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec, part

Entries = Mapping[str, float]  # value -> when it expires, as a time; infinity for never


def route_matches(route: str, path: str) -> bool:
    """Tell whether `path` is `route`, or begins with it where it ends in `*`."""
    if route.endswith("*"):
        return path.startswith(route[:-1])
    return path == route


@dataclass(frozen=True, slots=True)
class AllowList:
    """Whose repeats are fine. `tools` allows a call only if every tool its tail names is listed."""

    routes: Entries
    agents: Entries
    callers: Entries
    tools: Entries
    fingerprints: Entries

    @property
    def says_anything(self) -> bool:
        """Tell whether there is any entry, so that an empty list costs nothing per request."""
        return bool(self.routes or self.agents or self.callers or self.tools or self.fingerprints)

    def covers(self, call: Call, fingerprint: str, who: DetectorIdentity, now: float) -> bool:
        """Tell whether this call is not to be judged now."""
        if self.fingerprints.get(fingerprint, 0.0) > now:
            return True
        if self.agents and self.agents.get(who.agent(call), 0.0) > now:
            return True
        if self.callers and self.callers.get(who.caller(call), 0.0) > now:
            return True
        if self.tools:
            names = who.tools(call)
            if names and all(self.tools.get(name, 0.0) > now for name in names):
                return True
        return any(expires > now and route_matches(route, call.path) for route, expires in self.routes.items())


@dataclass(frozen=True, slots=True)
class DetectorIdentity:
    """How to read who sent a call; the readers come from `policy.descriptors`."""

    caller: Callable[[Call], str]
    agent: Callable[[Call], str]
    tools: Callable[[Call], tuple[str, ...]]


EXPECT_REPEATS_HEADER = "x-breakloop-expect-repeats"
EXPECT_REPEATS_MAX = 10_000
DELAY_STEP_MS = 100
DELAY_MAX_MS = 30_000

_COMPARED: Final = "Identical are its last messages; what stands before them may differ. "


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """The fixed part of a detector: whose it is and what it does."""

    kind: str  # the block's `similarity`
    policy: str
    index: int  # which block of the policy, because two may count the same fingerprint differently
    action: str
    status: int
    expect_repeats: frozenset[str]  # callers whose `X-Breakloop-Expect-Repeats` is believed
    allow: AllowList | None
    quarantine_s: int = 0  # how long `kill` holds an agent; 0: until a person releases it
    setting: str = ""  # where it stands, if not among a policy's blocks
    key_prefix: str = ""  # in keys, in front of the policy: `|` for the default blocks, which no policy's name can be

    @property
    def rule(self) -> str:
        """Where it stands, as verdicts and records name it."""
        return self.setting or f"loop_detection[{self.index}]"


def announced(call: Call, config: DetectorConfig, who: DetectorIdentity) -> int:
    """Return how many repeats a caller that the policy names has announced (SPEC LD-6); -1 for none."""
    value = call.headers.get(EXPECT_REPEATS_HEADER) if config.expect_repeats else None
    if value is None or not value.isdigit() or who.caller(call) not in config.expect_repeats:
        return -1
    return min(int(value[:8]), EXPECT_REPEATS_MAX)


def often(spec: FingerprintSpec, result: FingerprintCount, unit: str = "seconds") -> str:
    """Say how often it came and in which time, as far as the count tells: when the first one came it does not."""
    times, window = f"{result.hits} times", f"{math.ceil(spec.window_s)} {unit}"
    if spec.cooldown_s and not result.fresh:  # it is counted on, past the window
        return f"{times}, also while it was blocked"
    return f"{times} in {window}" if spec.sliding else f"{times}, never more than {window} apart"


class CountingDetector:
    """Plans one `CountFingerprint` a call; `found` turns its result into what the client is told."""

    __slots__ = ("_fingerprint", "_key", "_who", "config", "spec")

    def __init__(
        self,
        config: DetectorConfig,
        spec: FingerprintSpec,
        fingerprint: Callable[[Call], str | None],
        who: DetectorIdentity,
    ) -> None:
        self.config = config
        self.spec = spec
        self._fingerprint = fingerprint
        self._who = who
        family = "ld" if config.kind == "exact" else "cnt"
        self._key = (f"{family}:", f":{config.key_prefix}{part(config.policy)}:{config.index}:")

    def plan(self, call: Call, project: str, group: int, now: float) -> CountFingerprint | None:
        """Return the count to make, or None when this detector has nothing to say about the call."""
        fingerprint = self._fingerprint(call)
        if fingerprint is None:
            return None
        config = self.config
        if config.allow is not None and config.allow.covers(call, fingerprint, self._who, now):
            return None
        limit = self._expected(call) if config.expect_repeats else -1
        family, middle = self._key
        key = f"shadow:{family}{project}{middle}{fingerprint}" if group else f"{family}{project}{middle}{fingerprint}"
        return CountFingerprint(self.spec, key, self, group, limit, call.tracked)

    def finding(self, op: CountFingerprint, result: FingerprintCount) -> LoopFinding:
        """Return what a tripped count means."""
        config = self.config
        exact = config.kind == "exact"
        what = "identical request" if exact else "same last messages"
        return LoopFinding(
            kind=config.kind,
            fingerprint=op.key[-32:],
            hit_count=result.hits,
            window_s=math.ceil(self.spec.window_s),
            cooldown_s=math.ceil(result.wait_s),
            action=config.action,
            fresh=result.fresh,
            message=self._message(result),
            evidence=f"{what} sent {often(self.spec, result, 'seconds' if exact else 's')}",
        )

    def _message(self, result: FingerprintCount) -> str:
        # The first sentence is what people look for; what "identical" means is said where it is not the whole request.
        compared = "" if self.config.kind == "exact" else _COMPARED
        return (
            f"Blocked: identical request sent {often(self.spec, result)}. This usually indicates an agent retry loop, "
            f"infinite recursion, or misconfigured automation. {compared}Do not send it again: change the request, "
            f"work with the answers you have, or stop. It stays blocked for {math.ceil(result.wait_s)} seconds."
        )

    window_keys: tuple[str, ...] = ()  # beyond the count itself

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent as events name them, and as allow lists want them."""
        return self._who.caller(call), self._who.agent(call)

    def note(self, loop: LoopFinding) -> str:
        """Return the sentence for a model that is steered and not stopped."""
        return (
            f"You have sent the same request {loop.hit_count} times without progress. "
            "Change course, use what you already have, or finish."
        )

    def delay_ms(self, count: int) -> int:
        """Return how long a throttled request waits: 100 ms a repeat, at most 30 s."""
        return min(count * DELAY_STEP_MS, DELAY_MAX_MS)

    def _expected(self, call: Call) -> int:
        expected = announced(call, self.config, self._who)
        return expected if expected < 0 else max(self.spec.limit, expected)


def is_snoozed(op: Any, snoozed: Mapping[str, float], now: float) -> bool:
    """Tell whether an operation counts a fingerprint that may repeat now; it is the last part of its key."""
    return type(op) is CountFingerprint and snoozed.get(op.key.rpartition(":")[2], 0.0) > now
