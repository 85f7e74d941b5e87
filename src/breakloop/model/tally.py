"""`Tally`: what the engine and the doors have counted since start. Metrics show it; nobody decides by it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts since start."""

    allowed: dict[str, int] = field(default_factory=dict)  # reason -> how many
    denied: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)  # descriptor -> rules skipped for lack of it
    not_unpacked: dict[str, int] = field(default_factory=dict)  # why -> compressed bodies judged as they came
    not_read: dict[str, int] = field(default_factory=dict)  # why -> answers that passed unread
    unjudged: int = 0  # requests whose body was too large to be judged
    store_errors: int = 0
    steered: int = 0  # requests that carried a note for the model
    asked_usage: int = 0  # streams whose count of tokens we asked for, and took out again
    refused_usage: int = 0  # of these: sent again without the question, because the upstream does not know it
    cut: int = 0  # streamed answers that were cut, because they repeated themselves
    cut_long: int = 0  # and those that were cut, because they became longer than a rule lets them
    faults: int = 0  # decisions that failed for a mistake of ours, and were allowed
    shadowed: int = 0
    settled: int = 0  # answers seen or reported
    failed: int = 0  # of these: 429, 5xx, none at all
    joined: int = 0  # counts not made, because an identical request was in flight
    forgiven: int = 0  # counts taken back, because the answer failed
    input_tokens: int = 0
    output_tokens: int = 0
