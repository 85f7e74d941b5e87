"""`Traces`: who is told of a call's verdict and of its answer, where somebody traces (SPEC G-5). Doors know this much
of it; what becomes of it is `observe.tracing`'s."""

from __future__ import annotations

from typing import Protocol

from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict


class Traces(Protocol):
    """Neither method raises or waits."""

    def decided(self, call: Call, verdict: Verdict) -> None:
        """A call was judged; `call.began_ns` says when its door took it."""
        ...

    def answered(self, call: Call, answer: Answer) -> None:
        """An allowed call has its answer."""
        ...
