"""The Redis servers behind a URL: a single server, a master behind Sentinel, or a cluster.

`Nodes` is the common interface: send a command to the node of its key and pass on the response. `OneNode` is a
single server or the master behind Sentinel. `ClusterNodes` has one connection per master and a slot map, which is
read again when it proves outdated; a command answered with MOVED or ASK was not executed, so only such commands are
sent again.

`Sentinels` finds the master for every new connection, and checks once a second while connected: Sentinel itself
closes connections to an old master, but after a manual failover only after about ten seconds of lost writes.

`PubSub` subscribes on a connection of its own. Redis does not store messages for disconnected clients, so `on_gap`
is called each time subscriptions become active, including the first. A client that reloads its data then misses
nothing.
"""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from breakloop.errors import StateError
from breakloop.store.redis.connection import (
    AddressFinder,
    Answer,
    Changed,
    ConnectOptions,
    ReconnectBackoff,
    Reconnector,
    RedisConnection,
    RedisError,
    Send,
    Then,
    WantsPasswordError,
    answer_to,
    door_for,
    ignore,
    open_link,
)
from breakloop.store.redis.url import Address, RedisUrl

SLOTS: Final = 16384


class SlotShare(NamedTuple):
    """The slots from `first` to `last`, and their master."""

    first: int
    last: int
    owner: Address


