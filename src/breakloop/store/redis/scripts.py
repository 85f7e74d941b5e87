"""Arguments and results of the scripts in lua/: operations are encoded as one flat msgpack list, results are decoded to
the types of the memory store. commit.lua is put together from its file and the branches of `limit_ops.LIMIT_OPS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from breakloop.store.keys import split_place
from breakloop.store.limit_ops import LIMIT_OPS
from breakloop.store.ops import (
    NO_WINDOW,
    SMALL_COUNTS,
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Observation,
    Op,
    Result,
    Settle,
    StoredWindow,
    WindowWrite,
)

_COUNT, _DENY, _OBSERVE = 1, 5, 6  # as in commit.lua; `LimitOp.number` has the others
_LUA: Final = Path(__file__).parent / "lua"
_BRANCHES: Final = b"  -- LIMITS\n"  # the line of commit.lua that the branches replace
_WINDOW: Final = Struct("<cd")  # kind, version; followed by its data
_WINDOW_KIND: Final = b"w"
_LAND: Final = 4  # traffic of a count is less; `land_calls` are in the same argument

UNREADABLE: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    IndexError,
)  # what decoding an unexpected response may raise

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class LuaScript(NamedTuple):
    """A script and its SHA-1, its name in Redis once it is loaded."""

    text: bytes
    sha: bytes


class LuaScripts(NamedTuple):
    """All scripts; each file name is a field."""

    commit: LuaScript
    settle: LuaScript
    correct: LuaScript


def load_scripts() -> LuaScripts:
    """Read the files. values.lua is prepended to each script, because Redis has no libraries before version 7, and each
    limit operation is a branch of commit.lua, because a function would be created again for each call.
    """
    shared = _file("values")
    branches = b"".join(b"  elseif kind == %d then\n%b" % (op.number, _branch(op.lua)) for op in LIMIT_OPS)
    texts = [shared + _file(name).replace(_BRANCHES, branches) for name in LuaScripts._fields]
    # SHA-1 is not used for security here: Redis computes the name of a script like this.
    return LuaScripts(*[LuaScript(text, sha1(text, usedforsecurity=False).hexdigest().encode()) for text in texts])


def _file(name: str) -> bytes:
    return (_LUA / f"{name}.lua").read_bytes()


def _branch(name: str) -> bytes:
    lines = _file(f"limits/{name}").splitlines(keepends=True)
    return b"".join(b"    " + line for line in lines)


# -- keys --------------------------------------------------------------------------------------------------------------


def redis_key(key: str) -> bytes:
    """Return a key as Redis stores it. The place is the hash tag, so that all keys of one place are in one slot."""
    parts = key.split(":", 3)  # as `split_place`, in half the time
    at = 2 if parts[0] == "shadow" else 1
    project = parts[at] if len(parts) > at else ""
    if not project or "}" in project:
        project = _tag(project)
    try:
        return f"bl:{{{project}}}:{key}".encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can contain
        return f"bl:{{{project}}}:{key}".encode("utf-8", "surrogatepass")


def plain_key(key: bytes) -> str:
    """Reverse `redis_key`."""
    return key.partition(b"}:")[2].decode("utf-8", "surrogatepass")


def redis_pattern(prefix: str) -> bytes:
    """Return the `SCAN` pattern for keys that begin with `prefix`: of one project, or of all if it contains none."""
    project, whole = split_place(prefix)
    tag = _plain(_tag(project)) if whole else "*"
    return f"bl:{{{tag}}}:{_plain(prefix)}*".encode("utf-8", "surrogatepass")


def _tag(project: str) -> str:
    """Return a hash tag. One that is empty or ends early would scatter a project's keys over all slots."""
    return project.replace("}", "%7D") or "-"


def _plain(text: str) -> str:
    """Escape a text so that a pattern matches it literally."""
    return "".join(f"\\{c}" if c in "\\*?[]^-" else c for c in text)


