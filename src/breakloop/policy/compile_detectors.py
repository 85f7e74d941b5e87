"""Compiles `loop_detection` blocks and the built-in protection of LLM calls to detectors. Used by `compile`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from breakloop.detect.counting import AllowList, BuiltinLoopGuard, CountingDetector, DetectorConfig
from breakloop.detect.fingerprint import ExactFingerprint, Fingerprinter, TailFingerprint
from breakloop.detect.simhash import SimhashDetector
from breakloop.detect.spawn import SpawnDetector
from breakloop.detect.stateful import DENYING
from breakloop.detect.steps.detector import StepsDetector
from breakloop.detect.steps.evaluator import StepEvaluator
from breakloop.detect.steps.kinds import BY_NAME, NEVER, NORMAL
from breakloop.detect.unnamed_sessions import UnnamedSessionsDetector
from breakloop.dialects.content import canonical
from breakloop.model.call import TAIL_MESSAGES, Call
from breakloop.policy.compiled import CompiledDetector
from breakloop.policy.descriptors import Descriptors, query_for_fingerprint
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
from breakloop.store.ops import FingerprintSpec, blocked_at_once

BUILTIN = "builtin"
DEFAULTS = "defaults"
_DEFAULT_STATUS: Final = 429


@dataclass(slots=True)
class DetectorContext:
    """State shared by the detectors of one bundle."""

    read: Descriptors
    fingerprinter: Fingerprinter
    tail_messages: int = TAIL_MESSAGES  # how many of the last messages of a request the detectors read
    identities: int = 0  # how many are cached in `CallerProfile.identities`


def policy_detectors(
    context: DetectorContext, policy: schema.Policy, names: tuple[str, ...]
) -> tuple[CompiledDetector, ...]:
    """Compile the blocks of a policy; `names` are the descriptors that its rules read."""
    return _compile(context, policy.spec.loops, policy.id, policy.spec.deny_status, names)


def default_detectors(
    context: DetectorContext, defaults: schema.Defaults, guard: BuiltinLoopGuard
) -> tuple[CompiledDetector, ...]:
    """Compile the detectors of LLM calls that no policy's own loop detection covers."""
    if defaults.loop_detection is None:
        return _builtin(context, guard)
    return _compile(context, defaults.loops, DEFAULTS, _DEFAULT_STATUS, None)


def project_detectors(
    context: DetectorContext, bundle: schema.Bundle, guard: BuiltinLoopGuard
) -> dict[str, tuple[CompiledDetector, ...]]:
    """Compile the built-in block with the values of each project that sets some. They have no effect if the bundle has
    its own default."""
    if bundle.defaults.loop_detection is not None:
        return {}
    own = {name: project.loop_guard for name, project in bundle.projects.items()}
    return {name: _builtin(context, _project_guard(one, guard)) for name, one in own.items() if one is not None}


def _builtin(context: DetectorContext, guard: BuiltinLoopGuard) -> tuple[CompiledDetector, ...]:
    return _compile(context, builtin_blocks(guard), BUILTIN, _DEFAULT_STATUS, None)


def builtin_blocks(guard: BuiltinLoopGuard) -> tuple[AnyLoop, ...]:
    """Return the blocks that protect LLM calls if nothing else is configured; none if they are turned off."""
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
        thresholds=_storm_thresholds(guard.max_hits),
    )
    return tail, steps


def _storm_thresholds(max_hits: int) -> dict[str, tuple[float, float, float]]:
    """Raise the thresholds of `storm`, so that it does not stop identical requests which `max_hits` allows (LD-2)."""
    most = BY_NAME["storm"].most

    def at_least(threshold: float, wanted: int) -> float:
        return max(threshold, wanted) if wanted <= most else NEVER

    notice, block, stop = NORMAL["storm"]
    lifted = (at_least(notice, max_hits), at_least(block, 2 * max_hits), at_least(stop, 4 * max_hits))
    return {"storm": lifted} if lifted != (notice, block, stop) else {}


def _project_guard(own: schema.LoopGuard, guard: BuiltinLoopGuard) -> BuiltinLoopGuard:
    def pick(value: int | None, default: int) -> int:
        return default if value is None else value

    return BuiltinLoopGuard(
        pick(own.window_seconds, guard.window_seconds),
        pick(own.max_hits, guard.max_hits),
        pick(own.cooldown_seconds, guard.cooldown_seconds),
    )


def _compile(
    context: DetectorContext, blocks: Iterable[AnyLoop], policy: str, status: int, names: tuple[str, ...] | None
) -> tuple[CompiledDetector, ...]:
    """Compile blocks. `names` are the descriptors in exact fingerprints; None for default blocks, which apply to LLM
    calls only."""
    detectors: list[CompiledDetector] = []
    for index, block in enumerate(blocks):
        if not block.enabled:
            continue
        config = _config(block, policy, index, status, default=names is None)
        if isinstance(block, ExactLoop):
            fingerprint = _exact_of_llm_calls(context) if names is None else _exact(context, names)
            detectors.append(CountingDetector(config, _exact_spec(block, config.action), fingerprint, context.read))
        elif isinstance(block, TailLoop) and block.max_hits:
            fingerprint = _tail(context, block.tail_messages)
            detectors.append(CountingDetector(config, _tail_spec(block, config.action), fingerprint, context.read))
        elif isinstance(block, StepsLoop):
            detectors += _steps(context, block, config)
        elif isinstance(block, SimhashLoop):
            detectors.append(
                simhash_detector(context, config, block.window_requests, block.threshold_score, block.weights)
            )
    return tuple(detectors)


