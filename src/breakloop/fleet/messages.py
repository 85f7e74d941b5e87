"""What workers and the control process tell each other. How it gets there is `channel`'s."""

from __future__ import annotations

from typing import Any

import msgspec

from breakloop.errors import Problem
from breakloop.model.activity import Activity, AgentUse, LoopKey, LoopUse, Who
from breakloop.model.events import Event
from breakloop.model.figures import Figures


class Policy(msgspec.Struct, tag="policy", frozen=True):
    """To a worker: the bundle in force, and how its source is. Without `text` there is none: keep what you have."""

    number: int  # counts what is put in force, so that it can be acknowledged
    name: str
    origin: str
    rejected: int
    problems: list[Problem]
    digest: str = ""
    text: bytes | None = None


class Fleet(msgspec.Struct, tag="fleet", frozen=True):
    """To a worker: how many workers there are now."""

    workers: int


class Happened(msgspec.Struct, tag="happened", frozen=True):
    """From a worker: events in their order, and how many it had no room for since it began."""

    events: list[Event]
    dropped: int = 0


class Counted(msgspec.Struct, tag="counted", frozen=True):
    """From a worker: what it has to show as metrics, all of it, since it began."""

    figures: Figures


class Did(msgspec.Struct, tag="did", frozen=True):
    """From a worker: what agents did since it last told."""

    agents: list[tuple[Who, AgentUse]]
    loops: list[tuple[LoopKey, LoopUse]]
    shadow: list[tuple[LoopKey, int]]

    @classmethod
    def of(cls, activity: Activity) -> Did:
        """Write it down."""
        return cls(list(activity.agents.items()), list(activity.loops.items()), list(activity.shadow.items()))


class Applied(msgspec.Struct, tag="applied", frozen=True):
    """From a worker: a policy is in force there, or cannot be."""

    number: int
    problem: str = ""


Message = Policy | Fleet | Happened | Counted | Did | Applied

_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return it as bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray) -> Message:
    """Read it back; raises `ValueError` for anything else."""
    message: Message = _decoder.decode(data)
    return message
