"""`loop_detection` blocks -> detectors, with the built-in protection of LLM calls (SPEC B-6). A part of `compile`.

Blocks that remember -> their detectors: `steps`, `simhash`, run ceilings. A part of `compile`.

Whose memory a detector keeps: a session's, an agent's (of one caller), a caller's. Names as state keys hold them;
reading who sends is `descriptors`' work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from breakloop.detect.counting import AllowList, CountingDetector, DetectorConfig, DetectorIdentity
from breakloop.detect.fingerprint import ExactFingerprint, Fingerprinter, TailFingerprint
from breakloop.detect.run_steps import RunStepsLimit
from breakloop.detect.simhash import SimhashDetector, SimhashScorer
from breakloop.detect.spawn import RunStart, SpawnDetector, SpawnTracker
from breakloop.detect.stateful import CALLER_OWNER, DENYING, CallReaders, SeverityActions
from breakloop.detect.steps import StepsDetector
from breakloop.detect.steps.block import StepsBlock
from breakloop.detect.steps.kinds import ABOUT, NEVER, NORMAL
from breakloop.detect.unnamed_sessions import LaneTracker, UnnamedSessionsDetector
from breakloop.dialects.content import canonical
from breakloop.model.call import TAIL_MESSAGES, Call
from breakloop.policy.compiled import CompiledDetector
from breakloop.policy.descriptors import Descriptors, query_for_fingerprint
from breakloop.policy.rules import RunRule
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.loops import (
    Allow,
    AllowEntry,
    AllowRoute,
    AnyLoop,
    ExactLoop,
    SimhashLoop,
    StepsLoop,
    TailLoop,
    Weights,
)
from breakloop.policy.senders import steady
from breakloop.pricing.tokens import estimator
from breakloop.store.ops import COOLDOWN_S, FingerprintSpec, blocked_at_once, joined, part


class WindowOwners:
    """Names owners of windows. They all belong to a caller: a client may have picked somebody else's session id."""

    __slots__ = ("_who",)

    def __init__(self, descriptors: Descriptors) -> None:
        self._who = descriptors

    def session(self, call: Call) -> str:
        """Return the session, or "" for a call that has none."""
        window = self._who.window(call)
        return f"s:{part(window)}" if window else ""

    def unnamed(self, call: Call) -> str:
        """Return caller and agent of a call whose session the client did not name, else ""."""
        return self.agent(call) if self._who.derived(call) else ""

    def agent(self, call: Call) -> str:
        """Return caller and agent."""
        return f"a:{joined([self._who.caller(call), self._who.agent(call)])}"

    def parent(self, call: Call) -> str:
        """Return the caller of a conversation that another one began, else ""."""
        who = self._who
        return f"{CALLER_OWNER}{part(who.caller(call))}" if who.parent(call) or who.trace(call) else ""


_TOOL_MESSAGES: Final = 3  # where an allow list looks for tools


class WindowDetectorCompiler:
    """Makes detectors that remember."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self._owners = WindowOwners(descriptors)

    def steps(self, block: StepsLoop, config: DetectorConfig) -> list[CompiledDetector]:
        """A session's steps; and before them what is told by more than one session."""
        spec = blocked_at_once(block.cooldown_seconds, block.cooldown_growth, block.cooldown_max_seconds)
        ladder = SeverityActions(config, _actions(block), spec, identity(self._descriptors))
        settings, digest = block.settings(), self._fingerprinter.short
        lanes = LaneTracker(settings.thresholds["nested"], digest)
        deep = settings.thresholds["spawn"][:2]
        spawn = SpawnTracker(digest, depth=deep, same_task=deep)
        read = self._descriptors
        return [
            UnnamedSessionsDetector(
                config, ladder, self._reads(self._owners.unnamed), lanes, session=read.session, lane=read.lane
            ),
            SpawnDetector(config, ladder, self._reads(self._owners.parent), spawn, begin=self._begin),
            StepsBlock(
                config,
                ladder,
                self._reads(self._owners.session),
                StepsDetector(settings, digest),
                unnamed=read.derived,
                voice=read.lane,
                guards_stream=block.stream_guard,
            ),
        ]

    def _begin(self, call: Call, task: str) -> RunStart:
        read = self._descriptors
        names = (read.session(call), read.parent(call), read.trace(call), read.agent(call))
        return RunStart(*names, task, read.lane(call))

    def simhash(self, block: SimhashLoop, config: DetectorConfig) -> SimhashDetector:
        """The score of a block."""
        return self.score(config, _actions(block), block.window_requests, block.threshold_score, block.weights)

    def score(
        self,
        config: DetectorConfig,
        actions: tuple[str, str, str],
        window_requests: int,
        threshold: float,
        weights: Weights,
    ) -> SimhashDetector:
        """A score over the last requests of caller and agent."""
        ladder = SeverityActions(config, actions, blocked_at_once(), identity(self._descriptors))
        seed = int.from_bytes(self._fingerprinter.short(b"score"))
        each = (weights.prompt, weights.response, weights.tool)
        detector = SimhashScorer(window_requests, threshold, *each, seed)
        return SimhashDetector(config, ladder, self._reads(self._owners.agent), detector)

    def ceiling(self, config: DetectorConfig, max_steps: int) -> RunStepsLimit:
        """A ceiling of steps over a session."""
        return RunStepsLimit(config, max_steps, step=self._descriptors.step, owner=self._owners.session)

    def run_money(self, pattern: str, usd: float, config: DetectorConfig) -> RunRule:
        """A ceiling of dollars over a session."""
        return RunRule(pattern, usd, config, owner=self._owners.session, estimator=estimator("simple_word"))

    def _reads(self, owner: Callable[[Call], str]) -> CallReaders:
        return CallReaders(self._descriptors.step, owner, identity(self._descriptors))


