"""What the scripts in lua/ are told, and what they answer: operations as one flat msgpack list, results as the memory
store gives them. The scripts compute, `redis` sends; here is only how both sides write it down.

Money beyond 2^53 has no exact double, so it travels as two parts: high * 2^30 + low.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from breakloop.store.keys import place_of, split_place
from breakloop.store.ops import (
    AdjustCharge,
    BreakerResult,
    BucketSpec,
    ChargeBudget,
    CheckBreaker,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Observation,
    Op,
    Result,
    Settle,
    StoredWindow,
    TakeTokens,
    WindowWrite,
)

_COUNT, _TAKE, _CHARGE, _BREAKER, _DENY, _OBSERVE = 1, 2, 3, 4, 5, 6  # as in commit.lua
_LOW: Final = 1 << 30
_LUA: Final = Path(__file__).parent / "lua"
_WINDOW: Final = Struct("<cd")  # kind, version; its data follows
_WINDOW_KIND: Final = b"w"
_NO_WINDOW: Final = StoredWindow(0, b"")
_SMALL_COUNTS: Final = tuple(FingerprintCount(count) for count in range(64))

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, TypeError, IndexError)  # what a strange answer may raise here

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class LuaScript(NamedTuple):
    """A script, and the name Redis knows it by once it was loaded."""

    text: bytes
    sha: bytes


class LuaScripts(NamedTuple):
    """All of them; each file name is a field."""

    commit: LuaScript
    settle: LuaScript
    correct: LuaScript


def load_scripts() -> LuaScripts:
    """Read the files. How values are kept stands before each script: Redis knows no libraries of its own before 7."""
    shared = (_LUA / "values.lua").read_bytes()
    texts = [shared + (_LUA / f"{name}.lua").read_bytes() for name in LuaScripts._fields]
    # The name is not a secret's: Redis itself computes it so.
    return LuaScripts(*[LuaScript(text, sha1(text, usedforsecurity=False).hexdigest().encode()) for text in texts])


# -- keys --------------------------------------------------------------------------------------------------------------


def redis_key(key: str) -> bytes:
    """Return a key as Redis holds it. Its place is the hash tag, so that all of one place is in one slot."""
    project = place_of(key)
    if not project or "}" in project:
        project = _tag(project)
    try:
        return f"bl:{{{project}}}:{key}".encode()
    except UnicodeEncodeError:  # half a character, which JSON can name
        return f"bl:{{{project}}}:{key}".encode("utf-8", "surrogatepass")


def plain_key(key: bytes) -> str:
    """Return the key that `redis_key` made this of."""
    return key.partition(b"}:")[2].decode("utf-8", "surrogatepass")


def names_place(prefix: str) -> bool:
    """Tell whether all keys that begin with `prefix` are in one slot."""
    return bool(split_place(prefix)[1])


def redis_pattern(prefix: str) -> bytes:
    """Return what `SCAN` finds the keys with that begin with `prefix`: of one project, or of all if it names none."""
    project, whole = split_place(prefix)
    tag = _plain(_tag(project)) if whole else "*"
    return f"bl:{{{tag}}}:{_plain(prefix)}*".encode("utf-8", "surrogatepass")


def _tag(project: str) -> str:
    """A tag that is empty, or ends early, would scatter a project's keys over all slots."""
    return project.replace("}", "%7D") or "-"


def _plain(text: str) -> str:
    """Return a text that a pattern matches by itself."""
    return "".join(f"\\{c}" if c in "\\*?[]^-" else c for c in text)


# -- commits -----------------------------------------------------------------------------------------------------------


def encode_commit(ops: Sequence[Op], windows: Sequence[WindowWrite]) -> tuple[list[bytes], bytes]:
    """Return the keys of windows and operations in their order, and what commit.lua is told."""
    keys: list[bytes] = []
    args: list[object] = [len(windows)]
    for write in windows:
        keys.append(redis_key(write.key))
        args += (write.version, write.ttl_s if write.data is not None else False)
    for op in ops:
        if type(op) is CountFingerprint:
            keys.append(redis_key(op.key))
            args += _count_args(op)
        elif type(op) is TakeTokens:
            keys.append(redis_key(op.key))
            args += (_TAKE, op.group, op.spec.rate, op.spec.burst, op.cost)
        elif type(op) is ChargeBudget:
            keys.append(redis_key(op.key))
            args += (_CHARGE, op.group, *divmod(op.spec.budget, _LOW), *divmod(op.cost, _LOW), op.ends)
        elif type(op) is CheckBreaker:
            keys.append(redis_key(op.key))
            args += (_BREAKER, op.group, op.spec.threshold, op.spec.reset_s, op.amount)
        elif type(op) is Deny:
            args += (_DENY, op.group)
        elif type(op) is Observation:
            args += (_OBSERVE, op.group)
        else:
            assert_never(op)
    return keys, _encode(args)


