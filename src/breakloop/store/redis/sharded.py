"""State in Redis with a project spread over several slots of a cluster (`shard_by: agent`).

The state of an agent is in the agent's slot, state that agents share is in the project's. A commit that touches both
runs one script after the other, the agent's first. Charges that a later script denies are refunded: until then too
much is charged, never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from breakloop.errors import StateError
from breakloop.store.keys import AGENT_MARK, place_of
from breakloop.store.limit_ops import Charge
from breakloop.store.ops import (
    DENIED_ELSEWHERE,
    ENFORCED,
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Keyed,
    LimitOp,
    Op,
    Result,
    Settle,
    WindowWrite,
    denies,
)
from breakloop.store.redis.connection import ignore
from breakloop.store.redis.store import RedisStore, Total

_Then = Callable[[CommitResult | StateError], None]
_Told = TypeVar("_Told", bound=Settle | AdjustCharge)


class ShardedCommit:
    """One decision as a sequence of commits with one slot each: `next` returns a commit, `took` records its result.

    The combined results are those of a single commit. Counts are made in any case. Limits are charged as long as no
    denial is known; `give_back` returns the refunds for those that a later commit denied. An operation that is no
    `Charge` (the count of a breaker) cannot be undone, so it runs after everything that precedes it in its group, in a
    further commit if necessary.
    """

    __slots__ = ("_at", "_denied", "_kept", "_ops", "_own", "_parts", "_results", "_sent", "_turn")

    def __init__(self, ops: Sequence[Op], first: str) -> None:
        self._ops = ops
        self._parts = arranged(ops, first)
        self._results: list[Result] = [None] * len(ops)
        self._denied: dict[int, int] = {}  # group -> index of the denial
        for index, op in enumerate(ops):
            if isinstance(op, Deny):
                self._denied.setdefault(op.group, index)
        self._kept: list[tuple[int, float]] = []  # charges and flights, and their time
        self._turn = 0
        self._own: frozenset[int] = frozenset()
        self._sent: list[int] = []
        self._at = 0.0

    def next(self) -> list[Op] | None:
        """Return the next commit, or None if all are done. Earlier denials are repeated in their position."""
        while self._turn < len(self._parts):
            _, own = self._parts[self._turn]
            if self._turn == 0 or any(map(self._matters, own)):
                self._own = frozenset(own)
                self._sent = sorted(self._own.union(self._denied.values()))
                return [
                    self._ops[at] if at in self._own else Deny(DENIED_ELSEWHERE, self._ops[at].group)
                    for at in self._sent
                ]
            self._turn += 1
        return None

    def _matters(self, at: int) -> bool:
        op = self._ops[at]
        return isinstance(op, CountFingerprint) or self._denied.get(op.group, at) >= at

    def took(self, done: CommitResult) -> None:
        """Record the result of the last commit."""
        if not self._turn:
            self._at = done.at
        self._turn += 1
        for at, result in zip(self._sent, done.results, strict=True):
            if at in self._own:
                self._results[at], op = result, self._ops[at]
                if denies(op, result):
                    self._denied[op.group] = min(at, self._denied.get(op.group, at))
        for at in self._own:
            op, result = self._ops[at], self._results[at]
            flies = type(result) is FingerprintCount and result.flight > 0
            if (flies or (isinstance(op, Charge) and result is not None)) and not self._off(op.group):
                self._kept.append((at, done.at))

    def _off(self, group: int) -> bool:
        return group in self._denied or ENFORCED in self._denied

    def committed(self) -> CommitResult:
        for at, op in enumerate(self._ops):
            if isinstance(op, LimitOp) and self._denied.get(op.group, at) < at:
                self._results[at] = None
        return CommitResult(self._results, self._denied.get(ENFORCED, -1), None, self._at)

    def give_back(self) -> tuple[list[AdjustCharge], list[Settle]]:
        """Return the operations that undo charges and flights made before a denial was known."""
        charges: list[AdjustCharge] = []
        flights: list[Settle] = []
        for at, when in self._kept:
            op, result = self._ops[at], self._results[at]
            if not self._off(op.group):
                continue
            if isinstance(op, CountFingerprint) and isinstance(result, FingerprintCount):
                flights.append(Settle(op.spec, op.key, when, result.flight))
            elif isinstance(op, Charge):
                charges.append(AdjustCharge(op.spec, op.key, -op.cost))
        return charges, flights


def arranged(ops: Sequence[Op], first: str) -> list[tuple[str, list[int]]]:
    """Return the commits to make: the place of each, and the indexes of its operations."""
    parts: list[tuple[str, list[int]]] = [(first, [])]
    latest: dict[int, int] = {}  # group -> the last commit with an operation that may deny it
    for at, op in enumerate(ops):
        if not isinstance(op, Keyed):
            continue
        where, group = place_of(op.key), op.group
        turn = latest.get(group, 0) if isinstance(op, LimitOp) and not isinstance(op, Charge) else 0
        while turn < len(parts) and parts[turn][0] != where:
            turn += 1
        if turn == len(parts):
            parts.append((where, []))
        parts[turn][1].append(at)
        if not isinstance(op, CountFingerprint) or op.spec.denies:
            latest[group] = max(turn, latest.get(group, 0))
    return parts


class ShardedStore(RedisStore):
    """A `RemoteStore` for keys of two places: an agent's and its project's. A commit has windows of one place."""

    __slots__ = ()

    def commit(self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: _Then) -> None:
        """Execute `ops` and write `windows`: in one script if they share a slot, otherwise in the order of
        `ShardedCommit`.

        If a later script fails, the charges of earlier ones remain. A caller that then decides without the store may
        allow the call.
        """
        places = {place_of(op.key): None for op in ops if isinstance(op, Keyed)}
        own = next((one for one in places if AGENT_MARK in one), next(iter(places), ""))
        first = place_of(windows[0].key) if windows else own
        if not places.keys() - {first}:
            super().commit(ops, windows, then)
        else:
            self._go_on(ShardedCommit(ops, first), windows, then)

    def _go_on(self, spread: ShardedCommit, windows: Sequence[WindowWrite], then: _Then) -> None:
        ops = spread.next()
        if ops is not None:
            super().commit(ops, windows, partial(self._took, spread, then))
            return
        charges, flights = spread.give_back()
        # A denied request does not wait for its refund. If that is lost, the charge stays until it expires.
        if charges:
            self.correct(charges, ignore)
        if flights:
            self.settle(flights, ignore, failed=False)
        then(spread.committed())

    def _took(self, spread: ShardedCommit, then: _Then, done: CommitResult | StateError) -> None:
        if isinstance(done, StateError) or done.conflict is not None:
            then(done)
        else:
            spread.took(done)
            self._go_on(spread, (), then)

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        """Report that requests have ended; `then` gets how many counts were taken back."""
        parts = _by_place(ops)
        told = Total(len(parts), then).answered if len(parts) > 1 else then
        for part in parts:
            super().settle(part, told, failed=failed)

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None:
        parts = _by_place(ops)
        total = Total(len(parts), lambda done: then(done if isinstance(done, StateError) else None))
        for part in parts:
            super().correct(part, total.answered if len(parts) > 1 else then)


def _by_place(ops: Sequence[_Told]) -> list[Sequence[_Told]]:
    """Return the operations of each place, or a single empty list if there are none."""
    parts: dict[str, list[_Told]] = {}
    for op in ops:
        parts.setdefault(place_of(op.key), []).append(op)
    found: list[Sequence[_Told]] = [*parts.values()]
    return found or [ops]
