"""State in Redis, where a project is spread over several slots of a cluster (SPEC E-5, `shard_by: agent`): what belongs
to an agent is in a slot of the agent's, what several agents share in the project's. A commit that touches both is one
script after the other, the agent's first. What must then be given back was charged for nothing: never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from breakloop.errors import StateError
from breakloop.store.keys import AGENT_MARK, place_of
from breakloop.store.ops import (
    DENIED_ELSEWHERE,
    ENFORCED,
    AdjustCharge,
    Charge,
    CheckBreaker,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Keyed,
    Op,
    Result,
    Settle,
    WindowWrite,
    denies,
)
from breakloop.store.redis.store import RedisStore

_Then = Callable[[CommitResult | StateError], None]
_Told = TypeVar("_Told", bound=Settle | AdjustCharge)


class ShardedCommit:
    """One decision as a row of commits, each of them in one slot: `next` says what, `took` is told what came of it.

    The results are those of one commit of all, as `store` says. Counts are made wherever they are. Limits are charged
    as long as nothing is known that denies them; `give_back` has those that a later commit denied. Only what a breaker
    has counted stays: it waits for all that stands before it in its group, if need be for a further commit.
    """

    __slots__ = ("_at", "_denied", "_kept", "_ops", "_own", "_parts", "_results", "_sent", "_turn")

    def __init__(self, ops: Sequence[Op], first: str) -> None:
        self._ops = ops
        self._parts = arranged(ops, first)
        self._results: list[Result] = [None] * len(ops)
        self._denied: dict[int, int] = {}  # group -> where
        for index, op in enumerate(ops):
            if isinstance(op, Deny):
                self._denied.setdefault(op.group, index)
        self._kept: list[tuple[int, float]] = []  # charges and flights, and when
        self._turn = 0
        self._own: frozenset[int] = frozenset()
        self._sent: list[int] = []
        self._at = 0.0

    def next(self) -> list[Op] | None:
        """Return the next commit, None where all is done. What an earlier one denied is refused there, in its place."""
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
        """Take note of what the last commit did."""
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
        """Return what all of them did together."""
        for at, op in enumerate(self._ops):
            if isinstance(op, Charge | CheckBreaker) and self._denied.get(op.group, at) < at:
                self._results[at] = None
        return CommitResult(self._results, self._denied.get(ENFORCED, -1), None, self._at)

    def give_back(self) -> tuple[list[AdjustCharge], list[Settle]]:
        """Return what undoes charges and flights that began before it was known that nothing may."""
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
    """Return in which commits operations are made: the place of each commit, and which are in it."""
    parts: list[tuple[str, list[int]]] = [(first, [])]
    latest: dict[int, int] = {}  # group -> the last commit with something that may deny it
    for at, op in enumerate(ops):
        if not isinstance(op, Keyed):
            continue
        where, group = place_of(op.key), op.group
        turn = latest.get(group, 0) if isinstance(op, CheckBreaker) else 0
        while turn < len(parts) and parts[turn][0] != where:
            turn += 1
        if turn == len(parts):
            parts.append((where, []))
        parts[turn][1].append(at)
        if not isinstance(op, CountFingerprint) or op.spec.denies:
            latest[group] = max(turn, latest.get(group, 0))
    return parts


class ShardedStore(RedisStore):
    """A `RemoteStore` for keys of two places: an agent's and its project's. Windows of one commit are of one place."""

    __slots__ = ()

    def commit(self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: _Then) -> None:
        """Carry out `ops` and write `windows`: at once where they share a slot, else in the order of `ShardedCommit`.

        Where a later script fails, what an earlier one has charged stays charged: who decides without the store then
        may let the call pass.
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
        if charges:
            self.correct(charges, _unheard)
        if flights:
            self.settle(flights, _unheard, failed=False)
        then(spread.committed())

    def _took(self, spread: ShardedCommit, then: _Then, done: CommitResult | StateError) -> None:
        if isinstance(done, StateError) or done.conflict is not None:
            then(done)
        else:
            spread.took(done)
            self._go_on(spread, (), then)

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        """Say that requests have ended; `then` gets how many counts were taken back."""
        parts = _by_place(ops)
        told = _Total(len(parts), then).answered if len(parts) > 1 else then
        for part in parts:
            super().settle(part, told, failed=failed)

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None:
        """Correct what was charged, each for itself."""
        parts = _by_place(ops)
        total = _Total(len(parts), lambda done: then(done if isinstance(done, StateError) else None))
        for part in parts:
            super().correct(part, total.answered if len(parts) > 1 else then)


class _Total:
    """One answer for several: the sum, or the first error."""

    __slots__ = ("_error", "_left", "_sum", "_then")

    def __init__(self, count: int, then: Callable[[int | StateError], None]) -> None:
        self._left = count
        self._then = then
        self._sum = 0
        self._error: StateError | None = None

    def answered(self, answer: int | StateError | None) -> None:
        """Take one of them."""
        self._left -= 1
        if isinstance(answer, StateError):
            self._error = self._error or answer
        else:
            self._sum += answer or 0
        if not self._left:
            self._then(self._sum if self._error is None else self._error)


def _by_place(ops: Sequence[_Told]) -> list[Sequence[_Told]]:
    """Return the operations of each place; where there is nothing to do, that."""
    parts: dict[str, list[_Told]] = {}
    for op in ops:
        parts.setdefault(place_of(op.key), []).append(op)
    found: list[Sequence[_Told]] = [*parts.values()]
    return found or [ops]


def _unheard(_answer: int | StateError | None) -> None:
    """Whoever was denied does not wait for it. Where it is lost, the charge stays until it expires."""