def _count_args(op: CountFingerprint) -> tuple[object, ...]:
    spec = op.spec
    return (
        _COUNT,
        op.group,
        op.tracked,
        op.limit,
        spec.window_s,
        spec.sliding,
        spec.denies,
        spec.cooldown_s,
        spec.growth,
        spec.cooldown_max_s,
        spec.at_once,
        spec.concurrent_free,
    )


def decode_commit(ops: Sequence[Op], windows: Sequence[WindowWrite], answer: Any) -> CommitResult:
    """Return what commit.lua did. A list instead of a blob: windows have moved on."""
    if type(answer) is list:
        moved = zip(windows, answer[1:], strict=True)
        newer = {write.key: window_of(value) for write, value in moved if value is not None}
        return CommitResult([], -1, newer, float(answer[0]))
    at, denied_at, *found = _decode(answer)
    results = [_result(op, value) for op, value in zip(ops, found, strict=True)]
    return CommitResult(results, denied_at, None, float(at))


def _result(op: Op, value: Any) -> Result:
    """A whole double comes as an integer: here each result gets its own type back."""
    if value is False:
        return None
    if type(op) is CountFingerprint:
        return _count_result(value)
    if type(op) is TakeTokens:
        return float(value)
    if type(op) is ChargeBudget:
        return value if type(value) is int else int(value[0]) * _LOW + int(value[1])
    if type(op) is CheckBreaker:
        opened, rate, wait_s, changed = value
        return BreakerResult(opened, float(rate), float(wait_s), changed)
    if type(op) is Deny or type(op) is Observation:
        return None
    assert_never(op)


def _count_result(value: Any) -> FingerprintCount:
    """A count, a count with its flight, or one that tripped."""
    if type(value) is int:
        return _SMALL_COUNTS[value] if 0 <= value < len(_SMALL_COUNTS) else FingerprintCount(value)
    if len(value) == 2:
        return FingerprintCount(value[0], False, False, 0.0, value[1])
    hits, tripped, fresh, wait_s = value
    return FingerprintCount(hits, tripped, fresh, float(wait_s))


# -- the rest ----------------------------------------------------------------------------------------------------------


def encode_settle(ops: Sequence[Settle], *, failed: bool) -> tuple[list[bytes], bytes]:
    """Return the keys, and what settle.lua is told. What would change nothing is left out."""
    keys: list[bytes] = []
    told: list[object] = [failed]
    for op in ops:
        spec = op.spec
        if op.flight > 0 or (failed and spec.retry_free):
            keys.append(redis_key(op.key))
            told += (op.at, op.flight, spec.window_s, spec.sliding, spec.retry_free)
    return keys, _encode(told)


def encode_correct(ops: Sequence[AdjustCharge]) -> tuple[list[bytes], bytes]:
    """Return the keys, and what correct.lua is told."""
    told: list[object] = []
    for op in ops:
        if isinstance(op.spec, BucketSpec):
            told += (_TAKE, op.spec.rate, op.spec.burst, op.amount)
        else:
            told += (_CHARGE, *divmod(round(op.amount), _LOW), 0)
    return [redis_key(op.key) for op in ops], _encode(told)


def window_value(write: WindowWrite) -> bytes:
    """Return a window as it will be kept; nothing for one that is only looked at."""
    return b"" if write.data is None else _WINDOW.pack(_WINDOW_KIND, write.becomes) + write.data


def window_of(value: bytes | None) -> StoredWindow:
    """Return a window as it is kept; one that is not there, or written in another way, is none."""
    if value is None or len(value) < _WINDOW.size or value[:1] != _WINDOW_KIND:
        return _NO_WINDOW
    _, version = _WINDOW.unpack_from(value)
    return StoredWindow(int(version), value[_WINDOW.size :])
