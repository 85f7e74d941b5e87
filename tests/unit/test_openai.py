"""`breakloop.openai` is the public place of the drop-in clients."""

from __future__ import annotations

import breakloop.openai
from breakloop import openai as made


def test_public_names() -> None:
    """They are those of `sdk.openai` (P-2)."""
    assert breakloop.openai.__all__ == sorted(breakloop.openai.__all__)
    assert all(getattr(breakloop.openai, name) is getattr(made, name) for name in breakloop.openai.__all__)
