"""Why a request got its verdict (SPEC E-7): the record of one decision -> steps in the order of evaluation.

What happened is read from the record; what did not happen (a policy that does not match, a rule that is skipped) is
found with the engine's own functions. Loops and rules are `explain_parts`' work, terminals are `cli.explain`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy import schema
from breakloop.policy.compiled import CompiledBundle, Policy
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.kill_switch import KillSwitch, KillSwitches
from breakloop.policy.routes import Routes, Selector
from breakloop.replay.explain_parts import PartExplainer, Step, hidden
from breakloop.replay.record import Record

__all__ = ["Explainer", "Step", "decision_of"]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A policy's selector alone, so that the real route index says whether it matches."""

    selector: Selector
    index: int = 0


def decision_of(verdict: Verdict) -> str:
    """Return the verdict in one word: `deny`, `throttle`, `warn` or `allow`."""
    if not verdict.allowed:
        return "deny"
    if verdict.delay_ms:
        return "throttle"
    return "warn" if verdict.warning else "allow"


class Explainer:
    """Explains decisions by one bundle. `source` is the bundle as written, None for the built-in protection alone."""

    def __init__(self, source: schema.Bundle | None, compiled: CompiledBundle, descriptors: Descriptors) -> None:
        self._source = source if source is not None else schema.Bundle(bundle_version=1, policies=[])
        self._is_builtin = source is None
        self._compiled = compiled
        self._descriptors = descriptors

    def steps(self, record: Record) -> list[Step]:
        """Return every step of the decision: what the door read, then what the engine did, in its order."""
        call, now = record.call, record.at
        steps = [self._request(call), *self._identity(call), self._bundle(now), *self._overrides(now)]
        steps += self._kill_switches(call, now)
        if record.plan is not None:
            parts = PartExplainer(self._source, self._compiled, self._descriptors, record)
            matched = {policy.index for policy in record.plan.policies}
            for policy in self._compiled.policies:
                if policy.index in matched:
                    steps += parts.policy(policy)
                else:
                    steps.append(_unmatched(policy, call))
            steps += parts.default_loops()
            steps += parts.agents()
        steps.append(_verdict(record.verdict))
        return steps

    def _bundle(self, now: float) -> Step:
        bundle = self._compiled
        if self._is_builtin:
            return Step("bundle", "built-in", "info", "no policy given: only the built-in protection judges")
        expired = "" if bundle.expires > now else f", expired {_when(bundle.expires)} and still enforced"
        count = len(bundle.policies)
        text = f"version {bundle.version}, {count} {'policy' if count == 1 else 'policies'}{expired}"
        data = {"version": bundle.version, "digest": bundle.digest, "expired": bundle.expires <= now}
        return Step("bundle", bundle.digest[:12], "info", text, data)

    def _overrides(self, now: float) -> Iterator[Step]:
        named = (
            ("global_shadow", self._compiled.shadow_until, "every policy counts and logs only"),
            ("kill_switch_override", self._compiled.kill_override_until, "kill switches are not looked at"),
        )
        for name, until, effect in named:
            if until > now:
                yield Step("override", name, "active", f"until {_when(until)}: {effect}")
            elif until:
                yield Step("override", name, "inactive", f"expired {_when(until)}")
            else:
                yield Step("override", name, "inactive", "not set")

    def _request(self, call: Call) -> Step:
        chat = self._descriptors.chat(call)
        kind = (
            f"LLM call ({chat.dialect}, {chat.model or 'no model'}, {_messages(chat.message_count)})"
            if chat
            else "HTTP"
        )
        text = f"{kind}, host {call.host or '(none)'}, body {_size(call)}"
        data: dict[str, object] = {"method": call.method, "path": call.path, "host": call.host}
        data |= {"body_bytes": len(call.body), "llm": bool(chat), "model": chat.model if chat else None}
        return Step("request", f"{call.method} {call.path}", "info", text, data)

    def _identity(self, call: Call) -> Iterator[Step]:
        read = self._descriptors
        caller, agent = read.caller(call), read.agent(call)
        yield Step("identity", "caller", "info", caller)
        yield Step("identity", "agent", "info", "the caller" if agent == caller else agent)
        yield Step("identity", "session", "info", read.session(call) or "none")
        yield Step("identity", "project", "info", read.project(call))

    def _kill_switches(self, call: Call, now: float) -> Iterator[Step]:
        switches = self._source.kill_switches
        if not switches:
            yield Step("kill_switch", "none", "info", "the bundle has none")
            return
        skipped = self._compiled.kill_override_until > now
        for index, switch in enumerate(switches):
            name = f"kill_switches[{index}]"
            if skipped:
                yield Step("kill_switch", name, "skipped", "kill_switch_override is active")
            else:
                yield self._kill_switch(name, switch, call, now)

    def _kill_switch(self, name: str, switch: schema.KillSwitch, call: Call, now: float) -> Step:
        expires = math.inf if switch.expires_at is None else switch.expires_at.timestamp()
        made = KillSwitch(0, switch.scope_key, switch.scope_value, switch.route or "", switch.reason or "", expires)
        what = f"{switch.scope_key} = {hidden(switch.scope_key, switch.scope_value)}"
        what += f" on {switch.route}" if switch.route else ""
        if KillSwitches([made], self._descriptors.getter).find(call, now) is not None:
            return Step("kill_switch", name, "match", what)
        value = self._descriptors.getter(switch.scope_key)(call)
        if expires <= now:
            why = f"expired {_when(expires)}"
        elif value != switch.scope_value:
            why = f"this request has {hidden(switch.scope_key, value)}"
        else:
            why = "another path"
        return Step("kill_switch", name, "no match", f"{what}: {why}")