def slot_of(key: bytes) -> int:
    """Return the slot of a key: that of its hash tag, if it has one."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) & 16383


def by_slot(keys: Iterable[bytes]) -> list[list[bytes]]:
    """Group keys that may be sent in one command: those with the same hash tag."""
    tags: dict[bytes, list[bytes]] = {}
    for key in keys:
        tags.setdefault(key.partition(b"}")[0], []).append(key)
    return list(tags.values())


def read_shares(answer: list[Any], asked: Address) -> list[SlotShare]:
    """Parse the response to CLUSTER SLOTS; a node without a host has the host of `asked`. Raises `StateError`."""
    try:
        shares = [SlotShare(int(first), int(last), _address(owner, asked)) for first, last, owner, *_ in answer]
    except (TypeError, ValueError, IndexError):
        raise StateError(f"{asked} sent an invalid slot map") from None
    return [share for share in shares if 0 <= share.first <= share.last < SLOTS]


def _address(node: list[Any], asked: Address) -> Address:
    host = bytes(node[0] or b"").decode()
    return Address(asked.host if host in ("", "?") else host, int(node[1]))


def redirection(error: RedisError, asked: Address) -> tuple[int, Address]:
    """Parse `MOVED 3999 10.0.0.1:6381` or `ASK ...`, a response of `asked`, into the slot and the address."""
    _, slot, where = str(error).split(" ", 2)
    host, _, port = where.rpartition(":")
    return int(slot), Address(asked.host if host in ("", "?") else host.strip("[]"), int(port))


_REDIRECTIONS_MAX: Final = 5
_LEAVE_S: Final = 2.0
_OUTDATED: Final = frozenset(("CLUSTERDOWN", "READONLY"))
_QUESTION: Final = (b"CLUSTER", b"SLOTS")


class _Node(Reconnector):
    def __init__(self, door: ConnectOptions, address: Address, changed: Changed) -> None:
        super().__init__(door, AddressFinder(address))
        self.address = address
        self.on_change = changed


class ClusterNodes:
    """All masters. `up` while every slot has a connected owner."""

    def __init__(
        self, door: ConnectOptions, seeds: tuple[Address, ...], backoff: ReconnectBackoff | None = None
    ) -> None:
        self.up = False
        self.on_change: Changed | None = None
        self._door = door
        self._seeds = seeds
        self._backoff = backoff or ReconnectBackoff()
        self._nodes: dict[Address, _Node] = {}
        self._slots: list[_Node | None] = [None] * SLOTS
        self._owners: set[_Node] = set()
        self._covered: bool  # whether every slot has an owner
        self._why = "not connected yet"
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[_Node] = set()
        self._closed = False

    # -- commands -----------------------------------------------------------------------------------------------------

    def send(self, key: bytes, args: tuple[bytes, ...], then: Then) -> None:
        node = self._slots[slot_of(key)]
        if node is None or node.link is None:
            why = self._why if node is None else f"{node.address}: {node.why}"
            self._door.loop.call_soon(then, StateError(why))
        else:
            node.link.send(args, partial(self._answered, node, args, then, 0))

    def each(self) -> list[Send]:
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
            then(StateError("the cluster's nodes do not agree on the owner of the key"))
            return
        other = self._node(address)
        if error.code == "ASK":
            other.send_soon((b"ASKING",), ignore)
        elif 0 <= slot < SLOTS:
            self._slots[slot] = other
            self._refresh_soon(at_once=True)
        other.send_soon(args, partial(self._answered, other, args, then, times + 1))

    # -- start and close ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._refresh()
        await asyncio.gather(*(node.settled() for node in self._owners))
        if not self.up:
            raise StateError(next((node.why for node in self._owners if node.link is None), self._why))

    async def close(self) -> None:
        self._closed, self.on_change = True, None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for node in (*self._nodes.values(), *self._leaving):
            await node.close()

    def _node(self, address: Address) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(self._door, address, partial(self._changed, address))
            node.start_soon()
        return node

    def _changed(self, address: Address, up: bool, why: str) -> None:  # noqa: FBT001 - as `Changed`
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

    # -- slot map -----------------------------------------------------------------------------------------------------

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

    async def _ask_anybody(self) -> list[SlotShare]:
        problems: list[str] = []
        connected = [(address, node.link) for address, node in self._nodes.items() if node.link is not None]
        others = [(address, None) for address in (*self._seeds, *self._nodes)]
        for address, link in dict[Address, RedisConnection | None]([*others, *connected]).items():
            try:
                return await self._ask(address, link)
            except StateError as error:
                problems.append(str(error))
        raise StateError(f"no node of the cluster responds: {'; '.join(problems)}")

    async def _ask(self, address: Address, link: RedisConnection | None) -> list[SlotShare]:
        own = link or await open_link(self._door, address)
        try:
            async with asyncio.timeout(self._door.open_s):
                answer = await own.call(*_QUESTION)
        except TimeoutError:
            raise StateError(f"{address} did not respond within {self._door.open_s:g} s") from None
        finally:
            if link is None:
                own.end("asked")
        if isinstance(answer, list) and answer:
            return read_shares(answer, address)
        if isinstance(answer, RedisError):
            raise StateError(f"{address} returned {answer.code}: it is not a cluster, or denies CLUSTER SLOTS")
        raise StateError(f"{address}: {answer if isinstance(answer, StateError) else 'no slot has an owner'}")

    def _apply(self, shares: list[SlotShare]) -> None:
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
        self._why = "connected to every master" if self._covered else "some slots of the cluster have no owner"
        self._look(self._why)

    def _leave(self, node: _Node) -> None:
        """Close a node later: it may still respond to commands sent before it lost its slots."""
        self._leaving.add(node)
        self._door.loop.call_later(_LEAVE_S, self._left, node)

    def _left(self, node: _Node) -> None:
        self._leaving.discard(node)
        node.end("it has no slots any more")


_SENTINEL_S: Final = 0.5  # per Sentinel; then the next is tried


class Sentinels(AddressFinder):
    """Finds the master. Sentinels get the user and password of the servers only if they require authentication."""

    recheck_s = 1.0

    def __init__(self, door: ConnectOptions, addresses: tuple[Address, ...], service: str) -> None:
        super().__init__(*addresses)
        self._known = replace(door, db=0, writes=False, open_s=_SENTINEL_S)
        self._anonymous = replace(self._known, user="", password="")
        self._service = service
        self._links: dict[Address, RedisConnection] = {}

    async def find(self) -> Address:
        """Return the master's address from the first Sentinel that knows it. Raises `StateError`."""
        problems: list[str] = []
        for address in tuple(self._addresses):
            try:
                found = await self._master(address)
            except StateError as error:
                problems.append(str(error))
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)  # it responded, so it is tried first the next time
            return found
        raise StateError(f"no Sentinel knows the master of {self._service}: {'; '.join(problems)}")

    async def ask(self, address: Address, *words: bytes) -> Answer:
        """Send a query about the service to one Sentinel. Raises `StateError` if it does not respond."""
        link = self._links.get(address)
        if link is None or not link.alive:
            link = self._links[address] = await self._open(address)
        try:
            async with asyncio.timeout(_SENTINEL_S):
                answer = await link.call(b"SENTINEL", *words, self._service.encode())
        except TimeoutError:
            raise StateError(f"{address} did not respond within {_SENTINEL_S:g} s") from None
        if isinstance(answer, StateError) and not isinstance(answer, RedisError):
            raise StateError(f"{address}: {answer}")
        return answer

    def close(self) -> None:
        for link in self._links.values():
            link.end("closed")

    async def _open(self, address: Address) -> RedisConnection:
        try:
            return await open_link(self._anonymous, address)
        except WantsPasswordError:
            if not self._known.password:
                raise
            return await open_link(self._known, address)

    async def _master(self, address: Address) -> Address:
        answer = await self.ask(address, b"GET-MASTER-ADDR-BY-NAME")
        if isinstance(answer, RedisError):
            raise StateError(f"{address} returned {answer.code}: it is not a Sentinel, or denies the command")
        if answer is None:
            raise StateError(f"{address} has no master named {self._service}")
        try:
            host, port = cast("list[bytes]", answer)
            return Address(host.decode(), int(port))
        except (AttributeError, TypeError, ValueError):
            raise StateError(f"{address} returned an invalid address") from None


