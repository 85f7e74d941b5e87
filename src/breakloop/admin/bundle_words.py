"""A bundle's policies in words that a person understands (SPEC X-2): for whom, in which mode, which limits and loops.
The numbers are the bundle's own; nothing is judged here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from breakloop.policy import schema

_PERIODS: Final = {"5m": "5 minutes", "1h": "an hour", "1d": "a day", "7d": "a week", "30d": "a month"}


def policies(bundle: schema.Bundle) -> list[Mapping[str, Any]]:
    """Return each policy: id, mode, selector, rules, loop detection."""
    return [
        {
            "id": one.id,
            "mode": one.spec.mode,
            "selector": selector(one.spec.selector),
            "rules": _rules(one.spec),
            "loop_detection": "; ".join(loop(block) for block in one.spec.loops),
        }
        for one in bundle.policies
    ]


def selector(chosen: schema.Selector) -> str:
    """Say which requests are meant."""
    methods = ", ".join(chosen.methods or ())
    path = chosen.path_exact or (f"{chosen.path_prefix}*" if chosen.path_prefix else "")
    hosts = " or ".join(chosen.hosts or ())
    said = " ".join(part for part in (methods, path) if part) or "every request"
    return f"{said} to {hosts}" if hosts else said


def _rules(spec: schema.Spec) -> list[Mapping[str, Any]]:
    said: list[Mapping[str, Any]] = [_rule(rule) for rule in spec.rules]
    if spec.fallback_limit is not None:
        said.append(_rule(spec.fallback_limit) | {"name": "fallback_limit"})
    breaker = spec.circuit_breaker
    if breaker is not None and breaker.enabled:
        keys = list(spec.rules[0].limit_keys) if spec.rules else []
        said.append(
            {"name": "circuit_breaker", "algorithm": "circuit_breaker", "keys": keys, "words": _breaker(breaker)}
        )
    return said


def _rule(rule: schema.AnyRule) -> dict[str, Any]:
    config = rule.config
    match config:
        case schema.TokenBucketConfig():
            words = f"{config.tokens_per_second:g} a second, {config.burst:g} at once"
        case schema.CostBasedConfig():
            words = _budget(config)
        case schema.LlmTokensConfig():
            words = _tokens(config)
    when = ", ".join(f"{name} is {value}" for name, value in (rule.match or {}).items())
    words = f"{words}, where {when}" if when else words
    return {"name": rule.name, "algorithm": rule.algorithm, "keys": list(rule.limit_keys), "words": words}


def _budget(config: schema.CostBasedConfig) -> str:
    unit = "$" if config.cost_key == "usage:usd" else ""
    what = " tokens" if config.cost_key == "usage:tokens" else ""
    said = f"{unit}{config.budget:,g}{what} {_per(config.period)}"
    stages = [f"{stage.action} at {stage.threshold_percent:g} %" for stage in config.stages if stage.action != "reject"]
    return ", ".join([said, *stages])


def _per(period: str) -> str:
    words = _PERIODS[period]
    return f"in {words}" if words[0].isdigit() else words


def _tokens(config: schema.LlmTokensConfig) -> str:
    said = [f"{config.tokens_per_minute:,} tokens a minute"]
    if config.tokens_per_day is not None:
        said.append(f"{config.tokens_per_day:,} a day")
    for name, what in (
        ("max_tokens_per_request", "a request"),
        ("max_prompt_tokens", "a prompt"),
        ("max_completion_tokens", "an answer"),
    ):
        value = getattr(config, name)
        if value is not None:
            said.append(f"at most {value:,} {what}")
    return ", ".join(said)


def _breaker(breaker: schema.CircuitBreaker) -> str:
    unit = "$" if breaker.spend_source == "usage:usd" else ""
    opens = f"opens at {unit}{breaker.spend_rate_threshold_per_minute:,g} a minute"
    minutes = breaker.auto_reset_after_minutes
    return f"{opens}, {f'tries again after {minutes:g} min' if minutes else 'only an operator closes it'}"


def loop(block: schema.AnyLoop) -> str:
    """Say what a loop detector looks for and what it does."""
    if not block.enabled:
        return f"{block.similarity}: off"
    return f"{block.similarity}: {_what(block)}: {_does(block)}"


def _what(block: schema.AnyLoop) -> str:
    match block:
        case schema.ExactLoop():
            return f"{block.threshold_identical_requests} identical requests in {block.window_seconds} s"
        case schema.TailLoop():
            same = f"with the same last {block.tail_messages} messages"
            return f"more than {block.max_hits} requests {same} in {block.window_seconds} s"
        case schema.SimhashLoop():
            return f"a score over {block.threshold_score:g} within {block.window_requests} requests"
        case schema.StepsLoop():
            return f"the same steps without progress, sensitivity {block.sensitivity}"


def _does(block: schema.AnyLoop) -> str:
    notice, hit, stop = (block.action_for(severity) for severity in ("notice", "block", "stop"))
    said = [notice, hit] if block.ladder is not None or block.similarity == "steps" else [hit]
    words = ", then ".join(dict.fromkeys([*said, *([stop] if block.ladder is not None else [])]))
    return f"{words} (for {block.quarantine_seconds} s)" if block.quarantine_seconds else words
