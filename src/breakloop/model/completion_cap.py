"""`CompletionCap`: how long a streamed answer may become before it is ended (SPEC L-3). Left on a call by rules that
ask for it; who counts and cuts is the gateway."""

from __future__ import annotations

from typing import Final, NamedTuple

CAPPED: Final = "max_completion_tokens"  # the reason in events


class CompletionCap(NamedTuple):
    """The cap of one rule."""

    tokens: int  # of one answer; a request for several may have as many times that
    policy: str
    rule: str
    cuts: bool  # False: in shadow, where it is only told
