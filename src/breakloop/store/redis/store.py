"""State in Redis or Valkey (`redis://` and related schemes): each call is one command with an asynchronous response.

The scripts in lua/ compute, `scripts` encodes their arguments, `topology` routes commands to the node of a key. This
module loads missing scripts, translates errors, and handles responses that cannot be decoded. For operators it also
scans the keys.

`ShardedStore` spreads a project over several slots of a cluster (`shard_by: agent`). The state of an agent is in the
agent's slot, state that agents share is in the project's. A commit that touches both runs one script after the other,
the agent's first. Charges that a later script denies are refunded: until then too much is charged, never too little.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from breakloop.errors import StateError
from breakloop.store.keys import AGENT_MARK, place_of, split_place
from breakloop.store.limit_ops import Charge, account_in_redis, breaker_in_redis, most_used
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
    StoredAccount,
    StoredBreaker,
    StoredWindow,
    WindowWrite,
    denies,
)  # fmt: skip
from breakloop.store.redis.connection import answer_to, ignore
from breakloop.store.redis.scripts import (
    UNREADABLE,
    LuaScript,
    decode_commit,
    encode_commit,
    encode_correct,
    encode_settle,
    load_scripts,
    plain_key,
    redis_key,
    redis_pattern,
    window_of,
    window_value,
)
from breakloop.store.redis.topology import CommandSender, by_slot

_T = TypeVar("_T")
_ANYWHERE: Final = b"bl:"  # the key for commands without keys
_PROBE: Final = b"bl:probe"
_AT_ONCE: Final = b"1000"  # keys per step of a scan
# Redis error codes and their meaning. In these cases nothing was executed; other codes are self-explanatory.
_MEANING: Final = {
    "BUSY": "a script has been running for too long",
    "CLUSTERDOWN": "the cluster is down",
    "CROSSSLOT": "the keys are in different slots",
    "LOADING": "it is loading its data",
    "MASTERDOWN": "its master is unavailable",
    "MISCONF": "it cannot save its data",
    "MOVED": "the slot has moved",
    "NOREPLICAS": "it has too few replicas",
    "NOSCRIPT": "it does not cache scripts",
    "OOM": "it is out of memory",
    "READONLY": "it is a replica",
    "TRYAGAIN": "the slot is moving",
}


class RedisStore:
    """A `RemoteStore`. `then` is called when the response arrives, or immediately if there is nothing to send.

    `clock` is for tests: normally the clock of Redis is used, which is the same for all clients.
    """

    __slots__ = ("_clock", "_loading", "_nodes", "_scripts")

    def __init__(self, nodes: CommandSender, clock: Callable[[], float] | None = None) -> None:
        self._nodes = nodes
        self._clock = clock
        self._scripts = load_scripts()
        self._loading: set[tuple[bytes, bytes]] = set()  # scripts being loaded, and their slots

    def commit(
        self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: Callable[[CommitResult | StateError], None]
    ) -> None:
        keys, told = encode_commit(ops, windows)
        args = [told, self._now()]
        if windows:
            args += map(window_value, windows)
        self._run(self._scripts.commit, keys, args, lambda answer: decode_commit(ops, windows, answer), then)

    def read_windows(self, keys: Sequence[str], then: Callable[[list[StoredWindow] | StateError], None]) -> None:
        if not keys:
            then([])
            return
        names = [redis_key(key) for key in keys]
        self._nodes.send(names[0], (b"MGET", *names), lambda answer: then(_read(answer, _windows)))

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        keys, told = encode_settle(ops, failed=failed)
        if not keys:
            then(0)
            return
        self._run(self._scripts.settle, keys, [told, self._now()], int, then)

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None:
        if not ops:
            then(None)
            return
        keys, told = encode_correct(ops)
        self._run(self._scripts.correct, keys, [told, self._now()], ignore, then)

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None:
        """Drop the entries with exactly these keys, which may belong to several projects."""
        slots = by_slot(map(redis_key, keys))
        if not slots:
            then(None)
        total = _Total(len(slots), lambda done: then(done if isinstance(done, StateError) else None))
        for there in slots:
            self._nodes.send(there[0], (b"UNLINK", *there), total.answered)

    def probe(self, then: Callable[[StateError | None], None]) -> None:
        """Check whether the store responds and accepts writes; in a cluster, one of its nodes."""
        self._nodes.send(_PROBE, (b"SET", _PROBE, b"", b"PX", b"1000"), lambda answer: then(_read(answer, ignore)))

    def note(self, key: str, value: str, ttl_s: float) -> None:
        named = redis_key(key)
        told = value.encode("utf-8", "surrogatepass")
        self._nodes.send(named, (b"SET", named, told, b"PX", b"%d" % (ttl_s * 1000)), ignore)

    def recall(self, key: str, then: Callable[[str | StateError], None]) -> None:
        named = redis_key(key)
        self._nodes.send(named, (b"GET", named), lambda answer: then(_read(answer, _text)))

    # -- for operators ---------------------------------------------------------------------------------------------

    async def breakers(self, prefix: str, most: int) -> list[StoredBreaker]:
        """Return breakers whose key begins with `prefix`: open ones by key, then closed ones that have a rate. Raises
        `StateError`.
        """
        kept = await self._parsed(prefix, breaker_in_redis)
        return sorted(kept, key=lambda one: (one.since is None, one.key))[:most]

    async def accounts(self, prefix: str, most: int) -> list[StoredAccount]:
        """Return accounts whose key begins with `prefix`, the most used first. Raises `StateError`."""
        return most_used(await self._parsed(prefix, account_in_redis), most)

    async def _parsed(self, prefix: str, parse: Callable[[str, bytes | None, float], _T | None]) -> list[_T]:
        kept: dict[bytes, _T] = {}  # SCAN may return a key twice
        try:
            now = await self._time() if self._clock is None else self._clock()
            async for keys in self._scan(prefix):
                for key, value in await self._values(keys):
                    found = parse(plain_key(key), value, now)
                    if found is not None:
                        kept[key] = found
        except StateError as error:
            raise _error(error) from None
        return list(kept.values())

    async def keys(self, prefix: str, most: int) -> list[bytes]:
        """Return up to `most` keys that begin with `prefix`, in their Redis form. Raises `StateError`."""
        found: dict[bytes, None] = {}
        async for keys in self._scan(prefix):
            found |= dict.fromkeys(keys)
            if len(found) >= most:
                break
        return sorted(found)[:most]

    async def _scan(self, prefix: str) -> AsyncIterator[list[bytes]]:
        """Yield keys, one server of a cluster after the other. A prefix that contains the complete project (or agent,
        with `shard_by: agent`) is scanned only on the server that has it.
        """
        one_place = split_place(prefix)[1]
        servers = [partial(self._nodes.send, redis_key(prefix))] if one_place else self._nodes.each()
        if not servers:
            raise StateError("no server is known")
        for send in servers:
            cursor = b""
            while cursor != b"0":
                scan = (b"SCAN", cursor or b"0", b"MATCH", redis_pattern(prefix), b"COUNT", _AT_ONCE)
                cursor, keys = await _answer(partial(send, scan))
                if keys:
                    yield keys

    async def _values(self, keys: list[bytes]) -> list[tuple[bytes, bytes | None]]:
        slots = by_slot(keys)
        found = await asyncio.gather(
            *(_answer(partial(self._nodes.send, there[0], (b"MGET", *there))) for there in slots)
        )
        return [pair for there, values in zip(slots, found, strict=True) for pair in zip(there, values, strict=True)]

    async def _time(self) -> float:
        seconds, micros = await _answer(partial(self._nodes.send, _ANYWHERE, (b"TIME",)))
        return int(seconds) + int(micros) / 1_000_000

    # -- sending ---------------------------------------------------------------------------------------------------

    def _now(self) -> bytes:
        return b"" if self._clock is None else repr(self._clock()).encode()

    def _run(
        self,
        script: LuaScript,
        keys: list[bytes],
        args: list[bytes],
        read: Callable[[Any], _T],
        then: Callable[[_T | StateError], None],
    ) -> None:
        where = keys[0] if keys else _ANYWHERE
        command = (b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args)

        def answered(answer: Any) -> None:
            # After NOSCRIPT nothing was executed, so sending again does not repeat a charge.
            if isinstance(answer, StateError) and _code(answer) == "NOSCRIPT":
                self._load(script, where)
                self._nodes.send(where, command, lambda again: then(_read(again, read)))
            else:
                then(_read(answer, read))

        self._nodes.send(where, command, answered)

    def _load(self, script: LuaScript, where: bytes) -> None:
        """Load a script before the next command to the same slot; concurrent callers do not load it again."""
        loading = (script.sha, where.partition(b"}")[0])
        if loading not in self._loading:
            self._loading.add(loading)
            command = (b"SCRIPT", b"LOAD", script.text)
            self._nodes.send(where, command, lambda _: self._loading.discard(loading))


class _Total:
    """Combines several responses into one: their sum, or the first error."""

    __slots__ = ("_error", "_left", "_sum", "_then")

    def __init__(self, count: int, then: Callable[[int | StateError], None]) -> None:
        self._left = count
        self._then = then
        self._sum = 0
        self._error: StateError | None = None

    def answered(self, answer: Any) -> None:
        self._left -= 1
        if isinstance(answer, StateError):
            self._error = self._error or _error(answer)
        else:
            self._sum += answer or 0
        if not self._left:
            self._then(self._sum if self._error is None else self._error)


async def _answer(send: Callable[[Callable[[Any], None]], None]) -> Any:
    """Send a command and wait for its response. Raises `StateError`."""
    answer = await answer_to(send)
    if isinstance(answer, StateError):
        raise answer
    return answer


def _read(answer: Any, read: Callable[[Any], _T]) -> _T | StateError:
    """Decode a response; errors are translated into messages without keys."""
    if isinstance(answer, StateError):
        return _error(answer)
    try:
        return read(answer)
    except UNREADABLE as problem:
        return StateError(f"Redis sent an invalid reply ({type(problem).__name__})")


def _error(error: StateError) -> StateError:
    code = _code(error)
    if not code:
        return error
    return StateError(f"Redis returned {code}: {_MEANING[code]}" if code in _MEANING else f"Redis returned {code}")


def _code(error: StateError) -> str:
    """Return the error code of a response. Before Redis 7, an error within a script has its code in the text."""
    code: str = getattr(error, "code", "")
    if code == "ERR":
        text = str(error)
        return next((known for known in _MEANING if f"-{known} " in text), code)
    return code


def _windows(values: list[bytes | None]) -> list[StoredWindow]:
    return [window_of(value) for value in values]


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "surrogatepass")


# -- one project in several slots --------------------------------------------------------------------------------------

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
        self._at: float

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
        parts = _by_place(ops)
        told = _Total(len(parts), then).answered
        for part in parts:
            super().settle(part, told, failed=failed)

    def correct(self, ops: Sequence[AdjustCharge], then: Callable[[StateError | None], None]) -> None:
        parts = _by_place(ops)
        total = _Total(len(parts), lambda done: then(done if isinstance(done, StateError) else None))
        for part in parts:
            super().correct(part, total.answered)


def _by_place(ops: Sequence[_Told]) -> list[Sequence[_Told]]:
    """Return the operations of each place, or a single empty list if there are none."""
    parts: dict[str, list[_Told]] = {}
    for op in ops:
        parts.setdefault(place_of(op.key), []).append(op)
    found: list[Sequence[_Told]] = [*parts.values()]
    return found or [ops]
