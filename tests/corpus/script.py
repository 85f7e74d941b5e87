"""What an agent does, in no dialect. A scenario calls the methods of `Script`; `wire` writes the requests of a dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

SYSTEM: Final = "You work for a small company. Use the tools, keep to the task, and report what you find."
EVERY_S: Final = 6.0  # between two requests


@dataclass(frozen=True, slots=True)
class Made:
    """A tool call and its result."""

    name: str
    arguments: Mapping[str, Any]
    result: str = ""
    failed: bool = False
    image: str = ""  # in base64, beside the text
    id: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a conversation: a text of the user, or an answer of the model with the results of its calls."""

    user: str = ""
    said: str = ""
    calls: tuple[Made, ...] = ()
    is_answer: bool = False


@dataclass(slots=True)
class Sent:
    """One request: the conversation so far, when and by whom it was sent, and its answer."""

    at_s: float
    items: tuple[Item, ...]
    system: str
    tools: tuple[str, ...]
    names: Mapping[str, str]  # session, parent, agent, trace, trigger
    number: int  # of the conversation within the session
    answer: Item | None = None
    status: int = 200
    repeats: bool = False  # the request before it, sent again
    compacted: bool = False  # the history was replaced by a summary since the request before it


@dataclass(slots=True)
class Script:
    """One session. `call`, `calls`, `says`, `asks`, `again` and `begin` each send one request."""

    name: str
    every_s: float = EVERY_S
    system: str = SYSTEM
    tools: tuple[str, ...] | None = None  # those that requests declare; None: all that are called
    sent: list[Sent] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    _waiting: list[tuple[list[Item], str, Made]] = field(default_factory=list)
    number: int = 0  # of the conversation
    _compacted: bool = False
    _calls: int = 0

    def begin(self, task: str, **names: str) -> None:
        """Send the first request of a conversation. `names`: its session, parent, agent, trace and trigger."""
        self.items = [Item(user=task)]
        self.names = dict(names)
        self.number += 1
        self._send()

    def call(self, name: str, arguments: Mapping[str, Any], result: str, **more: Any) -> None:
        """The model calls a tool; its result is sent. `more`: `failed`, `image`, `said`, `then` (text after the result)."""
        failed, image = bool(more.pop("failed", False)), str(more.pop("image", ""))
        self.calls(Made(name, arguments, result, failed, image), **more)

    def calls(self, *made: Made, said: str = "", then: str = "") -> None:
        """The model calls several tools at once."""
        with_ids = tuple([replace(one, id=self._id()) for one in made])
        self._answer(Item(said=said, calls=with_ids, is_answer=True))
        if then:
            self.items.append(Item(user=then))
        self._send()

    def says(self, said: str, then: str) -> None:
        """The model answers with text, and the user or the harness replies."""
        self._answer(Item(said=said, is_answer=True))
        self.items.append(Item(user=then))
        self._send()

    def ends(self, said: str) -> None:
        """The model answers with text, and the run is over. Nothing is sent."""
        self._answer(Item(said=said, is_answer=True))

    def asks(self, text: str) -> None:
        """Send one more text of the user, after an answer that is not part of the history."""
        self.items.append(Item(user=text))
        self._send()

    def again(self, times: int = 1, *, status: int = 200) -> None:
        """Send the same request again; `status`: what the provider returned to the one before it."""
        for _ in range(times):
            before = self.sent[-1]
            before.status = status
            self._send(repeats=True)

    def hands(self, said: str, message: str, to: list[Item]) -> None:
        """The model answers, and a program sends a message, often from the answer, in another conversation."""
        self._answer(Item(said=said, is_answer=True))
        self.items = to
        self.asks(message)

    def delegates(self, tool: str, order: str, system: str) -> None:
        """The model calls a tool that stands for another agent, and a program gives that agent the order."""
        made = Made(tool, {"order": order}, id=self._id())
        self.sent[-1].answer = Item(calls=(made,), is_answer=True)
        self._waiting.append((self.items, self.system, made))
        self.items, self.system = [Item(user=order)], system
        self._send()

    def waits(self, tool: str) -> None:
        """The model answers the last request with a call, whose result is not there yet. Nothing is sent."""
        self.sent[-1].answer = Item(calls=(Made(tool, {}, id=self._id()),), is_answer=True)

    def reports(self, said: str) -> None:
        """The other agent answers, and its answer is the result of the call."""
        self._answer(Item(said=said, is_answer=True))
        self.items, self.system, made = self._waiting.pop()
        self.items.append(Item(calls=(replace(made, result=said),), is_answer=True))
        self._send()

    def aside(self, system: str, question: str, tools: tuple[str, ...] = ()) -> None:
        """Another program sends the same history: a judge, a summary, a title."""
        kept = self.system, self.tools, self.items
        self.system, self.tools, self.items = system, tools, [*self.items, Item(user=question)]
        self._send()
        self.sent[-1].answer = Item(said=f"Noted: {len(self.items)} entries.", is_answer=True)
        self.system, self.tools, self.items = kept

    def compact(self, summary: str) -> None:
        """Replace the history, as a client does whose context is full. Nothing is sent."""
        self.items = [self.items[0], Item(user=summary)]
        self._compacted = True

    def wait(self, seconds: float) -> None:
        """Let time pass before the next request."""
        self.now_s += seconds

    def _answer(self, item: Item) -> None:
        if self.sent and self.sent[-1].answer is None:
            self.sent[-1].answer = item
        self.items.append(item)

    def _send(self, *, repeats: bool = False) -> None:
        one = Sent(self.now_s, tuple(self.items), self.system, self.tools or (), self.names, self.number)
        one.repeats, one.compacted = repeats, self._compacted
        self._compacted = False
        self.sent.append(one)
        self.now_s += self.every_s

    def _id(self) -> str:
        self._calls += 1
        return blake2b(f"{self.name} {self._calls}".encode(), digest_size=12).hexdigest()


def declared(sent: Sequence[Sent]) -> tuple[str, ...]:
    """Return the names of all tools that a session calls."""
    return tuple(dict.fromkeys(made.name for one in sent for item in one.items for made in item.calls))


Scene = Callable[[Script], None]
