"""Slows down whoever tries tokens (SPEC Y-3): after some wrong ones, a peer's further attempts are looked at one after
the other, a few a second, right or wrong: else the quick answer would tell. What a right one is, is `tokens`'."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from breakloop.clock import Clock

FREE: Final = 20  # wrong attempts that cost nothing
FORGOTTEN_S: Final = 60.0  # so long after the last wrong one
APART_S: Final = 0.2
LONGEST_S: Final = 5.0  # nobody waits longer: then it is refused
_PEERS_MAX: Final = 10_000


@dataclass(slots=True)
class _Peer:
    wrong: int = 0
    last_at: float = 0.0
    free_at: float = 0.0  # when the next attempt is looked at


class SlowDown:
    """How long each peer waits."""

    __slots__ = ("_clock", "_peers")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def wait_s(self, peer: str) -> float | None:
        """Return how long this attempt has to wait before it is looked at; None: too many wait already."""
        known, now = self._peers.get(peer), self._clock.now()
        if known is None or known.wrong < FREE or now - known.last_at >= FORGOTTEN_S:
            return 0.0
        wait = max(known.free_at - now, 0.0)
        if wait > LONGEST_S:
            return None
        known.free_at = now + wait + APART_S
        return wait

    def wrong(self, peer: str) -> None:
        """The attempt was wrong."""
        now = self._clock.now()
        known = self._peers.get(peer)
        if known is None or now - known.last_at >= FORGOTTEN_S:
            known = self._peers[peer] = _Peer()
        known.wrong += 1
        known.last_at = now
        self._peers.move_to_end(peer)
        if len(self._peers) > _PEERS_MAX:
            self._peers.popitem(last=False)
