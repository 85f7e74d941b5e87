"""What agents did since it was last asked, summed: the source of every sum in history and dashboard. Filled on the hot
path (a dictionary lookup and some additions a request), taken away once a second."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

Who = tuple[str, str, str]  # project, caller, agent
LoopKey = tuple[str, str, str, str]  # and fingerprint


@dataclass(slots=True)
class AgentUse:
    """One agent's."""

    requests: int = 0
    denied: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    last_at: float = 0.0
    model: str = ""


@dataclass(slots=True)
class LoopUse:
    """One loop's: what passed within it, and what was stopped."""

    passed: int = 0
    passed_tokens: int = 0
    passed_microusd: int = 0
    stopped: int = 0
    stopped_tokens: int = 0  # as estimated: the requests, and the answers they would have had
    stopped_microusd: int = 0


@dataclass(slots=True)
class Activity:
    """Sums since the last time. Bounded: beyond `MOST` new agents are summed under the name `*`."""

    agents: dict[Who, AgentUse] = field(default_factory=dict)
    loops: dict[LoopKey, LoopUse] = field(default_factory=dict)
    shadow: dict[tuple[str, str, str, str], int] = field(default_factory=dict)  # project, policy, rule, reason


Use = TypeVar("Use", AgentUse, LoopUse)


def add_use(total: Use, more: Use) -> None:
    """Add one sum to another: numbers add up, of names and times the later stays."""
    for field_ in fields(total):
        ours, theirs = getattr(total, field_.name), getattr(more, field_.name)
        if isinstance(theirs, str):
            setattr(total, field_.name, theirs or ours)
        elif isinstance(theirs, float):
            setattr(total, field_.name, max(ours, theirs))
        else:
            setattr(total, field_.name, ours + theirs)
