"""How a Redis store sends and what it makes of answers, with a server that says what the test wants it to say."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from breakloop.errors import StateError
from breakloop.store.limit_ops import BucketSpec, TakeTokens
from breakloop.store.ops import (
    AdjustCharge,
    CommitResult,
    FingerprintSpec,
    Op,
    RemoteStore,
    Settle,
    StoredWindow,
    WindowWrite,
)
from breakloop.store.redis.connection import RedisError
from breakloop.store.redis.scripts import load_scripts, redis_key, window_value
from breakloop.store.redis.store import RedisStore
from tests.stores import NO_LIMITER, NO_RULE

TEN = BucketSpec(1.0, 10.0)
OP = TakeTokens(TEN, "tb:p:k", 1.0, NO_LIMITER, NO_RULE)
NINE = msgspec.msgpack.encode([1000, -1, 9])
NOSCRIPT = RedisError("NOSCRIPT No matching script. Please use EVAL.")
SCRIPTS = load_scripts()


class Told:
    """Nodes that keep what they are sent; the test answers."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, tuple[bytes, ...]]] = []
        self.waiting: deque[Callable[[Any], None]] = deque()

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        self.sent.append((key, args))
        self.waiting.append(then)

    def each(self) -> list[Callable[..., None]]:
        return [partial(self.send, b"1"), partial(self.send, b"2")]

    def answer(self, *answers: object) -> None:
        for one in answers:
            self.waiting.popleft()(one)

    @property
    def commands(self) -> list[bytes]:
        return [args[0] for _, args in self.sent]


@pytest.fixture
def nodes() -> Told:
    return Told()


@pytest.fixture
def store(nodes: Told) -> RedisStore:
    return RedisStore(nodes)


def test_it_is_a_remote_store(store: RedisStore) -> None:
    """mypy checks the shape; here only that it says so (S-2)."""
    remote: RemoteStore = store
    assert remote is store


def test_a_commit_is_one_command(store: RedisStore, nodes: Told) -> None:
    """One round trip, sent to where its keys live; Redis has its own time (S-2, E-5)."""
    done: list[object] = []
    writes = [WindowWrite("win:p:s:", 1, b"x", 60.0), WindowWrite("win:p:t:", 2, None, 60.0)]
    store.commit([OP], writes, done.append)
    ((key, args),) = nodes.sent
    assert key == redis_key("win:p:s:")
    assert args[:3] == (b"EVALSHA", SCRIPTS.commit.sha, b"3")
    assert args[3:6] == (redis_key("win:p:s:"), redis_key("win:p:t:"), redis_key("tb:p:k"))
    assert args[7:] == (b"", window_value(writes[0]), b"")
    assert done == []
    nodes.answer(NINE)
    assert done == [CommitResult([9.0], -1)]


def test_time_is_told_in_tests_only(nodes: Told) -> None:
    """To the last bit (S-2)."""
    store = RedisStore(nodes, lambda: 1800000000.1)
    store.commit([OP], (), print)
    assert nodes.sent[0][1][-1] == b"1800000000.1"


def test_a_commit_without_keys_is_sent_too(store: RedisStore, nodes: Told) -> None:
    """It wants the time (S-2)."""
    done: list[Any] = []
    store.commit([], (), done.append)
    assert nodes.sent[0][0] == b"bl:"
    nodes.answer(msgspec.msgpack.encode([1000.5, -1]))
    assert done[0].at == 1000.5


def test_windows_are_read_together(store: RedisStore, nodes: Told) -> None:
    """One round trip, in the order of the keys; what is not there is version 0 (S-2)."""
    found: list[object] = []
    store.read_windows(["win:p:a:", "win:p:b:"], found.append)
    keys = (redis_key("win:p:a:"), redis_key("win:p:b:"))
    assert nodes.sent == [(keys[0], (b"MGET", *keys))]
    nodes.answer([None, window_value(WindowWrite("", 4, b"x", 1.0))])
    assert found == [[StoredWindow(0, b""), StoredWindow(5, b"x")]]


