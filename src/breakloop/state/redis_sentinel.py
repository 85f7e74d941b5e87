"""Asks Sentinels who the master is: for every new connection, and once a second while it is well. Sentinel itself ends
connections to an old master, but when it was replaced by order, only after some ten seconds of lost writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, cast

from breakloop.errors import StateError
from breakloop.state.redis_link import Answer, Link, RedisError
from breakloop.state.redis_open import Door, WantsPasswordError, open_link
from breakloop.state.redis_url import Address

_SENTINEL_S: Final = 0.5  # for one Sentinel; then the next is asked


class Sentinels:
    """A `Finder`. Sentinels get the servers' user and password only if they ask for one."""

    recheck_s: float | None = 1.0

    def __init__(self, door: Door, addresses: tuple[Address, ...], service: str) -> None:
        self._known = replace(door, db=0, writes=False, open_s=_SENTINEL_S)
        self._anonymous = replace(self._known, user="", password="")
        self._addresses = list(addresses)
        self._service = service
        self._links: dict[Address, Link] = {}

    async def find(self) -> Address:
        """Return the master's address, as the first Sentinel says that knows it. Raises `StateError`."""
        problems: list[str] = []
        for address in tuple(self._addresses):
            try:
                found = await self._master(address)
            except StateError as error:
                problems.append(str(error))
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)  # it answered, so the next time it is the first to be asked
            return found
        raise StateError(f"no Sentinel knows the master of {self._service}: {'; '.join(problems)}")

    async def ask(self, address: Address, *words: bytes) -> Answer:
        """Ask one Sentinel something about the service. Raises `StateError` when it does not answer."""
        link = self._links.get(address)
        if link is None or not link.alive:
            link = self._links[address] = await self._open(address)
        try:
            async with asyncio.timeout(_SENTINEL_S):
                answer = await link.call(b"SENTINEL", *words, self._service.encode())
        except TimeoutError:
            raise StateError(f"{address} did not answer within {_SENTINEL_S:g} s") from None
        if isinstance(answer, StateError) and not isinstance(answer, RedisError):
            raise StateError(f"{address}: {answer}")
        return answer

    def close(self) -> None:
        """End all connections."""
        for link in self._links.values():
            link.end("closed")
        self._links.clear()

    async def _open(self, address: Address) -> Link:
        try:
            return await open_link(self._anonymous, address)
        except WantsPasswordError:
            if not self._known.password:
                raise
            return await open_link(self._known, address)

    async def _master(self, address: Address) -> Address:
        answer = await self.ask(address, b"GET-MASTER-ADDR-BY-NAME")
        if isinstance(answer, RedisError):
            raise StateError(f"{address} answered {answer.code}: it is no Sentinel, or may not be asked")
        if answer is None:
            raise StateError(f"{address} does not know {self._service}")
        try:
            host, port = cast("list[bytes]", answer)
            return Address(host.decode(), int(port))
        except (AttributeError, TypeError, ValueError):
            raise StateError(f"{address} gave an answer that is no address") from None