def _unmatched(policy: Policy, call: Call) -> Step:
    """Say why: the host first, then the path, then the method, as the route index looks at them."""
    selector = policy.selector

    def matches(probe: Selector) -> bool:
        return bool(Routes([_Probe(probe)]).match(call.host, call.method, call.path))

    if not matches(replace(selector, exact=None, prefix=None, methods=frozenset())):
        why = f"host {call.host or '(none)'} is not {' or '.join(selector.hosts)}"
    elif not matches(replace(selector, methods=frozenset())):
        wanted = [f"is not {selector.exact}"] if selector.exact else []
        wanted += [f"does not begin with {selector.prefix}"] if selector.prefix else []
        why = f"path {call.path} {' and '.join(wanted)}"
    else:
        why = f"method {call.method} is not {' or '.join(sorted(selector.methods))}"
    return Step("policy", policy.id, "no match", why)


def _verdict(verdict: Verdict) -> Step:
    data: dict[str, object] = {
        "decision": decision_of(verdict),
        "reason": verdict.reason,
        "status": verdict.status,
        "policy": verdict.policy,
        "rule": verdict.rule,
        "message": verdict.message,
        "delay_ms": verdict.delay_ms,
        "retry_after_s": verdict.retry_after_s,
        "shadow": [f"{s.policy}/{s.rule}: {s.action} {s.reason}" for s in verdict.shadow],
    }
    by = f", by {verdict.policy}{'/' if verdict.policy and verdict.rule else ''}{verdict.rule}"
    text = verdict.reason + (by if (verdict.policy or verdict.rule) and not verdict.allowed else "")
    if verdict.delay_ms:
        text += f", after {verdict.delay_ms} ms"
    if verdict.shadow:
        text += f"; shadow policies would have said otherwise ({len(verdict.shadow)})"
    return Step("verdict", decision_of(verdict), decision_of(verdict), text, data)


def _size(call: Call) -> str:
    if call.body_unseen:
        return "not shown to us"
    return f"{len(call.body)} bytes" if call.body else "none"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