def test_nothing_to_ask_is_answered_at_once(store: RedisStore, nodes: Told) -> None:
    """No round trip for nothing (S-2)."""
    got: list[object] = []
    store.read_windows([], got.append)
    store.settle([Settle(FingerprintSpec(1.0, 1), "ld:p:k", 1.0)], got.append, failed=True)
    store.correct([], got.append)
    store.drop([], got.append)
    assert (got, nodes.sent) == ([[], 0, None, None], [])


def test_settle_and_correct(store: RedisStore, nodes: Told) -> None:
    """A script each (LD-6, L-3)."""
    got: list[object] = []
    store.settle([Settle(FingerprintSpec(1.0, 1), "ld:p:k", 1.0, 1)], got.append, failed=False)
    store.correct([AdjustCharge(TEN, "tb:p:k", 1.0)], got.append)
    assert [args[1] for _, args in nodes.sent] == [SCRIPTS.settle.sha, SCRIPTS.correct.sha]
    nodes.answer(2, 0)
    assert got == [2, None]


# -- scripts that are not there ----------------------------------------------------------------------------------------


def test_an_unknown_script_is_loaded_and_sent_once_more(store: RedisStore, nodes: Told) -> None:
    """Nothing was carried out, so that this charges once (S-2)."""
    done: list[object] = []
    store.commit([OP], (), done.append)
    first = nodes.sent[0]
    nodes.answer(NOSCRIPT)
    assert nodes.sent[1:] == [(first[0], (b"SCRIPT", b"LOAD", SCRIPTS.commit.text)), first]
    assert done == []
    nodes.answer(SCRIPTS.commit.sha, NINE)
    assert done == [CommitResult([9.0], -1)]


def test_a_script_is_not_loaded_for_ever(store: RedisStore, nodes: Told) -> None:
    """A server that keeps none is an error, not a circle (S-3)."""
    done: list[object] = []
    store.commit([OP], (), done.append)
    nodes.answer(NOSCRIPT, b"", NOSCRIPT)
    (error,) = done
    assert isinstance(error, StateError)
    assert len(nodes.sent) == 3


def test_a_script_on_its_way_is_loaded_once(store: RedisStore, nodes: Told) -> None:
    """Many at once, one load a slot; the next time it is needed it is loaded again (S-2)."""
    for _ in range(3):
        store.commit([OP], (), print)
    store.commit([TakeTokens(TEN, "tb:other:k", 1.0, NO_LIMITER, NO_RULE)], (), print)
    store.settle([Settle(FingerprintSpec(1.0, 1), "ld:p:k", 1.0, 1)], print, failed=False)
    nodes.answer(*[NOSCRIPT] * 5)
    assert nodes.commands[5:] == [b"SCRIPT", *[b"EVALSHA"] * 3, b"SCRIPT", b"EVALSHA", b"SCRIPT", b"EVALSHA"]
    nodes.answer(*[StateError("gone")] * 8)
    store.commit([OP], (), print)
    nodes.answer(NOSCRIPT)
    assert nodes.commands[-2:] == [b"SCRIPT", b"EVALSHA"]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'. script: ab, on @user_script:1.", "OOM"),
        ("READONLY You can't write against a read only replica. script: ab", "READONLY"),
        ("ERR Error running script (call to f_ab): @user_script:5: @user_script: 5: -READONLY You can't", "READONLY"),
        ("ERR Error running script (call to f_ab): @user_script:5: -OOM command not allowed", "OOM"),
        ("LOADING Redis is loading the dataset in memory", "LOADING"),
        ("BUSY Redis is busy running a script.", "BUSY"),
        ("CLUSTERDOWN The cluster is down", "CLUSTERDOWN"),
        ("MOVED 3999 127.0.0.1:6381", "MOVED"),
        ("WRONGTYPE Operation against a key holding tb:secret:k", "WRONGTYPE"),
        ("ERR something about tb:secret:k", "ERR"),
    ],
)
def test_errors_say_what_is_wrong_and_name_no_key(store: RedisStore, nodes: Told, text: str, code: str) -> None:
    """Of every call, with the code an operator searches for (S-3, Y-1)."""
    got: list[object] = []
    store.commit([OP], (), got.append)
    store.read_windows(["win:p:a:"], got.append)
    store.settle([Settle(FingerprintSpec(1.0, 1), "ld:p:k", 1.0, 1)], got.append, failed=False)
    store.correct([AdjustCharge(TEN, "tb:p:k", 1.0)], got.append)
    store.drop(["tb:p:k"], got.append)
    store.probe(got.append)
    nodes.answer(*[RedisError(text)] * 6)
    assert len(got) == 6
    for error in got:
        assert isinstance(error, StateError)
        assert str(error).startswith(f"Redis returned {code}")
        assert "secret" not in str(error)


