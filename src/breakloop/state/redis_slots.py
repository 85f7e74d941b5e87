"""Which keys belong together in a Redis Cluster and who has them: slots, the map of slots, what redirections say."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from breakloop.errors import StateError
from breakloop.state.redis_link import RedisError
from breakloop.state.redis_url import Address

SLOTS: Final = 16384


class Share(NamedTuple):
    """The slots from `first` to `last`, and the master that has them."""

    first: int
    last: int
    owner: Address


def slot_of(key: bytes) -> int:
    """Return a key's slot: that of its hash tag, if it has one."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) & 16383


def by_slot(keys: Iterable[bytes]) -> list[list[bytes]]:
    """Return keys of ours that may go into one command together: those of one hash tag."""
    tags: dict[bytes, list[bytes]] = {}
    for key in keys:
        tags.setdefault(key.partition(b"}")[0], []).append(key)
    return list(tags.values())


def read_shares(answer: list[Any], asked: Address) -> list[Share]:
    """Read the answer to CLUSTER SLOTS; a node without a host is where `asked` is. Raises `StateError`."""
    try:
        shares = [Share(int(first), int(last), _address(owner, asked)) for first, last, owner, *_ in answer]
    except (TypeError, ValueError, IndexError):
        raise StateError(f"{asked} gave a map of slots that cannot be read") from None
    return [share for share in shares if 0 <= share.first <= share.last < SLOTS]


def _address(node: list[Any], asked: Address) -> Address:
    host = bytes(node[0] or b"").decode()
    return Address(asked.host if host in ("", "?") else host, int(node[1]))


def redirection(error: RedisError, asked: Address) -> tuple[int, Address]:
    """Read `MOVED 3999 10.0.0.1:6381` or `ASK ...`, answered by `asked`: the slot, and who to turn to."""
    _, slot, where = str(error).split(" ", 2)
    host, _, port = where.rpartition(":")
    return int(slot), Address(asked.host if host in ("", "?") else host.strip("[]"), int(port))
