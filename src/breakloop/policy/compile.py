"""Compiles a validated bundle (`policy.schema`) to a `CompiledBundle`: policies, rules with their limiters, loop
detectors, kill switches and the settings of agents.

This runs once per bundle and off the request path. As much as possible is computed here, so that requests need not
compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from breakloop.detect.counting import AllowList, BuiltinLoopGuard, CountingDetector, DetectorConfig, TailDetector
from breakloop.detect.fingerprint import ExactFingerprint, Fingerprinter, TailFingerprint
from breakloop.detect.joins import JoinDetector, JoinedStepsDetector
from breakloop.detect.rerun import RerunDetector
from breakloop.detect.run_steps import RunStepsLimit
from breakloop.detect.simhash import SimhashDetector
from breakloop.detect.stateful import DENYING, session_owner
from breakloop.detect.steps.detector import (
    CUT_STREAM,
    RETRY_STREAM,
    UNPACKED_MIN,
    StepEvaluator,
    StepsDetector,
    begins,
)
from breakloop.detect.steps.kinds import BY_NAME, NEVER, NORMAL
from breakloop.detect.trees import TreeDetector, TreeEvaluator
from breakloop.detect.unnamed_sessions import UnnamedSessionsDetector
from breakloop.dialects.clients import AUTO
from breakloop.dialects.content import canonical
from breakloop.limits.base import MICROUSD, Limiter, LocalDay, Period
from breakloop.limits.budget import SETTING, CostBudget
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import SECRET_HEADERS, TAIL_MESSAGES, Call, CompletionCap
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import (
    ActiveHours,
    AgentTerms,
    CompiledAgents,
    CompiledBundle,
    CompiledDetector,
    CompiledKillSwitch,
    CompiledPolicy,
    CompiledSelector,
    KillSwitches,
    PauseTerms,
    Routes,
)
from breakloop.policy.descriptors import CallerProfiles, Descriptors, query_for_fingerprint, steady
from breakloop.policy.load import LoadedBundle
from breakloop.policy.rules import AGENT, BreakerRule, CompiledRule, FallbackRule, Getter, Match, RunRule
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.limits import LlmTokensConfig, Rule, TokenBucketConfig
from breakloop.policy.schema.loops import Allow, AnyLoop, ExactLoop, SimhashLoop, StepsLoop, TailLoop, Weights
from breakloop.policy.schema.types import validate
from breakloop.policy.tree_limits import TreeLimits
from breakloop.pricing.tokens import Estimator, estimator
from breakloop.store.keys import join_values
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import FingerprintSpec, blocked_at_once

BUILTIN = "builtin"  # policy names in verdicts and events: the built-in protection (its digest, too),
_DEFAULTS: Final = "defaults"  # the bundle's own default,
_AGENTS: Final = "agents"  # and the settings of agents
_STATUS: Final = 429
_RUN: Final = "run"
_UNPACKED_MAX: Final = 256  # windows of sessions that all blocks of a bundle together keep unpacked: 3 MB
_OF_ALL_NAMES: Final = 10  # times the limit of one name, for all names of a caller together
SECRET_DESCRIPTORS: Final = frozenset([*(f"header:{name}" for name in SECRET_HEADERS), "query:key", "query:api_key"])


def compile_bundle(
    bundle: schema.Bundle | None, digest: str, descriptors: Descriptors, secret: bytes, guard: BuiltinLoopGuard
) -> CompiledBundle:
    """Compile a bundle for the engine; None if no policy is configured: then only the built-in protection applies.
    Has no side effects, because a bundle may be compiled only to validate it.
    """
    version = 0 if bundle is None else bundle.bundle_version
    bundle = bundle or empty_bundle()
    fingerprinter = Fingerprinter(secret)
    detectors = _DetectorCompiler(descriptors, fingerprinter, len(bundle.policies) + len(bundle.projects) + 1)
    maker = _Compiler(descriptors, fingerprinter, detectors)
    policies = tuple(maker.policy(index, policy) for index, policy in enumerate(bundle.policies))
    default_loops = detectors.default(bundle.defaults, guard)
    project_loops = detectors.of_projects(bundle, guard)
    return CompiledBundle(
        version=version,
        digest=digest,
        policies=policies,
        routes=Routes(policies),
        senders=CallerProfiles(descriptors, maker.used),
        kill_switches=KillSwitches([kill_switch(*one) for one in enumerate(bundle.kill_switches)], descriptors.getter),
        shadow_until=_override_until(bundle.global_shadow),
        kill_override_until=_override_until(bundle.kill_switch_override),
        expires=_expiry(bundle.expires_at),
        default_loops=default_loops,
        project_loops=project_loops,
        tail_messages=detectors.tail_messages,
        agents=maker.agents(bundle.agents),
        agents_with=partial(_agents_with, maker, bundle.agents),
        pause=PauseTerms(bundle.pause.answer_within_minutes * 60, bundle.pause.then, bundle.pause.hold_open_seconds),
    )


def empty_bundle() -> schema.Bundle:
    """Return a bundle of defaults only. It is not validated: to build the validators takes most of the time."""
    defaults, pause = schema.Defaults.model_construct(), schema.Pause.model_construct()
    return schema.Bundle.model_construct(bundle_version=1, policies=[], defaults=defaults, pause=pause)


def compile_loaded(
    loaded: LoadedBundle | None, descriptors: Descriptors, secret: bytes, guard: BuiltinLoopGuard
) -> CompiledBundle:
    """Compile a loaded bundle, or the built-in loop protection if there is none."""
    bundle, digest = (loaded.bundle, loaded.digest) if loaded else (None, BUILTIN)
    return compile_bundle(bundle, digest, descriptors, secret, guard)


def _agents_with(
    maker: _Compiler, said: Mapping[str, schema.Agent], given: Mapping[str, Mapping[str, Any]]
) -> CompiledAgents:
    """Merge settings made at run time into the bundle's settings for that agent or the longest pattern that matches."""
    merged = dict(said)
    patterns = sorted((one for one in said if one.endswith("*")), key=len, reverse=True)
    for name, fields in given.items():
        base = name if name in said else next((one for one in patterns if name.startswith(one[:-1])), "")
        before = said[base].model_dump(exclude_unset=True) if base else {}
        made, _ = validate(schema.Agent, {**before, **fields})
        if made is not None:  # otherwise the two conflict, and the bundle's settings apply
            merged[name] = made
    return maker.agents(merged)


