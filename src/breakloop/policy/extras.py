"""What a bundle asks for that comes with an extra of the package, and is not installed (SPEC B-2): a problem like any
other, so that the bundle is refused whole, with its place and the remedy."""

from __future__ import annotations

from collections.abc import Iterator

from breakloop.policy import schema
from breakloop.policy.places import Finding, Path
from breakloop.pricing.tokenizer import is_installed

_ESTIMATOR: Path = ("algorithm_config", "token_source", "estimator")


def missing_extras(bundle: schema.Bundle) -> list[Finding]:
    """Return what cannot be had here."""
    wanted = [place for place, config in _llm_rules(bundle) if config.token_source.estimator == "tokenizer"]
    if not wanted or is_installed():
        return []
    message = "needs the extra 'tokenizer', which is not installed"
    hint = "pip install 'breakloop[tokenizer]', or use simple_word"
    return [Finding((*place, *_ESTIMATOR), message, hint) for place in wanted]


def _llm_rules(bundle: schema.Bundle) -> Iterator[tuple[Path, schema.LlmTokensConfig]]:
    for index, policy in enumerate(bundle.policies):
        spec: Path = ("policies", index, "spec")
        rules: list[tuple[Path, schema.Rule]] = [
            ((*spec, "rules", at), rule) for at, rule in enumerate(policy.spec.rules)
        ]
        if policy.spec.fallback_limit is not None:
            rules.append(((*spec, "fallback_limit"), policy.spec.fallback_limit))
        for place, rule in rules:
            if isinstance(rule.config, schema.LlmTokensConfig):
                yield place, rule.config