def identity(read: Descriptors, messages: int = _TOOL_MESSAGES) -> DetectorIdentity:
    """Who sends, and which tools these last messages call; more of them may have been read for another policy."""

    def tools(call: Call) -> tuple[str, ...]:
        chat = read.chat(call)
        return tuple(made.name for message in chat.tail[-messages:] for made in message.calls) if chat else ()

    return DetectorIdentity(read.caller, read.agent, tools)


def _actions(block: AnyLoop) -> tuple[str, str, str]:
    return block.action_for("notice"), block.action_for("block"), block.action_for("stop")


BUILTIN = "builtin"
DEFAULTS = "defaults"


@dataclass(frozen=True, slots=True)
class BuiltinLoopGuard:
    """The built-in block's three numbers (`LOOP_GUARD_*`); `max_hits` 0 switches it off."""

    window_seconds: int = 60
    max_hits: int = 5
    cooldown_seconds: int = COOLDOWN_S


def builtin_blocks(guard: BuiltinLoopGuard) -> tuple[AnyLoop, ...]:
    """The blocks that protect LLM calls when nothing else is said; none when they are switched off."""
    if guard.max_hits == 0:
        return ()
    longest_s = max(TailLoop.model_fields["cooldown_max_seconds"].default, guard.cooldown_seconds)
    tail = TailLoop(
        similarity="tail",
        window_seconds=guard.window_seconds,
        max_hits=guard.max_hits,
        cooldown_seconds=guard.cooldown_seconds,
        cooldown_max_seconds=longest_s,
    )
    steps = StepsLoop(
        similarity="steps",
        cooldown_seconds=guard.cooldown_seconds,
        cooldown_max_seconds=longest_s,
        thresholds=_lifted(guard.max_hits),
    )
    return tail, steps


def _lifted(max_hits: int) -> dict[str, tuple[float, float, float]]:
    """Whoever lets more identical requests pass does not want `storm` to stop them (SPEC LD-2)."""
    most = ABOUT["storm"].most

    def at_least(threshold: float, wanted: int) -> float:
        return max(threshold, wanted) if wanted <= most else NEVER

    notice, block, stop = NORMAL["storm"]
    lifted = (at_least(notice, max_hits), at_least(block, 2 * max_hits), at_least(stop, 4 * max_hits))
    return {"storm": lifted} if lifted != (notice, block, stop) else {}


