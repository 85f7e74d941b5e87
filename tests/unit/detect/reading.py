"""A `CallReader` with fixed values, and configurations, for unit tests of detectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from breakloop.detect.counting import AllowList, DetectorConfig
from breakloop.model.call import NO_TREE, TAIL_MESSAGES, Call, Step, Tree
from breakloop.store.ops import FingerprintSpec

SPEC = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)
STEP = Step("", (), (), (), ("hello",), (), 1, 10)


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8, key=b"test").digest()


@dataclass
class Reader:
    """Reads the same from every call; the tools of the last messages come from the query."""

    newest: Step | None = STEP
    session_id: str = "me"
    unnamed: bool = True
    system: str = "model and prompt"
    started_by: str = ""
    caller_id: str = "caller"
    agent_id: str = "agent"
    place: Tree = NO_TREE

    def caller(self, _call: Call) -> str:
        return self.caller_id

    def agent(self, _call: Call) -> str:
        return self.agent_id

    def tools(self, call: Call, messages: int = TAIL_MESSAGES) -> tuple[str, ...]:
        return tuple(call.query.split(",")[-messages:]) if call.query else ()

    def step(self, _call: Call) -> Step | None:
        return self.newest

    def session(self, _call: Call) -> str:
        return self.session_id

    def window(self, _call: Call) -> str:
        return self.session_id

    def derived(self, _call: Call) -> bool:
        return self.unnamed

    def model_and_system(self, _call: Call) -> str:
        return self.system

    def task(self, call: Call) -> str:
        return call.query

    def parent(self, _call: Call) -> str:
        return self.started_by

    def trace(self, _call: Call) -> str:
        return ""

    def user(self, _call: Call) -> str:
        return ""

    def tree(self, _call: Call) -> Tree:
        return self.place

    def states_tree(self, _call: Call) -> bool:
        return self.place is not NO_TREE


CONFIG = DetectorConfig("steps", "p", 0, ("warn", "reject", "reject"), 429, cooldown=SPEC)


def allowing(config: DetectorConfig, until: float = 10.0) -> DetectorConfig:
    """The configuration with an allow list for the agent of `Reader`."""
    return replace(config, allow=AllowList({}, {"agent": until}, {}, {}, {}))
