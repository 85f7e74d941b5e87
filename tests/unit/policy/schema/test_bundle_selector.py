"""Selectors: hosts and paths as requests are matched."""

from __future__ import annotations

import pytest

from breakloop.policy.schema import bundle
from tests.unit.policy.said import messages


def test_hosts_are_normalised() -> None:
    """Lower case, without port and final dot (C-1)."""
    made = bundle.Selector.model_validate(
        {"hosts": ["API.Example.com:8443", "example.org.", "[::0:1]:80", "my_service"]}
    )
    assert made.hosts == ["api.example.com", "example.org", "[::1]", "my_service"]


@pytest.mark.parametrize(
    "host", ["", "a b", "-x.example", "x..y", "u@example.com", "example.com?x", "[::zz]", "ex\u2028ample"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    assert messages(bundle.Selector, {"hosts": [host]})


@pytest.mark.parametrize("path", ["", "v1", "/a/../b", "/a%2fb", "/%7Euser", "/a#b", "/a b", "/caf\u00e9", "/a\\b"])
def test_paths_that_can_never_match_are_refused(path: str) -> None:
    """Selectors see normalised paths only (R-3)."""
    assert messages(bundle.Selector, {"pathExact": path})
