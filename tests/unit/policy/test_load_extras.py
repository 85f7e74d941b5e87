"""Extras that a bundle needs and that are not there: a problem with a place and a remedy, not a crash."""

from __future__ import annotations

import sys

import pytest

from breakloop.errors import BundleError
from breakloop.policy.load import load_text

BUNDLE = b"""\
bundle_version: 1
policies:
  - id: p
    spec:
      selector: {pathPrefix: /}
      rules:
        - name: plain
          limit_keys: []
          algorithm: token_bucket_llm
          algorithm_config: {tokens_per_minute: 100}
        - name: exact
          limit_keys: []
          algorithm: token_bucket_llm
          algorithm_config:
            tokens_per_minute: 100
            token_source: {estimator: tokenizer}
      fallback_limit:
        name: rest
        limit_keys: []
        algorithm: token_bucket_llm
        algorithm_config: {tokens_per_minute: 100, token_source: {estimator: tokenizer}}
"""


def test_where_it_is_installed_nothing_is_wrong() -> None:
    """Where it is installed nothing is wrong (L-3)."""
    assert load_text(BUNDLE, "b.yaml").bundle.bundle_version == 1


def test_where_it_is_missing_the_bundle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """File, line, column, path and hint of every place (L-3, B-2)."""
    monkeypatch.setitem(sys.modules, "toktok", None)
    with pytest.raises(BundleError) as refused:
        load_text(BUNDLE, "b.yaml")
    first, second = refused.value.problems
    assert (first.file, first.line, first.column) == ("b.yaml", 16, 39)
    assert first.path == "policies[0].spec.rules[1].algorithm_config.token_source.estimator"
    assert 'pip install "breakloop[tokenizer]"' in first.hint
    assert (second.line, second.path.partition(".algorithm")[0]) == (21, "policies[0].spec.fallback_limit")


def test_other_bundles_do_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those who name it (L-3)."""
    monkeypatch.setitem(sys.modules, "toktok", None)
    assert load_text(BUNDLE.replace(b"estimator: tokenizer", b"estimator: header_hint"), "b.yaml").notes == []


MONEY = b"""\
bundle_version: 1
agents:
  a: {max_usd_per_run: 1}
  b: {budget_usd_per_day: 1, rate_limit: {requests_per_minute: 5}}
policies:
  - id: p
    spec:
      selector: {pathPrefix: /}
      rules:
        - name: dollars
          limit_keys: []
          algorithm: cost_based
          algorithm_config:
            {budget: 5, period: 1d, cost_key: "usage:usd", staged_actions: [{threshold_percent: 100, action: reject}]}
      circuit_breaker: {enabled: true, spend_rate_threshold_per_minute: 1, spend_source: "usage:usd"}
"""


def test_limits_in_dollars_need_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library has none of its own: without them, every call would be free (L-5)."""
    assert load_text(MONEY, "b.yaml").bundle.bundle_version == 1
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(BundleError) as refused:
        load_text(MONEY, "b.yaml")
    assert {problem.path: problem.line for problem in refused.value.problems} == {
        "agents.a.max_usd_per_run": 3,
        "agents.b.budget_usd_per_day": 4,
        "policies[0].spec.rules[0].algorithm_config.cost_key": 14,
        "policies[0].spec.circuit_breaker.spend_source": 15,
    }
    assert {problem.hint for problem in refused.value.problems} == {'pip install "breakloop[prices]"'}
