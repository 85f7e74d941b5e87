from __future__ import annotations

import pytest
from redis.crc import key_slot

from breakloop.errors import StateError
from breakloop.store.redis.connection import RedisError
from breakloop.store.redis.topology import SlotShare, by_slot, read_shares, redirection, slot_of
from breakloop.store.redis.url import Address

ASKED = Address("10.0.0.9", 7000)


def test_slots_as_the_cluster_specification_has_them() -> None:
    assert slot_of(b"123456789") == 0x31C3  # the CRC16's own check value, which is below 16384
    assert slot_of(b"foo") == 12182
    assert slot_of(b"bl:{acme}:ld:1") == slot_of(b"acme") == slot_of(b"bl:{acme}:win:2")


@pytest.mark.parametrize(
    "key", [b"", b"{}", b"{}a", b"a{}{b}", b"{{a}}", b"}a{", b"{a", b"a}b", b"a}b{c}d{e}", bytes(range(256))]
)
def test_slots_as_another_client_has_them(key: bytes) -> None:
    assert slot_of(key) == key_slot(key)


def test_the_map() -> None:
    """Hosts, names, and nodes that do not say where they are."""
    answer = [
        [0, 100, [b"10.0.0.1", 7001, b"id", []], [b"10.0.0.2", 7002, b"replica"]],
        [101, 200, [b"", 7003, b"id"]],
        [201, 300, [None, 7004, b"id"]],
        [301, 16383, [b"redis-3.internal", 7005, b"id", [b"ip", b"10.0.0.3"]]],
        [350, 350, [b"10.0.0.4", 7006]],
        [400, 99999, [b"10.0.0.1", 7001]],
        [-1, 5, [b"10.0.0.1", 7001]],
        [16000, 16384, [b"10.0.0.1", 7001]],
        [7, 6, [b"10.0.0.1", 7001]],
    ]
    assert read_shares(answer, ASKED) == [
        SlotShare(0, 100, Address("10.0.0.1", 7001)),
        SlotShare(101, 200, Address("10.0.0.9", 7003)),
        SlotShare(201, 300, Address("10.0.0.9", 7004)),
        SlotShare(301, 16383, Address("redis-3.internal", 7005)),
        SlotShare(350, 350, Address("10.0.0.4", 7006)),
    ]


@pytest.mark.parametrize("answer", [[1], [[0, 1]], [[0, 1, []]], [[0, b"x", [b"h", 1]]], [[0, 1, [b"h", b"port"]]]])
def test_a_map_that_cannot_be_read(answer: list[object]) -> None:
    with pytest.raises(StateError, match=r"10\.0\.0\.9:7000 sent an invalid slot map"):
        read_shares(answer, ASKED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MOVED 3999 127.0.0.1:6381", (3999, Address("127.0.0.1", 6381))),
        ("ASK 0 redis-1.internal:6381", (0, Address("redis-1.internal", 6381))),
        ("MOVED 3999 :6381", (3999, Address("10.0.0.9", 6381))),
        ("MOVED 3999 ?:6381", (3999, Address("10.0.0.9", 6381))),
        ("MOVED 3999 fe80::1:6381", (3999, Address("fe80::1", 6381))),
    ],
)
def test_redirections(text: str, expected: tuple[int, Address]) -> None:
    assert redirection(RedisError(text), ASKED) == expected


@pytest.mark.parametrize("text", ["MOVED", "MOVED 1", "MOVED x h:1", "MOVED 1 h:x"])
def test_redirections_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError):
        redirection(RedisError(text), ASKED)


def test_keys_that_may_go_together() -> None:
    """Those of one hash tag, in the order in which they came (E-5)."""
    one, other, third = b"bl:{p|a}:ld:p|a:1", b"bl:{p}:ld:p:1", b"bl:{p|a}:tb:p|a:1"
    assert by_slot([one, other, third]) == [[one, third], [other]]
    assert by_slot([]) == []
