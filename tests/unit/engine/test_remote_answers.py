"""Answers in windows beyond a connection."""

from __future__ import annotations

from breakloop.errors import StateError
from breakloop.model.call import Answer, Call
from breakloop.store.ops import StoredWindow, WindowWrite
from tests.builders import Json, bundle, policy
from tests.fake_remote import RemoteWorld, run
from tests.unit.engine.test_remote import turn

SCORE: Json = {"similarity": "simhash"}
SAID = Answer(200, text="the very same answer as ever", complete=True)


def asked(there: RemoteWorld) -> Call:
    call = turn(0)
    call.tracked = True
    there.decide(call)
    return call


def windows(there: RemoteWorld) -> dict[str, StoredWindow]:
    now = there.here.clock.now()
    return {key: there.store.memory.read_window(key, now) for key in there.remote.windows._windows}


def test_an_answer_is_remembered_in_one_round_trip() -> None:
    """The copy is at hand (S-2, LD-3)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=SCORE)))
        call = asked(there)
        before = windows(there)
        there.settle(call, SAID)
        after = windows(there)
        step = there.remote.versions._step
        assert {key: version + step for key, (version, _) in before.items()} == {
            key: kept[0] for key, kept in after.items()
        }
        assert all(before[key][1] != after[key][1] for key in before)
        assert (there.store.asked["read"], there.store.asked["commit"]) == (1, 2)

    run(test)


def test_a_window_that_moved_on_gets_the_answer_too() -> None:
    """It is judged again with what came back (E-5)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=SCORE)))
        call = asked(there)
        [key] = there.remote.windows._windows
        now = there.here.clock.now()
        version, data = there.store.memory.read_window(key, now)
        there.store.memory.commit((), now, [WindowWrite(key, version, data, 60.0)])
        there.settle(call, SAID)
        assert there.store.memory.read_window(key, now).version == version + 1 + there.remote.versions._step

    run(test)


def test_without_a_copy_it_is_read_first() -> None:
    """The copy may have gone to make room (S-2)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=SCORE)))
        call = asked(there)
        [key] = there.remote.windows._windows
        version = there.remote.windows.get(key).version
        there.remote.windows.drop([key])
        there.settle(call, SAID)
        assert there.store.asked["read"] == 2
        assert there.remote.windows.get(key).version == version + there.remote.versions._step

    run(test)


def test_a_store_that_fails_costs_only_the_memory_of_it() -> None:
    """Nobody waits for it (LD-7)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=SCORE)))
        first, second = asked(there), asked(there)
        [key] = there.remote.windows._windows
        there.store.error = StateError("gone")
        there.settle(first, SAID)
        assert there.remote.windows.missing([key]) == [key]
        there.settle(second, SAID)  # it is known to be gone: it is not even asked
        assert [up for up, _ in there.changes] == [False]
        there.remote.close()

    run(test)