class _Compiler:
    """Compiles policies and the settings of agents, and holds what they share."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter, detectors: _DetectorCompiler) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self._detectors = detectors
        self._estimators: dict[str, Estimator] = {}
        self.used: set[str] = set()  # every descriptor that a policy names

    def policy(self, index: int, policy: schema.Policy) -> CompiledPolicy:
        spec = policy.spec
        every = spec.all_rules
        names = tuple(sorted({name for rule in every for name in (*rule.limit_keys, *rule.match)}))
        configs = [rule.algorithm_config for rule in every]
        # The descriptors that rules read their costs from.
        costs = [config.cost_source for config in configs if isinstance(config, TokenBucketConfig)]
        sources = tuple(source for source in costs if source != "fixed")
        self.used.update(names, sources)
        rules = tuple(self._rule(rule, policy.id, spec.deny_status) for rule in spec.rules)
        fallback = None
        if spec.fallback_limit is not None:
            fallback = self._rule(spec.fallback_limit, policy.id, spec.deny_status, FallbackRule)
        limiters = [rule.limiter for rule in (*rules, fallback) if rule is not None]
        return CompiledPolicy(
            id=policy.id,
            index=index,
            selector=_selector(spec.selector),
            shadow=spec.mode == "shadow",
            loops=self._detectors.of_policy(policy, names),
            decides_loops=bool(spec.loops),
            rules=rules,
            fallback=fallback,
            breaker=self._breaker(spec.circuit_breaker, rules),
            status=spec.deny_status,
            denies_on_store_error=spec.on_store_error == "deny",
            rejects_large_bodies=spec.on_large_body == "reject" and spec.mode == "enforce",
            descriptors=tuple((name, self._shown(name)) for name in names),
            metered=any(limiter.needs for limiter in limiters),
            tells_model=any(isinstance(limiter, CostBudget) and limiter.tells_model for limiter in limiters),
            steady=self._descriptors.project_is_steady and all(steady(name) for name in (*names, *sources)),
        )

    def _rule(self, rule: Rule, policy: str, status: int, kind: type[CompiledRule] = CompiledRule) -> CompiledRule:
        limiter = rule.algorithm_config.limiter(self._descriptors.getter)
        return kind(
            rule.name,
            policy,
            match=tuple((self._descriptors.getter(key), value) for key, value in rule.match.items()),
            limit_keys=tuple((key, self._shown(key)) for key in rule.limit_keys),
            limiter=limiter,
            rejects_missing=rule.on_missing == "reject",
            status=status,
            estimator=self._estimator(rule) if limiter.needs else None,
            caps=_stream_caps(rule, policy) if limiter.needs else None,
        )

    def _estimator(self, rule: Rule) -> Estimator:
        config = rule.algorithm_config
        named = config.token_source.estimator if isinstance(config, LlmTokensConfig) else "simple_word"
        if named not in self._estimators:
            self._estimators[named] = estimator(named)  # shared, so that an estimate for one rule is reused by the next
        return self._estimators[named]

    def _breaker(self, breaker: schema.CircuitBreaker | None, rules: tuple[CompiledRule, ...]) -> BreakerRule | None:
        if breaker is None or not breaker.enabled or not rules:
            return None
        by_money = breaker.spend_source is not None
        unit = MICROUSD if by_money else rules[0].limiter.unit
        per_minute, reset = breaker.spend_rate_threshold_per_minute, breaker.auto_reset_after_minutes
        made = CircuitBreakerLimiter(per_minute, reset, unit=unit, alert=breaker.alert)
        return BreakerRule(rules[0], made, estimator("simple_word") if by_money else None)

    def _shown(self, name: str) -> Getter:
        """Return a getter whose values may be shown and stored in keys: secrets are replaced by digests."""
        getter = self._descriptors.getter(name)
        if name not in SECRET_DESCRIPTORS:
            return getter
        digest = self._fingerprinter.digest

        def hidden(call: Call) -> str | None:
            value = getter(call)
            return None if value is None else digest([name, value])

        return hidden

    def agents(self, said: Mapping[str, schema.Agent]) -> CompiledAgents:
        root = partial(tree_owner, self._descriptors)
        trees = TreeLimits(said.items(), root, estimator("simple_word"), _STATUS)
        return CompiledAgents((self._terms(index, *one) for index, one in enumerate(said.items())), trees)

    def _terms(self, index: int, pattern: str, agent: schema.Agent) -> AgentTerms:
        presence = ActiveHours(active=agent.active, hours=agent.hours, zone=agent.timezone)
        run = None
        if agent.max_usd_per_run is not None:
            config, words = _agent_config("run", index, SETTING), estimator("simple_word")
            owner = partial(session_owner, self._descriptors)
            stages = agent.stages()
            run = RunRule(pattern, agent.max_usd_per_run, config, owner=owner, estimator=words, stages=stages)
        detectors = tuple(self._detectors.of_agent(agent, index))
        hook = None if agent.stop_webhook is None else (agent.stop_webhook.url, agent.stop_webhook.allow_private)
        return AgentTerms(pattern, detectors, presence, tuple(self._agent_rules(agent, pattern)), run, hook)

    def _agent_rules(self, agent: schema.Agent, pattern: str) -> Iterator[CompiledRule]:
        """Compile the rate limit, the daily budget and the runs per hour of an agent. Each agent that a pattern matches
        has its own.
        """
        limit = agent.rate_limit
        if limit is not None:
            burst = limit.burst if limit.burst is not None else limit.requests_per_minute
            rate = min(limit.requests_per_minute / 60, burst)
            yield self._agent_rule(f"{pattern}/rate_limit", TokenBucket(rate, burst))
        if agent.budget_usd_per_day is not None:
            day = LocalDay(ZoneInfo(agent.timezone))
            budget = AgentBudget(agent.budget_usd_per_day, day, [*agent.stages(), (100, "reject", 0)], unit=MICROUSD)
            yield self._agent_rule(f"{pattern}/budget_usd_per_day", budget, estimator("simple_word"))
        if agent.max_runs_per_hour is not None:
            runs = RunsPerHour(agent.max_runs_per_hour, Period("1h"), [(100, "reject", 0)])
            yield self._agent_rule(f"{pattern}/max_runs_per_hour", runs, match=((self._opened, _RUN),))

    def _opened(self, call: Call) -> str | None:
        """Return what a call opens: a run, if it begins a conversation."""
        step = self._descriptors.step(call)
        return _RUN if step is not None and step.users and begins(step) else None

    def _agent_rule(
        self, name: str, limiter: Limiter, estimates: Estimator | None = None, match: Match = ()
    ) -> CompiledRule:
        # The name is the client's own: with another key, it is another agent.
        keys = ((AGENT, self._descriptors.agent), ("caller", self._descriptors.credential))
        return CompiledRule(
            name, _AGENTS, match, keys, limiter, rejects_missing=False, status=_STATUS, estimator=estimates
        )


def tree_owner(read: Descriptors, call: Call) -> str:
    """Return caller and root of the tree that a call belongs to, for a key; "" if the call has no session."""
    root = read.tree_root(call)
    return join_values([read.caller(call), root]) if root else ""


class AgentBudget(CostBudget):
    """The daily budget of an agent, in dollars."""

    __slots__ = ()

    reason = "agent_budget_exceeded"


class RunsPerHour(CostBudget):
    """How many runs of an agent may open in an hour."""

    __slots__ = ()

    reason = "run_rate_exceeded"

    def describe_denial(self, op: ChargeBudget, used: int, now: float, verdict: Verdict) -> None:
        super().describe_denial(op, used, now, verdict)
        verdict.message = (
            f"This agent may open {self.unit.words(op.spec.budget)} runs an hour, and it has. "
            f"The next hour begins in {verdict.retry_after_s} seconds."
        )


def _stream_caps(rule: Rule, policy: str) -> tuple[CompletionCap, CompletionCap] | None:
    """Return the caps on streamed responses, enforced and in shadow mode, if a rule sets one."""
    config = rule.algorithm_config
    if not isinstance(config, LlmTokensConfig) or not config.enforce_mid_stream or config.max_completion_tokens is None:
        return None
    cap = CompletionCap(config.max_completion_tokens, policy, rule.name, cuts=True)
    return cap, cap._replace(cuts=False)


def _selector(selector: schema.Selector) -> CompiledSelector:
    return CompiledSelector(
        exact=selector.path_exact,
        prefix=selector.path_prefix,
        methods=frozenset(selector.methods or ()),
        hosts=tuple(selector.hosts or ()),
    )


def kill_switch(index: int, switch: schema.KillSwitch) -> CompiledKillSwitch:
    route, reason, expires = switch.route or "", switch.reason or "", _expiry(switch.expires_at)
    return CompiledKillSwitch(index, switch.scope_key, switch.scope_value, route, reason, expires)


def _override_until(override: schema.Override | None) -> float:
    if override is None or not override.enabled or override.expires_at is None:
        return 0.0
    return override.expires_at.timestamp()


def _expiry(moment: datetime | None) -> float:
    """Return the time at which something expires, or infinity if it never does."""
    return math.inf if moment is None else moment.timestamp()


def builtin_blocks(guard: BuiltinLoopGuard) -> tuple[AnyLoop, ...]:
    """Return the blocks that protect LLM calls if nothing else is configured; none if they are turned off. They are
    not validated, as in `empty_bundle`: settings are checked where they are read.
    """
    if guard.max_hits == 0:
        return ()
    longest_s = max(TailLoop.model_fields["cooldown_max_seconds"].default, guard.cooldown_seconds)
    allow = Allow.model_construct()
    tail = TailLoop.model_construct(
        allow=allow,
        similarity="tail",
        window_seconds=guard.window_seconds,
        max_hits=guard.max_hits,
        cooldown_seconds=guard.cooldown_seconds,
        cooldown_max_seconds=longest_s,
        deny_status=guard.deny_status,
    )
    steps = StepsLoop.model_construct(
        allow=allow,
        similarity="steps",
        cooldown_seconds=guard.cooldown_seconds,
        cooldown_max_seconds=longest_s,
        thresholds=_storm_thresholds(guard.max_hits),
        deny_status=guard.deny_status,
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


class _DetectorCompiler:
    """Compiles `loop_detection` blocks, the built-in protection of LLM calls, and the detectors of agents."""

    def __init__(self, read: Descriptors, fingerprinter: Fingerprinter, places: int) -> None:
        """`places` is how many policies and projects may have blocks of their own."""
        self._read = read
        self._fingerprinter = fingerprinter
        self._unpacked_max = max(_UNPACKED_MAX // places, UNPACKED_MIN)
        self._identities = 0  # how many are cached in `CallerProfile.identities`
        self.tail_messages = TAIL_MESSAGES  # how many of the last messages of a request the detectors read

    def of_policy(self, policy: schema.Policy, names: tuple[str, ...]) -> tuple[CompiledDetector, ...]:
        """Compile the blocks of a policy; `names` are the descriptors that its rules read."""
        spec = policy.spec
        status = spec.deny_status if "deny_status" in spec.model_fields_set else AUTO
        return self._compile(spec.loops, policy.id, status, names)

    def default(self, defaults: schema.Defaults, guard: BuiltinLoopGuard) -> tuple[CompiledDetector, ...]:
        """Compile the detectors of LLM calls that no policy's own loop detection covers."""
        if defaults.loop_detection is None:
            return self._compile(builtin_blocks(guard), BUILTIN, AUTO, None)
        return self._compile(defaults.loops, _DEFAULTS, AUTO, None)

    def of_projects(self, bundle: schema.Bundle, guard: BuiltinLoopGuard) -> dict[str, tuple[CompiledDetector, ...]]:
        """Compile the built-in block with the values of each project, unless the bundle has its own default."""
        if bundle.defaults.loop_detection is not None:
            return {}
        own = {name: project.loop_guard for name, project in bundle.projects.items() if project.loop_guard is not None}
        guards = {name: replace(guard, **one.model_dump(exclude_none=True)) for name, one in own.items()}
        return {name: self._compile(builtin_blocks(one), BUILTIN, AUTO, None) for name, one in guards.items()}

    def of_agent(self, agent: schema.Agent, index: int) -> Iterator[CompiledDetector]:
        if agent.max_steps_per_run is not None:
            config = _agent_config("run", index, "max_steps_per_run")
            yield RunStepsLimit(config, self._read, agent.max_steps_per_run, agent.stages())
        if agent.kill_switch_enabled:
            config = replace(_agent_config("simhash", index, "kill_switch", ("warn", "kill", "kill")), status=AUTO)
            yield self._simhash(config, agent.kill_switch_window_size, agent.kill_switch_threshold, Weights())

    def _compile(
        self, blocks: Iterable[AnyLoop], policy: str, status: int, names: tuple[str, ...] | None
    ) -> tuple[CompiledDetector, ...]:
        """Compile blocks. `names` are the descriptors in exact fingerprints; None: only for LLM calls."""
        detectors: list[CompiledDetector] = []
        for index, block in enumerate(blocks):
            if not block.enabled:
                continue
            config = _loop_config(block, policy, index, status, default=names is None)
            if isinstance(block, ExactLoop):
                fingerprint = self._exact_of_llm_calls() if names is None else self._exact(names)
                detectors.append(CountingDetector(config, _exact_spec(block, config.action), fingerprint, self._read))
            elif isinstance(block, TailLoop) and block.max_hits:
                detectors += self._tail(block, config)
            elif isinstance(block, StepsLoop):
                detectors += self._steps(block, config)
            elif isinstance(block, SimhashLoop):
                detectors.append(self._simhash(config, block.window_requests, block.threshold_score, block.weights))
        return tuple(detectors)

    def _steps(self, block: StepsLoop, config: DetectorConfig) -> list[CompiledDetector]:
        """Compile a block of steps. The last two depend on what those of unnamed sessions have found."""
        settings, digest, read = block.settings(), self._fingerprinter.short, self._read
        tasks, most = settings.thresholds["spawn"][:2], self._unpacked_max
        return [
            JoinDetector(config, read, digest),
            UnnamedSessionsDetector(config, read, digest, settings.thresholds["nested"]),
            TreeDetector(config, read, TreeEvaluator(digest, tasks, tasks, block.tree_limits())),
            RerunDetector(
                _rerun_config(config, block.cooldown_max_seconds), read, digest, settings.thresholds["rerun"][:2]
            ),
            JoinedStepsDetector(config, read, StepEvaluator(settings.of_teams(), digest, most)),
            StepsDetector(config, read, StepEvaluator(settings, digest, most), guards_stream=_stream_guard(block)),
        ]

    def _simhash(
        self, config: DetectorConfig, window_requests: int, threshold: float, weights: Weights
    ) -> SimhashDetector:
        """Compile a score over the last requests of a caller and agent."""
        return SimhashDetector(
            config,
            self._read,
            window_requests=window_requests,
            threshold=threshold,
            weights=(weights.prompt, weights.response, weights.tool),
            seed=int.from_bytes(self._fingerprinter.short(b"score")),
        )

    def _exact(self, names: tuple[str, ...]) -> Callable[[Call], str | None]:
        made = ExactFingerprint(
            self._fingerprinter, identity=self._identity(names), query=query_for_fingerprint, body=canonical
        )
        return made.__call__  # calling a method takes less time than calling an object

    def _exact_of_llm_calls(self) -> Callable[[Call], str | None]:
        fingerprint, chat = self._exact(()), self._read.chat
        return lambda call: None if chat(call) is None else fingerprint(call)

    def _identity(self, names: tuple[str, ...]) -> Callable[[Call], str]:
        """Return a reader of the sender's part of a fingerprint. It is cached if it depends on the sender only."""
        read = self._read
        getters = tuple(read.getter(name) for name in names)
        caller, agent, digest = read.caller, read.agent, self._fingerprinter.digest

        def compute(call: Call) -> str:
            return digest([caller(call), agent(call), *[get(call) or "" for get in getters]])

        if not all(steady(name) for name in names):
            return compute
        self._identities += 1
        number = self._identities

        def cached(call: Call) -> str:
            sender = call.identity.profile
            if sender is None:
                return compute(call)
            known = sender.identities.get(number)
            if known is None:
                known = sender.identities[number] = compute(call)
            return known

        return cached

    def _tail(self, block: TailLoop, config: DetectorConfig) -> list[CompiledDetector]:
        """Compile a block of tail: a count for clients that change their name, and last the one for each name, which
        represents the block.
        """
        messages, read = block.tail_messages, self._read
        self.tail_messages = max(self.tail_messages, messages + 1)  # plus the call before them
        fingerprint = TailFingerprint(
            self._fingerprinter,
            caller=read.caller,
            agent=read.agent,
            chat=read.chat,
            named=read.sessions.named,
            is_new_name=read.sessions.is_new,
            messages=messages,
        )
        spec = _tail_spec(block, config.action)
        of_all = replace(spec, limit=spec.limit * _OF_ALL_NAMES)
        return [
            CountingDetector(config, of_all, fingerprint.of_all_names, read, " under different names"),
            TailDetector(config, spec, fingerprint, read),
        ]


