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
    assert "pip install 'breakloop[tokenizer]'" in first.hint
    assert (second.line, second.path.partition(".algorithm")[0]) == (21, "policies[0].spec.fallback_limit")


def test_other_bundles_do_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those who name it (L-3)."""
    monkeypatch.setitem(sys.modules, "toktok", None)
    assert load_text(BUNDLE.replace(b"estimator: tokenizer", b"estimator: header_hint"), "b.yaml").notes == []