COMMAND_S: Final = 5.0


class CommandSender(Protocol):
    """Sends commands to the servers behind a URL, in any topology."""

    def send(self, key: bytes, args: tuple[bytes, ...], then: Then) -> None:
        """Send to the node of `key`'s slot. Never raises; never resends a command that may have been executed.

        `then` gets the response or a `StateError`, once, and not before this returns.
        """

    def each(self) -> list[Send]:
        """Return a send function for each server, for commands that go to all; none if no server is known."""


class Nodes(CommandSender, Protocol):
    """The servers behind a URL, and the connections to them."""

    up: bool  # every key has a connected server
    on_change: Changed | None  # called when `up` changes, with a reason that contains no secrets

    async def start(self) -> None:
        """Connect. Raises `StateError` if that fails, but keeps trying until `close`."""

    async def close(self) -> None:
        """Close all connections, stop reconnecting, and report nothing more."""


class OneNode(Reconnector):
    """A single server; the finder supplies its current address."""

    def send(self, key: bytes, args: tuple[bytes, ...], then: Then) -> None:  # noqa: ARG002 - there is one place only
        """Send the command; the key makes no difference."""
        link = self.link
        if link is None:
            self._door.loop.call_soon(then, StateError(self.why))
        else:
            link.send(args, then)

    def each(self) -> list[Send]:
        return [partial(self.send, b"")]

    async def close(self) -> None:
        self.on_change = None
        await super().close()


def make_nodes(url: RedisUrl, loop: asyncio.AbstractEventLoop) -> Nodes:
    """Return the servers of a URL, not yet connected. Raises `SettingsError` for certificates that cannot be used."""
    door = door_for(url, loop)
    if url.kind == "cluster":
        return ClusterNodes(door, url.addresses)
    return OneNode(door, finder_for(url, door))


def finder_for(url: RedisUrl, door: ConnectOptions) -> AddressFinder:
    """Return the finder of the server that accepts writes, or in a cluster of any node."""
    if url.kind == "sentinel":
        return Sentinels(door, url.addresses, url.service)
    return AddressFinder(*url.addresses)


async def command(nodes: Nodes, *args: bytes | str | int, key: bytes | None = None) -> Answer:
    """Send one command and wait for the response, for operators; errors, including timeouts, are returned.

    `key` determines the node; the default is the first argument of the command.
    """
    packed = tuple(arg if isinstance(arg, bytes) else str(arg).encode() for arg in args)
    place = key if key is not None else packed[1] if len(packed) > 1 else b""
    try:
        async with asyncio.timeout(COMMAND_S):
            return await answer_to(partial(nodes.send, place, packed))
    except TimeoutError:
        return StateError(f"Redis did not respond within {COMMAND_S:g} s")


OnMessage = Callable[[bytes], None]


class PubSub(Reconnector):
    """Subscriptions that are restored after a lost connection. In a cluster any node can be used: nodes forward
    messages.
    """

    def __init__(self, url: RedisUrl, loop: asyncio.AbstractEventLoop) -> None:
        door = door_for(url, loop)
        super().__init__(door, finder_for(url, door))
        self.on_gap: Callable[[], None] | None = None
        self.published = self._published
        self._channels: dict[bytes, OnMessage] = {}
        self._missing: int  # subscriptions that are not confirmed yet

    def subscribe(self, channel: bytes, on_message: OnMessage) -> None:
        """Receive the messages of `channel` once there is a connection; one receiver per channel."""
        known = channel in self._channels
        self._channels[channel] = on_message
        if self.link is not None and not known:
            self._missing += 1
            self._ask(self.link, channel)

    async def close(self) -> None:
        self.on_change = self.on_gap = None
        await super().close()

    def _changed(self, up: bool, why: str) -> None:  # noqa: FBT001 - as `Changed`
        if self.link is not None:
            self._missing = len(self._channels)
            for channel in self._channels:
                self._ask(self.link, channel)
        super()._changed(up, why)

    def _ask(self, link: RedisConnection, channel: bytes) -> None:
        def confirmed(answer: Answer) -> None:
            if isinstance(answer, StateError):
                link.end(f"a subscription was refused: {answer}")
            elif link is self.link:
                self._missing -= 1
                if not self._missing and self.on_gap is not None:
                    self.on_gap()

        link.send((b"SUBSCRIBE", channel), confirmed)

    def _published(self, message: list[Any]) -> None:
        _, channel, data = message
        on_message = self._channels.get(channel)
        if on_message is not None:
            on_message(data)
