"""Scans of the keys in Redis, for operators: deleting by prefix, and finding breakers.

A scan takes one round trip per thousand keys, one server of a cluster after the other. A prefix that contains the
complete project (or agent, with `shard_by: agent`) is scanned only on the server that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from breakloop.errors import StateError
from breakloop.store.limit_ops import breaker_in_redis
from breakloop.store.ops import StoredBreaker
from breakloop.store.redis.scripts import names_place, plain_key, redis_key, redis_pattern
from breakloop.store.redis.topology import by_slot

_AT_ONCE: Final = b"1000"
_Send = Callable[[tuple[bytes, ...], Callable[[Any], None]], None]


class CommandSender(Protocol):
    """The part of `topology.Nodes` that is needed here."""

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        """Send a command to the node of `key`; `then` gets the response, or a `StateError` with a `code`."""
        ...

    def each(self) -> list[_Send]:
        """Return a send function for each server."""
        ...


class _Scan:
    """Scans all keys that match a pattern; subclasses process them."""

    __slots__ = ("_cursor", "_failed", "_nodes", "_pattern", "_servers", "_then")

    def __init__(self, nodes: CommandSender, prefix: str, then: Callable[[Any], None]) -> None:
        self._nodes = nodes
        self._pattern = redis_pattern(prefix)
        self._servers = [partial(nodes.send, redis_key(prefix))] if names_place(prefix) else nodes.each()
        self._then = then
        self._cursor = b"0"
        self._failed = False

    def scan(self) -> None:
        self._ask(b"SCAN", self._cursor, b"MATCH", self._pattern, b"COUNT", _AT_ONCE, then=self._scanned)

    def _ask(self, *args: bytes, then: Callable[[Any], None]) -> None:
        """Send a command to the server that is being scanned."""
        if self._servers:
            self._servers[-1](args, self._or_end(then))
        else:
            self._then(StateError("no server is known"))

    def _send(self, name: bytes, keys: list[bytes], then: Callable[[list[tuple[list[bytes], Any]]], None]) -> None:
        """Send a command for these keys, grouped by slot; `then` gets the keys with their responses."""
        slots = by_slot(keys)
        answers: list[tuple[list[bytes], Any]] = []

        def answered(there: list[bytes], answer: Any) -> None:
            answers.append((there, answer))
            if len(answers) == len(slots):
                then(answers)

        for there in slots:
            self._nodes.send(there[0], (name, *there), self._or_end(partial(answered, there)))

    def _or_end(self, then: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap a callback so that the first error ends the scan."""

        def answered(answer: Any) -> None:
            if self._failed:
                return
            if isinstance(answer, StateError):
                self._failed = True
                self._then(answer)
            else:
                then(answer)

        return answered

    def _scanned(self, answer: list[Any]) -> None:
        self._cursor, keys = answer
        if keys:
            self._found(keys)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._cursor == b"0":
            self._servers.pop()
        if self._servers:
            self.scan()
        else:
            self._over()

    def _found(self, keys: list[bytes]) -> None:
        raise NotImplementedError

    def _over(self) -> None:
        raise NotImplementedError


class ForgetKeys(_Scan):
    """Deletes the keys as it finds them; `then` gets how many."""

    __slots__ = ("_dropped",)

    def __init__(self, nodes: CommandSender, prefix: str, then: Callable[[int | StateError], None]) -> None:
        super().__init__(nodes, prefix, then)
        self._dropped = 0

    def _found(self, keys: list[bytes]) -> None:
        self._send(b"UNLINK", keys, self._unlinked)

    def _unlinked(self, answers: list[tuple[list[bytes], int]]) -> None:
        self._dropped += sum(dropped for _, dropped in answers)
        self._go_on()

    def _over(self) -> None:
        self._then(self._dropped)


class FoundKeys(_Scan):
    """Finds up to a number of keys, in their Redis form, and then stops."""

    __slots__ = ("_all", "_most")

    def __init__(
        self, nodes: CommandSender, prefix: str, most: int, then: Callable[[list[bytes] | StateError], None]
    ) -> None:
        super().__init__(nodes, prefix, then)
        self._most = most
        self._all: dict[bytes, None] = {}

    def _found(self, keys: list[bytes]) -> None:
        self._all |= dict.fromkeys(keys)
        if len(self._all) >= self._most:
            self._over()
        else:
            self._go_on()

    def _over(self) -> None:
        self._then(sorted(self._all)[: self._most])


class StoredBreakers(_Scan):
    """Reads breakers; `then` gets open ones by key, then closed ones that have a rate."""

    __slots__ = ("_kept", "_most", "_now")

    def __init__(
        self,
        nodes: CommandSender,
        prefix: str,
        most: int,
        now: float | None,
        then: Callable[[list[StoredBreaker] | StateError], None],
    ) -> None:
        super().__init__(nodes, prefix, then)
        self._most = most
        self._now = now  # set by a test; otherwise the time of Redis
        self._kept: dict[str, StoredBreaker] = {}

    def scan(self) -> None:
        """Read the server's time, then scan."""
        if self._now is None:
            self._ask(b"TIME", then=self._timed)
        else:
            super().scan()

    def _timed(self, told: list[bytes]) -> None:
        self._now = int(told[0]) + int(told[1]) / 1_000_000
        super().scan()

    def _found(self, keys: list[bytes]) -> None:
        self._send(b"MGET", keys, self._read)

    def _read(self, answers: list[tuple[list[bytes], list[bytes | None]]]) -> None:
        for keys, values in answers:
            for key, value in zip(keys, values, strict=True):
                found = breaker_in_redis(plain_key(key), value, self._now or 0.0)
                if found is not None:
                    self._kept[found.key] = found  # SCAN may return a key twice
        self._go_on()

    def _over(self) -> None:
        found = sorted(self._kept.values(), key=lambda one: (one.since is None, one.key))
        self._then(found[: self._most])
