"""The cap of a streamed answer: what a rule leaves on a call."""

from __future__ import annotations

from breakloop.model.call import CAPPED, Call, CompletionCap


def test_a_call_has_none_by_itself() -> None:
    """Only a rule that asks for it caps anything (L-3)."""
    assert Call("POST", "/").decision.caps == ()


def test_in_shadow_it_is_the_same_cap() -> None:
    """Told, and not enforced (E-1)."""
    cap = CompletionCap(100, "p", "r", cuts=True)
    assert (cap._replace(cuts=False).tokens, CAPPED) == (100, "max_completion_tokens")