# -- commits -----------------------------------------------------------------------------------------------------------


def encode_commit(ops: Sequence[Op], windows: Sequence[WindowWrite]) -> tuple[list[bytes], bytes]:
    """Return the keys of windows and operations in order, and the argument of commit.lua."""
    keys: list[bytes] = []
    args: list[object] = [len(windows)]
    for write in windows:
        keys.append(redis_key(write.key))
        args += (write.version, write.ttl_s if write.data is not None else False)
    for op in ops:
        if type(op) is CountFingerprint:
            keys.append(redis_key(op.key))
            if op.spec.land_calls:
                keys.append(redis_key(op.landed_key))
            if op.traffic:
                keys.append(redis_key(op.traffic))
            args += _count_args(op)
        elif type(op) is Deny:
            args += (_DENY, op.group)
        elif type(op) is Observation:
            args += (_OBSERVE, op.group)
        else:
            keys.append(redis_key(op.key))
            args += op.lua_args()
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
        (0 if not op.traffic else 2 if op.opening else 1) + _LAND * spec.land_calls,
    )


def decode_commit(ops: Sequence[Op], windows: Sequence[WindowWrite], answer: Any) -> CommitResult:
    """Decode the response of commit.lua. A list instead of a blob means that windows have a newer version."""
    if type(answer) is list:
        moved = zip(windows, answer[1:], strict=True)
        newer = {write.key: window_of(value) for write, value in moved if value is not None}
        return CommitResult([], -1, newer, float(answer[0]))
    at, denied_at, *found = _decode(answer)
    results: list[Result] = []
    for op, value in zip(ops, found, strict=True):
        if type(op) is CountFingerprint:
            results.append(_count_result(value))
        elif value is False or type(op) is Deny or type(op) is Observation:
            results.append(None)
        else:
            results.append(op.decoded(value))
    return CommitResult(results, denied_at, None, float(at))


def _count_result(value: Any) -> FingerprintCount:
    """Decode a count, a count with its flight, or one that tripped, maybe in mixed traffic or landed."""
    if type(value) is int:
        return SMALL_COUNTS[value] if value < len(SMALL_COUNTS) else FingerprintCount(value)
    if len(value) == 2:
        return FingerprintCount(value[0], False, False, 0.0, value[1])
    hits, tripped, fresh, wait_s, *passed = value
    mixed, landed = passed or (False, 0)
    return FingerprintCount(hits, tripped, fresh, float(wait_s), 0, mixed, landed)


# -- other scripts -----------------------------------------------------------------------------------------------------


def encode_settle(ops: Sequence[Settle], *, failed: bool) -> tuple[list[bytes], bytes]:
    """Return the keys, and the argument of settle.lua. Entries that would change nothing are left out."""
    keys: list[bytes] = []
    told: list[object] = [failed]
    for op in ops:
        spec = op.spec
        if op.flight > 0 or (failed and spec.retry_free):
            keys.append(redis_key(op.key))
            told += (op.at, op.flight, spec.window_s, spec.sliding, spec.retry_free)
    return keys, _encode(told)


def encode_correct(ops: Sequence[AdjustCharge]) -> tuple[list[bytes], bytes]:
    """Return the keys, and the argument of correct.lua."""
    told = [part for op in ops for part in op.spec.lua_correction(op)]
    return [redis_key(op.key) for op in ops], _encode(told)


def window_value(write: WindowWrite) -> bytes:
    """Return a window as it is stored; empty for one that is only checked."""
    return b"" if write.data is None else _WINDOW.pack(_WINDOW_KIND, write.becomes) + write.data


def window_of(value: bytes | None) -> StoredWindow:
    """Parse a stored window; one that is missing or in another format has version 0."""
    if value is None or len(value) < _WINDOW.size or value[:1] != _WINDOW_KIND:
        return NO_WINDOW
    _, version = _WINDOW.unpack_from(value)
    return StoredWindow(int(version), value[_WINDOW.size :])
