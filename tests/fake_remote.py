"""A store beyond a connection, for tests: a memory store whose answers come when the test lets them come."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from breakloop.engine.remote import RemoteEngine, SharedNames, StoreHealth
from breakloop.errors import StateError
from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import ContextSettings
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import AdjustCharge, CommitResult, Op, Settle, StoredBreaker, StoredWindow, WindowWrite
from tests.builders import Json, World, world


class FakeRemote:
    """Carries everything out at once, as a store does that commands reach in order; answers wait for `deliver`."""

    def __init__(self, clock: Callable[[], float], memory: MemoryStore | None = None) -> None:
        self.memory = MemoryStore() if memory is None else memory
        self.clock = clock
        self.asked: Counter[str] = Counter()
        self.notes: dict[str, str] = {}
        self.answers: deque[Callable[[], None]] = deque()
        self.error: StateError | None = None  # what every command gets from now on
        self.holds = False  # answers wait
        self.before_commit: Callable[[], None] = lambda: None  # what somebody else does just before
        self.committed: list[tuple[list[Op], list[str]]] = []  # operations, and the windows that came with them

    def _answer(self, name: str, do: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.asked[name] += 1
        result = self.error if self.error is not None else do()
        self.answers.append(lambda: then(result))
        if not self.holds:
            self.deliver()

    def deliver(self, count: int = 1_000_000) -> None:
        """Let so many answers come, the oldest first."""
        while self.answers and count:
            self.answers.popleft()()
            count -= 1

    def commit(
        self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: Callable[[CommitResult | StateError], None]
    ) -> None:
        """As `RemoteStore`."""
        self.before_commit()
        self.committed.append((list(ops), [one.key for one in windows]))
        self._answer("commit", lambda: self.memory.commit(ops, self.clock(), windows), then)

    def read_windows(self, keys: Sequence[str], then: Callable[[list[StoredWindow] | StateError], None]) -> None:
        """As `RemoteStore`."""
        self._answer("read", lambda: [self.memory.read_window(key, self.clock()) for key in keys], then)

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        """As `RemoteStore`."""
        self._answer("settle", lambda: self.memory.settle(ops, self.clock(), failed=failed), then)

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None:
        """As `RemoteStore`."""
        self._answer("correct", lambda: self.memory.correct(ops, self.clock()), then)

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None:
        """As `RemoteStore`."""
        self._answer("drop", lambda: self.memory.drop(keys), then)

    def note(self, key: str, value: str, ttl_s: float) -> None:
        """As `RemoteStore`."""
        assert ttl_s == (43_200 if key.startswith("tree:") else 3600), "a tree is known for as long as its budget"
        self.asked["note"] += 1
        self.notes[key] = value

    def recall(self, key: str, then: Callable[[str | StateError], None]) -> None:
        """As `RemoteStore`."""
        self._answer("recall", lambda: self.notes.get(key, ""), then)

    async def breakers(self, prefix: str, most: int) -> list[StoredBreaker]:
        """As `RedisStore`."""
        return self.memory.breakers(prefix, self.clock(), most)

    def probe(self, then: Callable[[StateError | None], None]) -> None:
        """As `RemoteStore`."""
        self._answer("probe", lambda: None, then)


class RemoteWorld:
    """An engine whose state is in a `FakeRemote`. To be made on a running loop."""

    def __init__(
        self,
        bundle: Json,
        memory: MemoryStore | None = None,
        budget_s: float = 0.05,
        settings: ContextSettings | None = None,
    ) -> None:
        self.here: World = world(bundle, settings=settings)
        self.store = FakeRemote(self.here.clock.now, memory)
        self.changes: list[tuple[bool, str]] = []
        self.health = StoreHealth(lambda up, why: self.changes.append((up, why)))
        self.faults: list[Exception] = []
        self.remote: RemoteEngine = RemoteEngine(
            self.here.engine,
            self.store,
            self.health,
            budget_s=budget_s,
            fault=self._fault,
            local=self.here.store,  # type: ignore[arg-type]  # it is a memory store
        )

    def share_names(self, notes: dict[str, str]) -> None:
        """Share chains of answers and trees of agents with others that have the same notes."""
        self.store.notes = notes
        self.remote.names = SharedNames(self.here.descriptors.sessions, self.here.descriptors.trees, self.store)

    def _fault(self, error: Exception) -> Verdict:
        self.faults.append(error)
        return Verdict()

    def ask(self, call: Call) -> list[Verdict]:
        """Ask; the verdict is in the list as soon as there is one."""
        verdicts: list[Verdict] = []
        self.remote.decide(call, verdicts.append)
        return verdicts

    def decide(self, call: Call) -> Verdict:
        """Ask a store that answers at once."""
        [verdict] = self.ask(call)
        return verdict

    def settle(self, call: Call, answer: Answer) -> None:
        """Say how it ended."""
        self.here.engine.settle(call, answer)


def run(test: Callable[[], Any]) -> None:
    """Run a test on a loop, for which time-outs come when the test waits for them."""

    async def body() -> None:
        made = test()
        if asyncio.iscoroutine(made):
            await made

    asyncio.run(body())
