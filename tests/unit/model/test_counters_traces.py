"""What doors know of tracing."""

from __future__ import annotations

import inspect

from breakloop.model.call import Call
from breakloop.model.counters import TraceCounters
from breakloop.observe.tracing import Tracing


def test_a_call_is_not_traced_unless_somebody_does() -> None:
    """Without tracing there is nothing on a call (G-5)."""
    call = Call("GET", "/")
    assert call.span is None
    assert call.began_ns == 0


def test_tracing_is_one() -> None:
    for name in ("decided", "answered"):
        ours, theirs = getattr(TraceCounters, name), getattr(Tracing, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
