"""Detectors that remember: each keeps a section of somebody's window (a session's, an agent's, a caller's), looks at a
call with it, and says what follows. Reading and writing windows is `windows`' work, packing them `sections`'."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Protocol

from breakloop.detect.loop import LoopTerms
from breakloop.detect.sections import TAG_BYTES
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.state.keys import part
from breakloop.state.ops import Op

SEVERAL: Final = "c:"  # how an owner begins that may have several agents: a caller


class Watcher(Protocol):
    """A detector with a memory."""

    terms: LoopTerms
    tags: tuple[bytes, bytes]  # of its section: enforced, and in shadow

    def owner(self, call: Call) -> str:
        """Return whose window it is, as keys hold it; "" where it has nothing to say about the call."""
        ...

    def look(self, call: Call, window: bytes, now: float) -> Looked | None:
        """Judge the call with what is remembered (b"": nothing yet); None to leave all as it is."""
        ...

    def operation(self, call: Call, looked: Any, project: str, group: int) -> Op | None:
        """Return what is to be done about it, or None."""
        ...

    def hears(self, call: Call, looked: Any) -> bool:
        """Tell whether the answer to this call can change what is remembered."""
        ...

    def heard(self, window: bytes, answer: Answer) -> bytes:
        """Return the memory after the answer to a call that was looked at; the same object where nothing changes."""
        ...


class Looked(Protocol):
    """What a look came to: the section to keep, the same object where nothing changes, and whatever was found."""

    @property
    def window(self) -> bytes:
        """The memory after the call."""
        ...


class Watch:
    """Stands among the operations where a finding may follow; no store ever sees it."""

    __slots__ = ("detector", "group")

    def __init__(self, detector: Watcher, group: int) -> None:
        self.detector = detector
        self.group = group


def place_of(owner: str, shard: str, project: str) -> str:
    """Return where the window of an owner is kept, as keys hold it: what several agents share is in the project's."""
    return shard if shard is project or not owner.startswith(SEVERAL) else project


def window_key(owner: str) -> str:
    """Return the key of somebody's window, project included; the end tells it from keys that begin alike."""
    return f"win:{owner}:"


def tags(terms: LoopTerms, what: str = "") -> tuple[bytes, bytes]:
    """Return the names of a detector's section; what a shadow policy remembers stands apart."""
    name = f"{what}{place(terms)}"
    return _tag(name), _tag(f"shadow:{name}")


def place(terms: LoopTerms) -> str:
    """Return which block of which policy this is, as keys hold it."""
    return f"{terms.place}{part(terms.policy)}:{terms.index}"


def _tag(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "replace"), digest_size=TAG_BYTES).digest()
