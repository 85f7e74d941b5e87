"""Schema -> `CompiledBundle`. Runs once per bundle, off the request path; what can be worked out early is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from breakloop.detect.allow import AllowList, Identity
from breakloop.detect.exact import ExactFingerprint
from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.loop import LoopDetector, LoopTerms
from breakloop.detect.tail import TailFingerprint
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.policy import schema
from breakloop.policy.compiled import CompiledBundle, Fallback, Getter, Match, Policy, Rule
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.kill_switch import KillSwitch, KillSwitches
from breakloop.policy.query import query_for_fingerprint
from breakloop.policy.routes import Routes, Selector
from breakloop.policy.senders import Sender, Senders, steady
from breakloop.state.ops import RepeatSpec
from breakloop.wire.json_body import canonical

BUILTIN = "builtin"
_TOOL_MESSAGES = 3  # where an `exact` block's allow list looks for tools
DENYING = frozenset({"reject", "kill"})
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key")
SECRET_DESCRIPTORS = frozenset([*(f"header:{name}" for name in _SECRET_HEADERS), "query:key", "query:api_key"])


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """The built-in block's three numbers (`LOOP_GUARD_*`); `max_hits` 0 switches it off."""

    window_seconds: int = 60
    max_hits: int = 5
    cooldown_seconds: int = 30


def compile_bundle(
    bundle: schema.Bundle | None, digest: str, descriptors: Descriptors, secret: bytes, guard: LoopGuard
) -> CompiledBundle:
    """Return the bundle ready for the engine. None stands for "no policy configured": the built-in protection only."""
    if bundle is None:
        bundle = schema.Bundle(bundle_version=1, policies=[])
        version = 0
    else:
        version = bundle.bundle_version
    maker = _Maker(descriptors, Fingerprinter(secret))
    policies = tuple(maker.policy(index, policy) for index, policy in enumerate(bundle.policies))
    return CompiledBundle(
        version=version,
        digest=digest,
        policies=policies,
        routes=Routes(policies),
        senders=Senders(descriptors, maker.used),
        kill_switches=KillSwitches(_switches(bundle.kill_switches), descriptors.getter),
        shadow_until=_override_until(bundle.global_shadow),
        kill_override_until=_override_until(bundle.kill_switch_override),
        expires=_time(bundle.expires_at),
        default_loops=maker.default_loops(bundle.defaults, guard),
        project_loops=maker.project_loops(bundle, guard),
    )


