"""`loop_detection` blocks -> detectors, with the built-in protection of LLM calls (SPEC B-6). A part of `compile`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from breakloop.detect.allow import AllowList
from breakloop.detect.exact import ExactFingerprint
from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.loop import LoopDetector, LoopTerms
from breakloop.detect.seen import DENYING
from breakloop.detect.steps.kinds import ABOUT
from breakloop.detect.steps.ladder import NEVER, NORMAL
from breakloop.detect.tail import TailFingerprint
from breakloop.model.call import TAIL_MESSAGES, Call
from breakloop.policy import schema
from breakloop.policy.compile_watchers import WatcherMaker, identity
from breakloop.policy.compiled import Detector
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.query import query_for_fingerprint
from breakloop.policy.senders import Sender, steady
from breakloop.state.ops import COOLDOWN_S, RepeatSpec
from breakloop.wire.json_body import canonical

BUILTIN = "builtin"
DEFAULTS = "defaults"


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """The built-in block's three numbers (`LOOP_GUARD_*`); `max_hits` 0 switches it off."""

    window_seconds: int = 60
    max_hits: int = 5
    cooldown_seconds: int = COOLDOWN_S


def builtin_blocks(guard: LoopGuard) -> tuple[schema.AnyLoop, ...]:
    """The blocks that protect LLM calls when nothing else is said; none when they are switched off."""
    if guard.max_hits == 0:
        return ()
    longest_s = max(schema.TailLoop.model_fields["cooldown_max_seconds"].default, guard.cooldown_seconds)
    tail = schema.TailLoop(
        similarity="tail",
        window_seconds=guard.window_seconds,
        max_hits=guard.max_hits,
        cooldown_seconds=guard.cooldown_seconds,
        cooldown_max_seconds=longest_s,
    )
    steps = schema.StepsLoop(
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


class LoopMaker:
    """Makes detectors out of blocks."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self.watchers = WatcherMaker(descriptors, fingerprinter)
        self._identities = 0
        self.tail_messages = TAIL_MESSAGES  # last messages of a request that the detectors made so far read

    def of_policy(self, policy: schema.Policy, names: tuple[str, ...]) -> tuple[Detector, ...]:
        """Detectors of a policy whose rules read descriptors `names`."""
        return self._made(policy.spec.loops, policy.id, policy.spec.deny_status, names)

    def of_defaults(self, defaults: schema.Defaults, guard: LoopGuard) -> tuple[Detector, ...]:
        """Detectors of LLM calls that no policy's own loop detection covers."""
        if defaults.loop_detection is None:
            return self._builtin(guard)
        return self._made(defaults.loops, DEFAULTS, 429, None)

    def of_projects(self, bundle: schema.Bundle, guard: LoopGuard) -> dict[str, tuple[Detector, ...]]:
        """What projects set for the built-in block; where the bundle has a default of its own, that one holds."""
        if bundle.defaults.loop_detection is not None:
            return {}
        own = {name: project.loop_guard for name, project in bundle.projects.items()}
        return {name: self._builtin(_project_guard(said, guard)) for name, said in own.items() if said is not None}

    def _builtin(self, guard: LoopGuard) -> tuple[Detector, ...]:
        return self._made(builtin_blocks(guard), BUILTIN, 429, None)

    def _made(
        self, blocks: Iterable[schema.AnyLoop], policy: str, status: int, names: tuple[str, ...] | None
    ) -> tuple[Detector, ...]:
        """Detectors by the descriptors that fingerprints hold; None for default ones, which judge LLM calls only."""
        made: list[Detector] = []
        for index, block in enumerate(blocks):
            if not block.enabled:
                continue
            action = block.action_for("block")  # what a hit of these detectors is
            terms = LoopTerms(
                kind=block.similarity,
                policy=policy,
                index=index,
                action=action,
                status=status,
                expects=frozenset(block.expect_repeats.callers) if block.expect_repeats else frozenset(),
                allow=_allow_list(block.allow),
                quarantine_s=block.quarantine_seconds,
                place="|" if names is None else "",
            )
            if isinstance(block, schema.ExactLoop):
                fingerprint = self._exact_of_llm_calls() if names is None else self._exact(names)
                who = identity(self._descriptors)
                made.append(LoopDetector(terms, _exact_spec(block, action), fingerprint, who))
            elif isinstance(block, schema.TailLoop) and block.max_hits:
                who = identity(self._descriptors, block.tail_messages)
                made.append(LoopDetector(terms, _tail_spec(block, action), self._tail(block.tail_messages), who))
            elif isinstance(block, schema.StepsLoop):
                made += self.watchers.steps(block, terms)
            elif isinstance(block, schema.SimhashLoop):
                made.append(self.watchers.simhash(block, terms))
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
            sender: Sender | None = call.sender
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


def _exact_spec(block: schema.ExactLoop, action: str) -> RepeatSpec:
    return RepeatSpec(
        window_s=block.window_seconds,
        limit=block.threshold_identical_requests - 1,  # the Nth request trips
        sliding=block.window == "sliding",
        denies=action in DENYING,
        concurrent_free=block.concurrent_free,
        retry_free=block.retry_free,
    )


def _tail_spec(block: schema.TailLoop, action: str) -> RepeatSpec:
    return RepeatSpec(
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


def _allow_list(allow: schema.Allow) -> AllowList | None:
    def read(listed: Iterable[schema.AllowEntry | schema.AllowRoute]) -> dict[str, float]:
        return {entry.value: expiry(entry.expires_at) for entry in listed}

    made = AllowList(
        routes=read(allow.routes),
        agents=read(allow.agents),
        callers=read(allow.callers),
        tools=read(allow.tools),
        fingerprints=read(allow.fingerprints),
    )
    return made if made.says_anything else None


def _project_guard(own: schema.LoopGuard, guard: LoopGuard) -> LoopGuard:
    def pick(value: int | None, default: int) -> int:
        return default if value is None else value

    return LoopGuard(
        pick(own.window_seconds, guard.window_seconds),
        pick(own.max_hits, guard.max_hits),
        pick(own.cooldown_seconds, guard.cooldown_seconds),
    )


def expiry(moment: datetime | None) -> float:
    """Return when something ends, as a time; what has no end ends never."""
    return math.inf if moment is None else moment.timestamp()
