"""`Nodes` of a Redis Cluster: one connection to each master, and the map of slots, read again whenever it was wrong.

A command that was answered MOVED or ASK was not carried out, so it is sent on, and only then. Which slot a key is in
and what redirections say is `redis_slots`'; a single connection is `redis_keeper`'s.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from breakloop.errors import StateError
from breakloop.state.redis_keeper import Backoff, Changed, Keeper, OneOf
from breakloop.state.redis_link import Answer, Link, RedisError, Send, Then
from breakloop.state.redis_open import Door, open_link
from breakloop.state.redis_slots import SLOTS, Share, read_shares, redirection, slot_of
from breakloop.state.redis_url import Address

_REDIRECTIONS_MAX: Final = 5
_LEAVE_S: Final = 2.0
_OUTDATED: Final = frozenset(("CLUSTERDOWN", "READONLY"))
_QUESTION: Final = (b"CLUSTER", b"SLOTS")


class _Node(Keeper):
    """A master, at a fixed address."""

    def __init__(self, door: Door, address: Address, changed: Changed) -> None:
        super().__init__(door, OneOf(address), changed)
        self.address = address


class ClusterNodes:
    """All masters. `up` while every slot has an owner that is connected."""

    def __init__(self, door: Door, seeds: tuple[Address, ...], backoff: Backoff | None = None) -> None:
        self.up = False
        self.on_change: Changed | None = None
        self._door = door
        self._seeds = seeds
        self._backoff = backoff or Backoff()
        self._nodes: dict[Address, _Node] = {}
        self._slots: list[_Node | None] = [None] * SLOTS
        self._owners: set[_Node] = set()
        self._covered = False
        self._why = "not connected yet"
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[_Node] = set()
        self._closed = False

    # -- commands -----------------------------------------------------------------------------------------------------

    def send(self, key: bytes, args: tuple[bytes, ...], then: Then) -> None:
        """Send to the owner of `key`'s slot; `then` gets the answer, or a `StateError`, never before this returns."""
        node = self._slots[slot_of(key)]
        if node is None or node.link is None:
            why = self._why if node is None else f"{node.address}: {node.why}"
            self._door.loop.call_soon(then, StateError(why))
        else:
            node.link.send(args, partial(self._answered, node, args, then, 0))

    def each(self) -> list[Send]:
        """Return a way to send to each master."""
        return [partial(self._send_to, node) for node in self._owners]

    def _send_to(self, node: _Node, args: tuple[bytes, ...], then: Then) -> None:
        if node.link is None:
            self._door.loop.call_soon(then, StateError(f"{node.address}: {node.why}"))
        else:
            node.link.send(args, then)

    def _answered(self, node: _Node, args: tuple[bytes, ...], then: Then, times: int, answer: Answer) -> None:
        if type(answer) is RedisError:
            code = answer.code
            if code in ("MOVED", "ASK"):
                self._send_on(node, args, then, times, answer)
                return
            if code in _OUTDATED:
                self._refresh_soon()
        then(answer)

    def _send_on(self, node: _Node, args: tuple[bytes, ...], then: Then, times: int, error: RedisError) -> None:
        try:
            slot, address = redirection(error, node.address)
        except ValueError:
            then(error)
            return
        if times >= _REDIRECTIONS_MAX or self._closed:
            then(StateError("the cluster's nodes do not agree on who has the key"))
            return
        other = self._node(address)
        if error.code == "ASK":
            other.send_soon((b"ASKING",), _whatever)
        elif 0 <= slot < SLOTS:
            self._slots[slot] = other
            self._refresh_soon(at_once=True)
        other.send_soon(args, partial(self._answered, other, args, then, times + 1))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the nodes and connect to all. Raises `StateError` when that fails; it goes on trying then, too."""
        await self._refresh()
        await asyncio.gather(*(node.settled() for node in self._owners))
        if not self.up:
            raise StateError(self._why)

    async def close(self) -> None:
        """End all connections, try no more, and say nothing more."""
        self._closed, self.on_change = True, None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for node in (*self._nodes.values(), *self._leaving):
            await node.close()
        self._look("closed")

    def _node(self, address: Address) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(self._door, address, partial(self._changed, address))
            node.start_soon()
        return node

    def _changed(self, address: Address, up: bool, why: str) -> None:  # noqa: FBT001 - as Keeper tells it
        if not up:
            self._why = f"{address}: {why}"
            self._refresh_soon()
        self._look(self._why if not up else why)

    def _look(self, why: str) -> None:
        up = self._covered and not self._closed and all(node.link is not None for node in self._owners)
        if up != self.up:
            self.up = up
            if up:
                self._backoff.reset()
            if self.on_change is not None:
                self.on_change(up, why)

    # -- the map of slots ---------------------------------------------------------------------------------------------

    def _refresh_soon(self, *, at_once: bool = False) -> None:
        if self._closed or self._timer is not None or self._task is not None:
            return
        delay_s = 0.0 if at_once else self._backoff.next_s()
        self._timer = self._door.loop.call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = self._door.loop.create_task(self._refresh_task())

    async def _refresh_task(self) -> None:
        await self._refresh()
        self._task = None
        if not self.up:
            self._refresh_soon()

    async def _refresh(self) -> None:
        try:
            shares = await self._ask_anybody()
        except StateError as error:
            self._why = str(error)
            self._refresh_soon()
        else:
            self._apply(shares)

    async def _ask_anybody(self) -> list[Share]:
        problems: list[str] = []
        connected = [(address, node.link) for address, node in self._nodes.items() if node.link is not None]
        others = [(address, None) for address in (*self._seeds, *self._nodes)]
        for address, link in dict[Address, Link | None]([*others, *connected]).items():
            try:
                return await self._ask(address, link)
            except StateError as error:
                problems.append(str(error))
        raise StateError(f"no node of the cluster answers: {'; '.join(problems)}")

    async def _ask(self, address: Address, link: Link | None) -> list[Share]:
        own = link or await open_link(self._door, address)
        try:
            async with asyncio.timeout(self._door.open_s):
                answer = await own.call(*_QUESTION)
        except TimeoutError:
            raise StateError(f"{address} did not answer within {self._door.open_s:g} s") from None
        finally:
            if link is None:
                own.end("asked")
        if isinstance(answer, list) and answer:
            return read_shares(answer, address)
        if isinstance(answer, RedisError):
            raise StateError(f"{address} answered {answer.code}: it is no cluster, or may not be asked")
        raise StateError(f"{address}: {answer if isinstance(answer, StateError) else 'no slot has an owner'}")

    def _apply(self, shares: list[Share]) -> None:
        slots: list[_Node | None] = [None] * SLOTS
        for first, last, owner in shares:
            slots[first : last + 1] = [self._node(owner)] * (last + 1 - first)
        self._slots = slots
        self._covered = None not in slots
        self._owners = {node for node in slots if node is not None}
        for address, node in tuple(self._nodes.items()):
            if node not in self._owners:
                del self._nodes[address]
                self._leave(node)
        if not self._covered:
            self._why = "some slots of the cluster have no owner"
        self._look(self._why if not self._covered else "connected to every master")

    def _leave(self, node: _Node) -> None:
        """What it was asked before it lost its slots, it may still answer."""
        self._leaving.add(node)
        self._door.loop.call_later(_LEAVE_S, self._left, node)

    def _left(self, node: _Node) -> None:
        self._leaving.discard(node)
        node.end("it has no slots any more")


def _whatever(_answer: Answer) -> None:
    """ASKING is answered, too."""
