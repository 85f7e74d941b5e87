"""Which descriptors there are."""

from __future__ import annotations

import pytest

from breakloop.policy import descriptors
from tests.each import each


@each("kind", [*(f"{k}:{n}" for k, names in descriptors.FIXED.items() for n in names)])
def test_every_fixed_descriptor_is_known(kind: str) -> None:
    """Every fixed descriptor is known (C-6)."""
    assert descriptors.fault(kind) is None


@pytest.mark.parametrize("name", ["jwt:realm_access.roles", "jwt:https://example.com/org", "header:X-A", "query:a[b]"])
def test_open_descriptors(name: str) -> None:
    """Claims are dotted and may be namespaced (C-6)."""
    assert descriptors.fault(name) is None


@each("name", ["jwt:", "jwt:a..b", "header:a b", "JWT:sub", "ip", "ip:", "agent:name", "", ":x", "query:a=b"])
def test_wrong_descriptors(name: str) -> None:
    """Wrong descriptors (C-6)."""
    assert descriptors.fault(name) is not None
