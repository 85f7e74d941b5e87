"""`breakloop.anthropic` is the public place of the drop-in clients."""

from __future__ import annotations

import breakloop.anthropic
from breakloop import anthropic as made


def test_public_names() -> None:
    """They are those of `sdk.anthropic` (P-2)."""
    assert breakloop.anthropic.__all__ == sorted(breakloop.anthropic.__all__)
    assert all(getattr(breakloop.anthropic, name) is getattr(made, name) for name in breakloop.anthropic.__all__)
