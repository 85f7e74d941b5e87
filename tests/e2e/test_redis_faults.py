"""Redis in trouble, under load, with real processes (S-3): nobody sees an error of ours or waits for long, state is
enforced by the instance itself, and when Redis is well it is used again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from breakloop.testing import ThreadedLLM
from tests.builders import chat_body, user
from tests.e2e.incident import incident, told, told_once
from tests.e2e.served import KEY
from tests.e2e.slow_relay import relay
from tests.redis_groups import Watched
from tests.redis_servers import Server, until

pytestmark = pytest.mark.e2e

A_SECOND = 500  # answers: 8 clients ask 40 times a second each, and the ruler asks 200 times


def patient(url: str, budget_ms: int = 1000) -> str:
    """With time for an answer on a machine that does other things, too: 50 ms are too little for that."""
    return f"{url}{'&' if '?' in url else '?'}time_budget_ms={budget_ms}"


def memory(redis: Server, maximum: int) -> Callable[[], object]:
    """Let Redis have so much; 1 is too little for anything, 0 is as much as it wants."""
    return lambda: redis.client().config_set("maxmemory", maximum)


@pytest.mark.parametrize("fault", ["killed", "paused", "restarted_empty", "out_of_memory"])
def test_a_fault_under_load(tmp_path: Path, llm: ThreadedLLM, own_redis: Server, fault: str) -> None:
    """No error, local enforcement, used again when it is back, one event each (S-3, S-4)."""
    redis = own_redis
    faults: dict[str, tuple[Callable[[], object], Callable[[], object], bool]] = {
        "killed": (redis.kill, redis.start, False),
        "paused": (redis.pause, redis.resume, True),
        "restarted_empty": (redis.restart, lambda: None, False),
        "out_of_memory": (memory(redis, 1), memory(redis, 0), True),
    }
    begin, mend, kept = faults[fault]
    with incident(tmp_path, patient(redis.url), llm) as here:
        here.before()
        if fault == "restarted_empty":
            here.began = time.monotonic()
            begin()
        else:
            here.begin(begin)
            here.during(A_SECOND)
        here.end(mend)
        here.after(kept=kept)
        saw = here.finish()
    told_once(here.served, saw)


def test_paused_for_long(tmp_path: Path, llm: ThreadedLLM, own_redis: Server) -> None:
    """A server that hangs is given up, connection and all; each new one hangs, too, until it is over (S-3)."""
    with incident(tmp_path, patient(own_redis.url), llm) as here:
        here.before()
        here.begin(own_redis.pause)
        here.during(4 * A_SECOND)
        here.end(own_redis.resume)
        here.after(kept=True)
        saw = here.finish()
    told_once(here.served, saw)


def test_failing_over(tmp_path: Path, llm: ThreadedLLM, redis_sentinel: Watched) -> None:
    """The master dies, its replica takes over with what it has, and is found (S-2, S-3)."""
    with incident(tmp_path, patient(redis_sentinel.url), llm) as here:
        here.before()
        master, replica = redis_sentinel.master, redis_sentinel.replica
        with master.client() as client:
            client.wait(1, 1000)
        here.begin(master.kill)
        here.during(0)
        here.end(lambda: until(lambda: is_master(replica), "a new master"))
        here.after(kept=True)
        saw = here.finish()
    told_once(here.served, saw)


def is_master(server: Server) -> bool:
    with server.client() as client:
        return bool(client.role()[0] == b"master")


# Far beyond the budget of 50 ms, of which only the time counts in which the server gets a processor.
@pytest.mark.parametrize("delay_ms", [400, 1000])
def test_too_slow(tmp_path: Path, llm: ThreadedLLM, own_redis: Server, delay_ms: int) -> None:
    """An answer that comes after its time budget is none (S-3)."""
    with relay(own_redis.port) as slow, incident(tmp_path, f"redis://127.0.0.1:{slow.port}/0", llm) as here:
        here.before()
        here.begin(lambda: slow.delay(delay_ms))
        here.during(A_SECOND)
        here.end(lambda: slow.delay(0))
        here.after(kept=True)
        saw = here.finish()
    told_once(here.served, saw)


def test_slow_but_in_time(tmp_path: Path, llm: ThreadedLLM, own_redis: Server) -> None:
    """A Redis far away is used, though the first decision of a session needs two answers, and gives up (S-2, S-3)."""
    with relay(own_redis.port) as slow:
        state = f"redis://127.0.0.1:{slow.port}/0?time_budget_ms=1000"
        with incident(tmp_path, state, llm) as here:
            here.before()
            here.began = time.monotonic()
            slow.delay(600)
            for number in range(3):
                headers = {"Authorization": f"Bearer {KEY}new-{number}", "Content_Type": "application/json"}
                body = chat_body(user(f"session {number}"))
                assert here.served.ask("/v1/chat/completions", "POST", body, **headers)[0] == 200
            assert here.statuses(1, "/loop/blocked") == [429]
            assert not here.degraded()
            here.end(lambda: slow.delay(0))
            saw = here.finish()
    assert told(here.served, "store.degraded") <= saw.stalls, here.served.log()


def test_fluttering(tmp_path: Path, llm: ThreadedLLM, own_redis: Server) -> None:
    """Paused for 0.3 s and running for 0.3 s by turns is not followed each time (S-3)."""
    with incident(tmp_path, patient(own_redis.url, 150), llm) as here:
        here.before()
        here.began = time.monotonic()
        pauses = 6
        for _ in range(pauses):
            own_redis.pause()
            here.load.answers(A_SECOND * 3 // 10)
            own_redis.resume()
            here.load.answers(A_SECOND * 3 // 10)
        here.end(lambda: None)
        here.after(kept=True)
        saw = here.finish()
    assert 1 <= told(here.served, "store.recovered") <= pauses // 2 + saw.stalls
    assert told(here.served, "store.degraded") == told(here.served, "store.recovered")


def test_absent_at_the_start(tmp_path: Path, llm: ThreadedLLM, own_redis: Server) -> None:
    """An instance starts without its Redis, and finds it when it is there (S-3)."""
    own_redis.kill()
    with incident(tmp_path, patient(own_redis.url), llm) as here:
        assert here.degraded()
        status, _, body = here.served.decide("/guarded", X_Team="a")
        assert (status, json.loads(body)["detail"]["error"]) == (429, "store_unavailable")
        here.began = time.monotonic()
        here.end(own_redis.start)
        here.after(kept=False)
        here.finish()