def _loop_status(said: int | str | None, otherwise: int) -> int:
    """Return the status of a block's denials. One that says nothing has that of its policy."""
    if said is None:
        return otherwise
    return AUTO if isinstance(said, str) else said


def _loop_config(block: AnyLoop, policy: str, index: int, status: int, *, default: bool) -> DetectorConfig:
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
        status=_loop_status(block.deny_status, status),
        expect_repeats=frozenset(block.expect_repeats.callers) if block.expect_repeats else frozenset(),
        allow=_allow_list(block.allow, messages),
        cooldown=cooldown,
        landing=replace(cooldown, land_calls=block.land_calls),
        advice=block.advised() if isinstance(block, StepsLoop) else {},
        quarantine_s=block.quarantine_seconds,
        key_prefix="|" if default else "",
    )


def _stream_guard(block: StepsLoop) -> int:
    if not block.stream_guard:
        return 0
    return RETRY_STREAM if block.retry_thoughts else CUT_STREAM


def _rerun_config(config: DetectorConfig, cooldown_s: int) -> DetectorConfig:
    """Return the configuration of `rerun`. Its cooldown is the longest one from the start, because runs are minutes
    apart, and none passes after it: the count decides."""
    cooldown = FingerprintSpec(
        window_s=60.0, limit=0, sliding=True, cooldown_s=cooldown_s, growth=1.0, cooldown_max_s=cooldown_s
    )
    return replace(config, cooldown=cooldown)


def _agent_config(
    kind: str, index: int, setting: str, actions: tuple[str, str, str] = ("reject", "reject", "reject")
) -> DetectorConfig:
    return DetectorConfig(kind, _AGENTS, index, actions, _STATUS, setting=setting, key_prefix="|")


def _exact_spec(block: ExactLoop, action: str) -> FingerprintSpec:
    return FingerprintSpec(
        window_s=block.window_seconds,
        limit=block.threshold_identical_requests - 1,  # the Nth request triggers it
        sliding=block.window == "sliding",
        denies=action in DENYING,
        concurrent_free=block.concurrent_free,
        retry_free=block.retry_free,
        land_calls=block.land_calls if action == "land" else 0,
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
        land_calls=block.land_calls if action == "land" else 0,
    )


def _allow_list(allow: Allow, tool_messages: int) -> AllowList | None:
    kinds = {kind: {entry.value: _expiry(entry.expires_at) for entry in listed} for kind, listed in allow}
    return AllowList(**kinds, tool_messages=tool_messages) or None
