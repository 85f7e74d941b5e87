"""Recorded sessions as data: who ran, what was asked and answered turn by turn, and whether a person called it a loop.
Files are read into this by `readers`; `run` turns it into requests again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from breakloop.model.answer import Answer


@dataclass(frozen=True, slots=True)
class Label:
    """What is known about a session: whether it loops (None: not known), and who says so."""

    loop: bool | None = None
    by: str = ""  # human, outcome or heuristic
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """One run of an agent, or of a team of agents that work on one task together."""

    id: str
    source: str = ""
    agent: str = ""
    model: str = ""
    task: str = ""
    label: Label = Label()
    named: bool = True  # its id was recorded; else the gateway has to find out by itself what belongs together
    lane: str = ""  # sessions of one lane met one gateway together; "" has it to itself


class Delta(NamedTuple):
    """A request as the difference to what its thread knew before: the first `keep` messages, then new ones."""

    thread: str
    keep: int
    messages: Sequence[Mapping[str, Any]]


class Body(NamedTuple):
    """A request as it was sent."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of a model, and what came back."""

    request: Delta | Body
    answer: Answer
    agent: str = ""
    at_s: float | None = None  # on any scale; None: not recorded
    headers: Mapping[str, bytes] = field(default_factory=dict)  # that the client sent, by canonical name
    key: str = ""  # the same wherever this turn was copied to, as when a session is resumed; "": not known


class Piece(NamedTuple):
    """Some turns of a session, as a file gives them. Logs give one at a time, and nobody knows which is the last."""

    session: Session
    turns: Sequence[Turn]
    whole: bool  # nothing of the same session follows