def test_a_lost_connection_says_so_itself(store: RedisStore, nodes: Told) -> None:
    """What nodes say is passed on (S-3)."""
    got: list[object] = []
    lost = StateError("the connection was lost")
    store.commit([OP], (), got.append)
    nodes.answer(lost)
    assert got == [lost]


@pytest.mark.parametrize("answer", [b"rubbish", 5, None, [], [b"not a time"], b"\x90"])
def test_an_answer_nobody_can_read_is_an_error(store: RedisStore, nodes: Told, answer: object) -> None:
    """It must not raise where other answers are read (S-3)."""
    got: list[object] = []
    ops: list[Op] = [OP]
    store.commit(ops, (), got.append)
    store.read_windows(["win:p:a:"], got.append)
    nodes.answer(answer, 5)
    assert [type(one) for one in got] == [StateError, StateError]


# -- dropping ----------------------------------------------------------------------------------------------------------


def test_drop_is_one_command_a_project(store: RedisStore, nodes: Told) -> None:
    """Projects may be in different slots; it is done when all are, and one error is enough (G-1, E-5)."""
    got: list[object] = []
    keys = ["win:p:a:", "win:q:a:", "cnt:p:b"]
    store.drop(keys, got.append)
    of_p = (redis_key("win:p:a:"), redis_key("cnt:p:b"))
    assert nodes.sent == [
        (of_p[0], (b"UNLINK", *of_p)),
        (redis_key("win:q:a:"), (b"UNLINK", redis_key("win:q:a:"))),
    ]
    nodes.answer(2)
    assert got == []
    nodes.answer(0)
    assert got == [None]
    store.drop(keys, got.append)
    nodes.answer(RedisError("READONLY no"), 1)
    assert isinstance(got[1], StateError)


def test_a_probe_writes(store: RedisStore, nodes: Told) -> None:
    """A server that is full or a replica answers, and is of no use; what it writes is gone in a second (S-3)."""
    got: list[object] = []
    store.probe(got.append)
    assert nodes.sent == [(b"bl:probe", (b"SET", b"bl:probe", b"", b"PX", b"1000"))]
    nodes.answer("OK")
    assert got == [None]


def test_a_note_for_other_instances(store: RedisStore, nodes: Told) -> None:
    """Any text, for its time; nothing where there is none (LD-5)."""
    got: list[object] = []
    store.note("chain:p:x", "a\udc80", 1.5)
    store.recall("chain:p:x", got.append)
    key = nodes.sent[0][0]
    assert nodes.sent == [(key, (b"SET", key, b"a\xed\xb2\x80", b"PX", b"1500")), (key, (b"GET", key))]
    assert key == redis_key("chain:p:x")
    nodes.answer("OK", b"a\xed\xb2\x80")
    store.recall("chain:p:x", got.append)
    nodes.answer(None)
    assert got == ["a\udc80", ""]
