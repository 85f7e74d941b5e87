"""Openings in mixed traffic: whatever a sender sends, in memory and in Redis, as a plain list of it says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from breakloop.store.memory import MemoryStore
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec, Store
from tests.redis_store import NewStore
from tests.stores import NO_OWNER

WINDOW_S = 60.0
Sent = tuple[str, bool, float]  # what, whether it opens a conversation, how long after the one before
SENT = st.lists(
    st.tuples(st.sampled_from("aaaabbcdefg"), st.booleans(), st.sampled_from([0.0, 0.25, 1.0, 1.0, 59.75, 60.0])),
    max_size=60,
)


def follow_traffic(store: Store, limit: int, steps: list[Sent]) -> None:
    """Send requests without a cooldown, so that all are counted, and compare with what a list of them says."""
    spec = FingerprintSpec(WINDOW_S, limit, sliding=True)
    now, times, lately = 1000.0, dict[str, list[float]](), list[str]()
    for text, opening, later in steps:
        now += later
        lately = [*([] if later >= WINDOW_S else lately), text][-18:]
        times[text] = [*[at for at in times.get(text, []) if at > now - WINDOW_S], now]
        op = CountFingerprint(spec, f"cnt:p:b:{text:0>32}", NO_OWNER).within("mix:p:b:s", opening=opening)
        done = store.commit([op], now)
        (result,) = done.results
        assert isinstance(result, FingerprintCount)
        tripped = len(times[text]) > limit
        in_a_row = set(lately[-(limit + 1) :]) == {text} and len(lately) > limit
        mixed = tripped and opening and not in_a_row and 3 * len(set(lately)) > len(lately)
        assert (result.hits, result.tripped, result.mixed) == (len(times[text]), tripped, mixed)
        assert (done.denied_at == 0) is (tripped and not mixed)


@given(limit=st.integers(1, 5), steps=SENT)
def test_what_is_mixed(limit: int, steps: list[Sent]) -> None:
    """In memory (LD-2)."""
    follow_traffic(MemoryStore(), limit, steps)


@settings(max_examples=15)
@given(limit=st.integers(1, 5), steps=SENT)
def test_what_is_mixed_in_redis(new_redis_store: NewStore, limit: int, steps: list[Sent]) -> None:
    """The same in every kind of server (LD-2, E-5)."""
    follow_traffic(new_redis_store(), limit, steps)