class DetectorCompiler:
    """Makes detectors out of blocks."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self.watchers = WindowDetectorCompiler(descriptors, fingerprinter)
        self._identities = 0
        self.tail_messages = TAIL_MESSAGES  # last messages of a request that the detectors made so far read

    def of_policy(self, policy: schema.Policy, names: tuple[str, ...]) -> tuple[CompiledDetector, ...]:
        """Detectors of a policy whose rules read descriptors `names`."""
        return self._made(policy.spec.loops, policy.id, policy.spec.deny_status, names)

    def of_defaults(self, defaults: schema.Defaults, guard: BuiltinLoopGuard) -> tuple[CompiledDetector, ...]:
        """Detectors of LLM calls that no policy's own loop detection covers."""
        if defaults.loop_detection is None:
            return self._builtin(guard)
        return self._made(defaults.loops, DEFAULTS, 429, None)

    def of_projects(self, bundle: schema.Bundle, guard: BuiltinLoopGuard) -> dict[str, tuple[CompiledDetector, ...]]:
        """What projects set for the built-in block; where the bundle has a default of its own, that one holds."""
        if bundle.defaults.loop_detection is not None:
            return {}
        own = {name: project.loop_guard for name, project in bundle.projects.items()}
        return {name: self._builtin(_project_guard(said, guard)) for name, said in own.items() if said is not None}

    def _builtin(self, guard: BuiltinLoopGuard) -> tuple[CompiledDetector, ...]:
        return self._made(builtin_blocks(guard), BUILTIN, 429, None)

    def _made(
        self, blocks: Iterable[AnyLoop], policy: str, status: int, names: tuple[str, ...] | None
    ) -> tuple[CompiledDetector, ...]:
        """Detectors by the descriptors that fingerprints hold; None for default ones, which judge LLM calls only."""
        made: list[CompiledDetector] = []
        for index, block in enumerate(blocks):
            if not block.enabled:
                continue
            action = block.action_for("block")  # what a hit of these detectors is
            config = DetectorConfig(
                kind=block.similarity,
                policy=policy,
                index=index,
                action=action,
                status=status,
                expect_repeats=frozenset(block.expect_repeats.callers) if block.expect_repeats else frozenset(),
                allow=_allow_list(block.allow),
                quarantine_s=block.quarantine_seconds,
                key_prefix="|" if names is None else "",
            )
            if isinstance(block, ExactLoop):
                fingerprint = self._exact_of_llm_calls() if names is None else self._exact(names)
                who = identity(self._descriptors)
                made.append(CountingDetector(config, _exact_spec(block, action), fingerprint, who))
            elif isinstance(block, TailLoop) and block.max_hits:
                who = identity(self._descriptors, block.tail_messages)
                made.append(CountingDetector(config, _tail_spec(block, action), self._tail(block.tail_messages), who))
            elif isinstance(block, StepsLoop):
                made += self.watchers.steps(block, config)
            elif isinstance(block, SimhashLoop):
                made.append(self.watchers.simhash(block, config))
        return tuple(made)

    def _exact(self, names: tuple[str, ...]) -> Callable[[Call], str | None]:
        return ExactFingerprint(
            self._fingerprinter, identity=self._identity(names), query=query_for_fingerprint, body=canonical
        )

    def _identity(self, names: tuple[str, ...]) -> Callable[[Call], str]:
        """The sender's part of a fingerprint: caller, agent and descriptors, remembered where it never changes."""
        getters = tuple(self._descriptors.getter(name) for name in names)
        caller, agent, digest = self._descriptors.caller, self._descriptors.agent, self._fingerprinter.digest

        def read(call: Call) -> str:
            return digest([caller(call), agent(call), *[get(call) or "" for get in getters]])

        if not all(steady(name) for name in names):
            return read
        self._identities += 1
        number = self._identities

        def remembered(call: Call) -> str:
            sender = call.identity.profile
            if sender is None:
                return read(call)
            known = sender.identities.get(number)
            if known is None:
                known = sender.identities[number] = read(call)
            return known

        return remembered

    def _exact_of_llm_calls(self) -> Callable[[Call], str | None]:
        fingerprint, chat = self._exact(()), self._descriptors.chat
        return lambda call: None if chat(call) is None else fingerprint(call)

    def _tail(self, messages: int) -> Callable[[Call], str | None]:
        self.tail_messages = max(self.tail_messages, messages + 1)  # and a call before them
        return TailFingerprint(
            self._fingerprinter,
            caller=self._descriptors.caller,
            agent=self._descriptors.agent,
            chat=self._descriptors.chat,
            messages=messages,
        )


def _exact_spec(block: ExactLoop, action: str) -> FingerprintSpec:
    return FingerprintSpec(
        window_s=block.window_seconds,
        limit=block.threshold_identical_requests - 1,  # the Nth request trips
        sliding=block.window == "sliding",
        denies=action in DENYING,
        concurrent_free=block.concurrent_free,
        retry_free=block.retry_free,
    )


def _tail_spec(block: TailLoop, action: str) -> FingerprintSpec:
    return FingerprintSpec(
        window_s=block.window_seconds,
        limit=block.max_hits,
        sliding=True,
        denies=action in DENYING,
        # A cooldown blocks; actions that do not block only count.
        cooldown_s=block.cooldown_seconds if action in DENYING else 0.0,
        growth=block.cooldown_growth,
        cooldown_max_s=block.cooldown_max_seconds,
        concurrent_free=block.concurrent_free,
        retry_free=block.retry_free,
    )


def _allow_list(allow: Allow) -> AllowList | None:
    def read(listed: Iterable[AllowEntry | AllowRoute]) -> dict[str, float]:
        return {entry.value: expiry(entry.expires_at) for entry in listed}

    made = AllowList(
        routes=read(allow.routes),
        agents=read(allow.agents),
        callers=read(allow.callers),
        tools=read(allow.tools),
        fingerprints=read(allow.fingerprints),
    )
    return made if made.says_anything else None


def _project_guard(own: schema.LoopGuard, guard: BuiltinLoopGuard) -> BuiltinLoopGuard:
    def pick(value: int | None, default: int) -> int:
        return default if value is None else value

    return BuiltinLoopGuard(
        pick(own.window_seconds, guard.window_seconds),
        pick(own.max_hits, guard.max_hits),
        pick(own.cooldown_seconds, guard.cooldown_seconds),
    )


def expiry(moment: datetime | None) -> float:
    """Return when something ends, as a time; what has no end ends never."""
    return math.inf if moment is None else moment.timestamp()