def _config(block: AnyLoop, policy: str, index: int, status: int, *, default: bool) -> DetectorConfig:
    if isinstance(block, StepsLoop):
        cooldown = blocked_at_once(block.cooldown_seconds, block.cooldown_growth, block.cooldown_max_seconds)
    else:
        cooldown = blocked_at_once()
    messages = block.tail_messages if isinstance(block, TailLoop) else TAIL_MESSAGES
    return DetectorConfig(
        kind=block.similarity,
        policy=policy,
        index=index,
        actions=(block.action_for("notice"), block.action_for("block"), block.action_for("stop")),
        status=status,
        expect_repeats=frozenset(block.expect_repeats.callers) if block.expect_repeats else frozenset(),
        allow=_allow_list(block.allow, messages),
        cooldown=cooldown,
        quarantine_s=block.quarantine_seconds,
        key_prefix="|" if default else "",
    )


def _steps(context: DetectorContext, block: StepsLoop, config: DetectorConfig) -> list[CompiledDetector]:
    """Compile a block of steps. The detector of a session's steps comes last, because it depends on a value set by the
    detector of unnamed sessions.
    """
    settings, digest, read = block.settings(), context.fingerprinter.short, context.read
    notice, block_at, _ = settings.thresholds["spawn"]
    return [
        UnnamedSessionsDetector(config, read, digest, settings.thresholds["nested"]),
        SpawnDetector(config, read, digest, depth=(notice, block_at), same_task=(notice, block_at)),
        StepsDetector(config, read, StepEvaluator(settings, digest), guards_stream=block.stream_guard),
    ]


def simhash_detector(
    context: DetectorContext, config: DetectorConfig, window_requests: int, threshold: float, weights: Weights
) -> SimhashDetector:
    """Compile a score over the last requests of a caller and agent."""
    return SimhashDetector(
        config,
        context.read,
        window_requests=window_requests,
        threshold=threshold,
        weights=(weights.prompt, weights.response, weights.tool),
        seed=int.from_bytes(context.fingerprinter.short(b"score")),
    )


def _exact(context: DetectorContext, names: tuple[str, ...]) -> Callable[[Call], str | None]:
    return ExactFingerprint(
        context.fingerprinter, identity=_identity(context, names), query=query_for_fingerprint, body=canonical
    )


def _exact_of_llm_calls(context: DetectorContext) -> Callable[[Call], str | None]:
    fingerprint, chat = _exact(context, ()), context.read.chat
    return lambda call: None if chat(call) is None else fingerprint(call)


def _identity(context: DetectorContext, names: tuple[str, ...]) -> Callable[[Call], str]:
    """Return a reader of the sender's part of a fingerprint: caller, agent and descriptors. It is cached if it only
    depends on the sender."""
    read = context.read
    getters = tuple(read.getter(name) for name in names)
    caller, agent, digest = read.caller, read.agent, context.fingerprinter.digest

    def compute(call: Call) -> str:
        return digest([caller(call), agent(call), *[get(call) or "" for get in getters]])

    if not all(steady(name) for name in names):
        return compute
    context.identities += 1
    number = context.identities

    def cached(call: Call) -> str:
        sender = call.identity.profile
        if sender is None:
            return compute(call)
        known = sender.identities.get(number)
        if known is None:
            known = sender.identities[number] = compute(call)
        return known

    return cached


def _tail(context: DetectorContext, messages: int) -> Callable[[Call], str | None]:
    context.tail_messages = max(context.tail_messages, messages + 1)  # plus the call before them
    read = context.read
    return TailFingerprint(
        context.fingerprinter, caller=read.caller, agent=read.agent, chat=read.chat, messages=messages
    )


def _exact_spec(block: ExactLoop, action: str) -> FingerprintSpec:
    return FingerprintSpec(
        window_s=block.window_seconds,
        limit=block.threshold_identical_requests - 1,  # the Nth request triggers it
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
        # Only actions that deny have a cooldown; other actions only count.
        cooldown_s=block.cooldown_seconds if action in DENYING else 0.0,
        growth=block.cooldown_growth,
        cooldown_max_s=block.cooldown_max_seconds,
        concurrent_free=block.concurrent_free,
        retry_free=block.retry_free,
    )


def _allow_list(allow: Allow, tool_messages: int) -> AllowList | None:
    def read(listed: Iterable[AllowEntry | AllowRoute]) -> dict[str, float]:
        return {entry.value: expiry(entry.expires_at) for entry in listed}

    compiled = AllowList(
        routes=read(allow.routes),
        agents=read(allow.agents),
        callers=read(allow.callers),
        tools=read(allow.tools),
        fingerprints=read(allow.fingerprints),
        tool_messages=tool_messages,
    )
    return compiled or None


def expiry(moment: datetime | None) -> float:
    """Return the time at which something expires, or infinity if it never does."""
    return math.inf if moment is None else moment.timestamp()
