"""An agent at work behind an engine: its requests grow as conversations do, its answers are seen, and time passes."""

from __future__ import annotations

from itertools import count
from typing import Any

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict
from tests.builders import CHAT, Json, World, bundle, call, chat_body, policy, user, world

STEPS: Json = {"similarity": "steps"}
FINE = Answer(200, complete=True)
SYSTEM: Json = {"role": "system", "content": "You are a careful engineer."}
TASK = "The nightly build fails. Find out why, and mend it."

Made = tuple[str, str, str]  # a tool, its arguments, what it returns


def guarded(**options: Any) -> World:
    """A world with one `steps` block, and nothing else that could stop anybody."""
    return world(bundle(policy("p", loop={**STEPS, **options})))


def found(verdict: Verdict) -> str:
    """What a verdict came to: `pass`, `notice`, or `deny` with the kind of loop."""
    kind = verdict.loop.kind if verdict.loop is not None else verdict.reason
    return f"deny {kind}" if not verdict.allowed else f"notice {kind}" if verdict.warning else "pass"


class Agent:
    """One agent. Each of its methods sends one request, `every_s` after the one before, and remembers what came of it."""

    def __init__(
        self, here: World, *, every_s: float = 8.0, task: str = TASK, session: str = "s", parent: str = ""
    ) -> None:
        self.here = here
        self.every_s = every_s
        self.headers = {"authorization": "Bearer k", "x-agent-session": session, "x-agent-parent": parent}
        self.more: Json = {}  # further fields of the body
        self.messages: list[Json] = [SYSTEM, user(task)]
        self.outcomes: list[str] = []
        self._ids = count(1)
        self.send()

    def calls(self, *made: Made, said: str | None = None, answer: Answer = FINE) -> str:
        """Call tools, all in one round, get what they return, and send that on."""
        ids = [f"call_{self.here.clock.now():.0f}_{next(self._ids)}" for _ in made]  # never the same in two runs
        functions = [{"name": name, "arguments": arguments} for name, arguments, _ in made]
        called = [{"id": by, "type": "function", "function": one} for by, one in zip(ids, functions, strict=True)]
        self.messages.append({"role": "assistant", "content": said, "tool_calls": called})
        for by, (_, _, result) in zip(ids, made, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": by, "content": result})
        return self.send(answer)

    def call(self, name: str, arguments: str, result: str, **more: Any) -> str:
        """Call one tool."""
        return self.calls((name, arguments, result), **more)

    def says(self, said: str, then: str) -> str:
        """Answer in words, and get a word back."""
        self.messages += [{"role": "assistant", "content": said}, user(then)]
        return self.send()

    def send(self, answer: Answer = FINE) -> str:
        """Send the conversation as it is; the answer comes at once."""
        asked, verdict = self.start()
        if verdict.allowed:
            self.here.engine.settle(asked, answer)
        self.here.clock.advance(self.every_s)
        return self.outcomes[-1]

    def start(self) -> tuple[Call, Verdict]:
        """Send it, and leave its answer open."""
        asked = self.request()
        verdict = self.here.engine.decide(asked)
        self.outcomes.append(found(verdict))
        return asked, verdict

    def request(self) -> Call:
        """The next request, seen by a door that also sees its answer."""
        asked = call(CHAT, "POST", self.headers, body=chat_body(*self.messages, **self.more))
        asked.tracked = True
        return asked

    @property
    def flagged(self) -> list[str]:
        """Everything that did not simply pass."""
        return [one for one in self.outcomes if one != "pass"]
