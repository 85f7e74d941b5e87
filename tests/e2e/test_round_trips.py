"""How often Redis is asked for one decision, counted by Redis itself (S-2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.builders import chat_body, user
from tests.e2e.served import KEY, Served, serving
from tests.redis_servers import Server, running

pytestmark = pytest.mark.e2e

TURNS = 20


class Counter:
    """What Redis has been asked since the last time."""

    def __init__(self, redis: Server) -> None:
        self._client = redis.client()
        self._last: dict[str, int] = {}
        self.since()

    def since(self) -> dict[str, int]:
        """Commands of decisions: what scripts call, and what orders and probes need, are counted apart by their names."""
        found = self._client.info("commandstats")
        calls = {name: int(found.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "mget", "script")}
        news = {name: count - self._last.get(name, 0) for name, count in calls.items()}
        self._last = calls
        return {name: count for name, count in news.items() if count}


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    """A Redis that nobody else asks anything."""
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, store: Server) -> Iterator[list[Served]]:
    """Two instances, which have both decided something before."""
    with ExitStack() as stack:
        made = []
        for _ in range(2):
            folder = tmp_path_factory.mktemp("instance")
            state = f"{store.url}?time_budget_ms=5000"
            made.append(stack.enter_context(serving(folder, "--state", state)))
        for one in made:
            decide(one, "warm", 0)
        yield made


def decide(served: Served, session: str, turn: int) -> None:
    """One more turn of an agent that gets on: each tool call is another one, with another result."""
    messages = [user(f"Read the pages of {session}.")]
    for number in range(turn):
        function = {"name": "read", "arguments": f'{{"page":{number}}}'}
        called = {"id": f"call_{number:08}", "type": "function", "function": function}
        messages += [{"role": "assistant", "content": None, "tool_calls": [called]}]
        messages += [
            {"role": "tool", "tool_call_id": called["id"], "content": f"Page {number} tells of {hash(number)}."}
        ]
    headers = {"Authorization": f"Bearer {KEY}{session}", "Content_Type": "application/json"}
    assert served.decide("/v1/chat/completions", chat_body(*messages).decode(), **headers)[0] == 200


def test_one_round_trip_when_the_window_is_known_and_two_otherwise(pair: list[Served], store: Server) -> None:
    """Read the window unless there is a copy, judge, one conditional commit (S-2)."""
    counter = Counter(store)
    decide(pair[0], "a", 0)
    assert counter.since() == {"mget": 1, "evalsha": 1}
    for turn in range(1, TURNS + 1):
        decide(pair[0], "a", turn)
    assert counter.since() == {"evalsha": TURNS}


def test_one_more_for_each_conflict(pair: list[Served], store: Server) -> None:
    """A session that changes between two instances finds its copy out of date, and gets the newer one with that
    (S-2)."""
    for one in pair:
        decide(one, "b", 0)
    counter = Counter(store)
    for turn in range(1, TURNS + 1):
        decide(pair[turn % 2], "b", turn)
    assert counter.since() == {"evalsha": 2 * TURNS - 1}


def test_what_needs_no_state_asks_for_none(pair: list[Served], store: Server) -> None:
    """A call that nothing applies to (S-2)."""
    counter = Counter(store)
    assert pair[0].decide("/health")[0] == 200
    assert counter.since() == {}