class _Maker:
    """Carries what every part of a bundle needs to be compiled."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self._identities = 0
        self.used: set[str] = set()  # every descriptor that a policy names

    def _who(self, messages: int) -> Identity:
        """Who sends, and which tools these last messages call; more of them may have been read for another policy."""
        read = self._descriptors.chat

        def tools(call: Call) -> tuple[str, ...]:
            chat = read(call)
            return tuple(made.name for message in chat.tail[-messages:] for made in message.calls) if chat else ()

        return Identity(self._descriptors.caller, self._descriptors.agent, tools)

    def policy(self, index: int, policy: schema.Policy) -> Policy:
        spec = policy.spec
        names = _names_used(spec)
        sources = _sources_used(spec)
        self.used.update(names, sources)
        # `policy.notes` tells the author about rules that this version does not enforce.
        enforced = [rule for rule in spec.rules if isinstance(rule, schema.TokenBucketRule)]
        fallback = None
        if isinstance(spec.fallback_limit, schema.TokenBucketRule):
            fallback = self._rule(spec.fallback_limit, policy.id, spec.deny_status, Fallback)
        return Policy(
            id=policy.id,
            index=index,
            selector=_selector(spec.selector),
            shadow=spec.mode == "shadow",
            loops=self._loops(spec.loops, policy.id, spec.deny_status, names),
            decides_loops=bool(spec.loops),
            rules=tuple(self._rule(rule, policy.id, spec.deny_status) for rule in enforced),
            fallback=fallback,
            unenforced=tuple(self._match(rule) for rule in spec.rules if rule.algorithm != "token_bucket"),
            status=spec.deny_status,
            denies_on_store_error=spec.on_store_error == "deny",
            descriptors=tuple((name, self._shown(name)) for name in names),
            steady=self._descriptors.project_is_steady and all(steady(name) for name in (*names, *sources)),
        )

    def default_loops(self, defaults: schema.Defaults, guard: LoopGuard) -> tuple[LoopDetector, ...]:
        if defaults.loop_detection is None:
            return self.builtin(guard)
        return self._loops(defaults.loops, "defaults", 429, None)

    def project_loops(self, bundle: schema.Bundle, guard: LoopGuard) -> dict[str, tuple[LoopDetector, ...]]:
        """What projects set for the built-in block; where the bundle has a default of its own, that one holds."""
        if bundle.defaults.loop_detection is not None:
            return {}
        own = {name: project.loop_guard for name, project in bundle.projects.items()}
        return {name: self.builtin(_project_guard(said, guard)) for name, said in own.items() if said is not None}

    def builtin(self, guard: LoopGuard) -> tuple[LoopDetector, ...]:
        """The block that protects LLM calls when nothing else is said (SPEC B-6)."""
        if guard.max_hits == 0:
            return ()
        block = schema.TailLoop(
            similarity="tail",
            window_seconds=guard.window_seconds,
            max_hits=guard.max_hits,
            cooldown_seconds=guard.cooldown_seconds,
            cooldown_max_seconds=max(900, guard.cooldown_seconds),
        )
        return self._loops([block], BUILTIN, 429, None)

    def _match(self, rule: schema.Rule) -> Match:
        return tuple((self._descriptors.getter(key), value) for key, value in rule.match.items())

    def _rule(self, rule: schema.TokenBucketRule, policy: str, status: int, kind: type[Rule] = Rule) -> Rule:
        return kind(
            rule.name,
            policy,
            match=self._match(rule),
            keys=tuple((key, self._shown(key)) for key in rule.limit_keys),
            limiter=self._token_bucket(rule.config),
            rejects_missing=rule.on_missing == "reject",
            status=status,
        )

    def _shown(self, name: str) -> Getter:
        """A descriptor as state keys and debug fields may hold it: of keys and tokens only a digest (SPEC Y-1)."""
        getter = self._descriptors.getter(name)
        if name not in SECRET_DESCRIPTORS:
            return getter
        digest = self._fingerprinter.digest

        def hidden(call: Call) -> str | None:
            value = getter(call)
            return None if value is None else digest([name, value])

        return hidden

    def _token_bucket(self, config: schema.TokenBucketConfig) -> TokenBucket:
        source = config.cost_source
        return TokenBucket(
            config.tokens_per_second,
            config.burst,
            fixed_cost=config.fixed_cost,
            default_cost=config.default_cost,
            cost_of=None if source == "fixed" else self._descriptors.getter(source),
        )

    def _loops(
        self, blocks: Iterable[schema.AnyLoop], policy: str, status: int, names: tuple[str, ...] | None
    ) -> tuple[LoopDetector, ...]:
        """Detectors of a policy that reads descriptors `names`; None for default ones, which judge LLM calls only."""
        made: list[LoopDetector] = []
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
            )
            if isinstance(block, schema.ExactLoop):
                fingerprint = self._exact_of_llm_calls() if names is None else self._exact(names)
                made.append(LoopDetector(terms, _exact_spec(block, action), fingerprint, self._who(_TOOL_MESSAGES)))
            elif isinstance(block, schema.TailLoop) and block.max_hits:
                fingerprint = self._tail(block.tail_messages)
                made.append(LoopDetector(terms, _tail_spec(block, action), fingerprint, self._who(block.tail_messages)))
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
        self._descriptors.tail_messages = max(self._descriptors.tail_messages, messages)
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
    )


def _allow_list(allow: schema.Allow) -> AllowList | None:
    def read(listed: Iterable[schema.AllowEntry | schema.AllowRoute]) -> dict[str, float]:
        return {entry.value: _time(entry.expires_at) for entry in listed}

    made = AllowList(
        routes=read(allow.routes),
        agents=read(allow.agents),
        callers=read(allow.callers),
        tools=read(allow.tools),
        fingerprints=read(allow.fingerprints),
    )
    return made if made.says_anything else None


def _names_used(spec: schema.Spec) -> tuple[str, ...]:
    rules: list[schema.Rule] = [*spec.rules]
    if spec.fallback_limit is not None:
        rules.append(spec.fallback_limit)
    return tuple(sorted({name for rule in rules for name in (*rule.limit_keys, *rule.match)}))


def _sources_used(spec: schema.Spec) -> tuple[str, ...]:
    """Where rules read their costs from."""
    configs = [rule.config for rule in (*spec.rules, spec.fallback_limit) if rule is not None]
    sources = [config.cost_source for config in configs if isinstance(config, schema.TokenBucketConfig)]
    return tuple(source for source in sources if source != "fixed")


def _selector(selector: schema.Selector) -> Selector:
    return Selector(
        exact=selector.path_exact,
        prefix=selector.path_prefix,
        methods=frozenset(selector.methods or ()),
        hosts=tuple(selector.hosts or ()),
    )


def _switches(switches: Iterable[schema.KillSwitch]) -> list[KillSwitch]:
    return [
        KillSwitch(index, s.scope_key, s.scope_value, s.route or "", s.reason or "", _time(s.expires_at))
        for index, s in enumerate(switches)
    ]


def _project_guard(own: schema.LoopGuard, guard: LoopGuard) -> LoopGuard:
    def pick(value: int | None, default: int) -> int:
        return default if value is None else value

    return LoopGuard(
        pick(own.window_seconds, guard.window_seconds),
        pick(own.max_hits, guard.max_hits),
        pick(own.cooldown_seconds, guard.cooldown_seconds),
    )


def _override_until(override: schema.Override | None) -> float:
    if override is None or not override.enabled or override.expires_at is None:
        return 0.0
    return override.expires_at.timestamp()


def _time(moment: datetime | None) -> float:
    return math.inf if moment is None else moment.timestamp()
