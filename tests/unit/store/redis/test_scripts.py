"""What scripts are told and answer, without a server; what they compute is in tests/contract."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec
import pytest

from breakloop.store.limit_ops import (
    LIMIT_OPS,
    BreakerSpec,
    BucketSpec,
    BudgetSpec,
    ChargeBudget,
    CheckBreaker,
    TakeTokens,
)
from breakloop.store.ops import (
    JOINED,
    AdjustCharge,
    BreakerResult,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Observation,
    Op,
    Settle,
    StoredWindow,
    WindowWrite,
)
from breakloop.store.redis import scripts as module
from breakloop.store.redis.scripts import (
    UNREADABLE,
    decode_commit,
    encode_commit,
    encode_correct,
    encode_settle,
    load_scripts,
    redis_key,
    redis_pattern,
    window_of,
    window_value,
)
from breakloop.store.redis.topology import slot_of
from tests.each import each
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

LUA = Path(module.__file__).parent / "lua"
FREE = FingerprintSpec(60.0, 5, sliding=True, concurrent_free=2, retry_free=3)
PLAIN = FingerprintSpec(60.0, 5)
TEN = BucketSpec(1.0, 10.0)


def pack(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


def unpack(blob: bytes) -> list[object]:
    told = msgspec.msgpack.decode(blob)
    assert isinstance(told, list)
    return told


# -- scripts -----------------------------------------------------------------------------------------------------------


def test_scripts_are_known_by_their_text() -> None:
    """The name Redis gives them; each has what values look like before it (S-2)."""
    scripts = load_scripts()
    shared = (LUA / "values.lua").read_bytes()
    for name, script in zip(scripts._fields, scripts, strict=True):
        own, _, rest = (LUA / f"{name}.lua").read_bytes().partition(b"  -- LIMITS\n")
        assert script.text.startswith(shared + own)
        assert script.text.endswith(rest)
        assert script.sha == hashlib.sha1(script.text, usedforsecurity=False).hexdigest().encode()


def test_scripts_have_names_where_sha1_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """In FIPS mode it is, for security."""

    def strict(text: bytes, *, usedforsecurity: bool = True) -> object:
        assert not usedforsecurity
        return hashlib.sha1(text, usedforsecurity=False)

    monkeypatch.setattr(module, "sha1", strict)
    assert load_scripts().commit.sha


def test_each_limit_operation_is_a_branch_of_the_commit() -> None:
    """Under its own number, which is not used twice; the marker of the branches is replaced (S-2)."""
    text = load_scripts().commit.text
    assert b"LIMITS" not in text
    numbers = [int(number) for number in re.findall(rb"if kind == (\d+) then", text)]
    assert numbers == [1, *(op.number for op in LIMIT_OPS)]
    assert len({*numbers, 5, 6}) == len(numbers) + 2  # 5 and 6 have no branch of their own


@pytest.mark.parametrize("name", ["values", *load_scripts()._fields])
def test_scripts_open_with_units_and_keys(name: str) -> None:
    """Line 1 says in which units and under which keys; and no script leaves a global behind (S-2)."""
    text = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    assert first.startswith("-- Units: ")
    assert "KEYS: bl:{PROJECT}:KEY" in first
    assert text.isascii()
    assert not re.search(r"^\s*function ", text, re.MULTILINE)


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("ld:acme:default:0:abc", b"bl:{acme}:ld:acme:default:0:abc"),
        ("shadow:tb:acme:p:r:u", b"bl:{acme}:shadow:tb:acme:p:r:u"),
        ("win:acme:s:1:", b"bl:{acme}:win:acme:s:1:"),
        ("tb:acme", b"bl:{acme}:tb:acme"),
        ("tb::r", b"bl:{-}:tb::r"),
        ("tb:a}b:r", b"bl:{a%7Db}:tb:a}b:r"),
        ("odd", b"bl:{-}:odd"),
        ("tb:\ud800:r", b"bl:{\xed\xa0\x80}:tb:\xed\xa0\x80:r"),
    ],
)
def test_the_project_is_the_hash_tag(key: str, wanted: bytes) -> None:
    """Also in shadow; a tag is never empty and never ends early (E-5, S-2)."""
    assert redis_key(key) == wanted
    assert slot_of(redis_key(key)) == slot_of(wanted.partition(b"}")[0] + b"}")


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        ("ld:acme:", rb"bl:{acme}:ld:acme:*"),
        ("shadow:ld:acme:x", rb"bl:{acme}:shadow:ld:acme:x*"),
        ("ld:ac", rb"bl:{*}:ld:ac*"),
        ("", rb"bl:{*}:*"),
        ("ld:a*c:[x]?\\", rb"bl:{a\*c}:ld:a\*c:\[x\]\?\\*"),
    ],
)
def test_a_prefix_is_no_pattern(prefix: str, wanted: bytes) -> None:
    """What a client chose matches itself only (G-1)."""
    assert redis_pattern(prefix) == wanted


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_commit_is_one_flat_list() -> None:
    """Windows first; the order of keys is theirs and that of the operations which have one (S-2)."""
    ops: list[Op] = [
        CountFingerprint(FREE, "ld:p:a", NO_OWNER, 1, 7, tracked=True),
        CountFingerprint(FREE, "cnt:p:a", NO_OWNER).within("mix:p:a"),
        CountFingerprint(FREE, "cnt:p:b", NO_OWNER).within("mix:p:b", opening=True),
        Deny(NO_OWNER),
        TakeTokens(TEN, "tb:p:b", 2.0, NO_LIMITER, NO_RULE),
        Observation(NO_OWNER, 2),
        ChargeBudget(BudgetSpec(2**60 + 1), "cb:p:c", 5, 99.0, NO_LIMITER, NO_RULE),
        CheckBreaker(BreakerSpec(8.0, 30.0), "brk:p:d", 1.5, NO_LIMITER, NO_RULE),
    ]
    windows = [WindowWrite("win:p:s:", 3, b"x", 60.0), WindowWrite("win:p:t:", 4, None, 60.0)]
    keys, told = encode_commit(ops, windows)
    counted = ("ld:p:a", "cnt:p:a", "mix:p:a", "cnt:p:b", "mix:p:b")
    assert keys == [redis_key(key) for key in ("win:p:s:", "win:p:t:", *counted, "tb:p:b", "cb:p:c", "brk:p:d")]
    expected: list[object] = [2, 3, 60.0, 4, False]
    expected += [1, 1, True, 7, 60.0, True, True, 0.0, 1.0, 0.0, False, 2, 0]
    for traffic in (1, 2):
        expected += [1, 0, False, FREE.limit, 60.0, True, True, 0.0, 1.0, 0.0, False, 2, traffic]
    expected += [5, 0, 2, 0, 1.0, 10.0, 2.0, 6, 2]
    expected += [3, 0, 2**30, 1, 0, 5, 99.0, 4, 0, 8.0, 30.0, 1.5]
    assert unpack(told) == expected


def test_landed_calls_share_the_argument_of_the_traffic() -> None:
    """Their key comes before that of the traffic (LD-10)."""
    op = CountFingerprint(FingerprintSpec(60.0, 5, land_calls=3), "cnt:p:a", NO_OWNER).landing("land:p:a")
    assert [redis_key("cnt:p:a"), redis_key("land:p:a")] == encode_commit([op], ())[0]
    assert unpack(encode_commit([op], ())[1])[-1] == 12
    op = op.within("mix:p:a", opening=True)
    keys, told = encode_commit([op], ())
    assert keys == [redis_key(key) for key in ("cnt:p:a", "land:p:a", "mix:p:a")]
    assert unpack(told)[-1] == 14


def test_results_have_their_types_back() -> None:
    """Whole numbers come as integers; what was not looked at is None (E-4)."""
    repeat, bucket = CountFingerprint(PLAIN, "ld:p", NO_OWNER), TakeTokens(TEN, "tb:p", 1.0, NO_LIMITER, NO_RULE)
    spend = ChargeBudget(BudgetSpec(9), "cb:p", 1, 9.0, NO_LIMITER, NO_RULE)
    breaker = CheckBreaker(BreakerSpec(8.0, 30.0), "brk:p", 1.0, NO_LIMITER, NO_RULE)
    ops: list[Op] = [
        repeat,
        repeat,
        repeat,
        repeat,
        repeat,
        repeat,
        bucket,
        bucket,
        spend,
        spend,
        breaker,
        Deny(NO_OWNER),
        bucket,
    ]
    found = [
        2,
        64,
        [3, JOINED],
        [4, True, False, 20],
        [5, True, True, 0, True, 0],
        [6, True, True, 0, False, 2],
        9,
        -0.5,
        12,
        [2**30, 1],
        [True, 5, 0, "opened"],
        False,
        False,
    ]
    done = decode_commit(ops, (), pack(1000, 7, *found))
    repeated: list[object] = [
        FingerprintCount(2),
        FingerprintCount(64),
        FingerprintCount(3, flight=JOINED),
        FingerprintCount(4, True, False, 20.0),
        FingerprintCount(5, True, True, 0.0, mixed=True),
        FingerprintCount(6, True, True, 0.0, landed=2),
    ]
    expected = [*repeated, 9.0, -0.5, 12, 2**60 + 1, BreakerResult(True, 5.0, 0.0, "opened"), None, None]
    assert done == CommitResult(expected, 7)  # type: ignore[arg-type]
    assert (done.at, type(done.at)) == (1000.0, float)
    assert [type(one) for one in done.results] == [type(one) for one in expected]
    tripped, opened = done.results[3], done.results[10]
    assert isinstance(tripped, FingerprintCount)
    assert isinstance(opened, BreakerResult)
    floats = [tripped.wait_s, opened.rate, opened.wait_s]
    assert [type(one) for one in floats] == [float] * 3


def test_a_list_is_a_conflict() -> None:
    """Windows that moved on, as they are now; those that did not are not among them (E-5)."""
    writes = [WindowWrite(f"win:p:{name}:", 1, b"", 60.0) for name in "abc"]
    newer = window_value(WindowWrite("", 6, b"data", 60.0))
    done = decode_commit([Observation(NO_OWNER)], writes, [b"1000.5", None, newer, b""])
    assert done == CommitResult([], -1, {"win:p:b:": StoredWindow(7, b"data"), "win:p:c:": StoredWindow(0, b"")})
    assert done.at == 1000.5


@each("answer", [b"", b"\xc1", pack(), pack(1.0, -1), pack(1.0, -1, "x"), pack({}), 5, None, [], [b"x"]])
def test_answers_that_mean_nothing_are_errors(answer: object) -> None:
    """Of a kind that whoever asked can expect (S-3)."""
    with pytest.raises(UNREADABLE):
        decode_commit([TakeTokens(TEN, "tb:p", 1.0, NO_LIMITER, NO_RULE)], [WindowWrite("win:p", 0, b"", 1.0)], answer)


# -- windows, settling, corrections ------------------------------------------------------------------------------------


def test_windows_carry_their_version() -> None:
    """Eight bytes after the kind; of what is only looked at nothing is kept (E-5)."""
    value = window_value(WindowWrite("win:p", 41, b"abc", 60.0))
    assert value == b"w\x00\x00\x00\x00\x00\x00E@abc"
    assert window_of(value) == StoredWindow(42, b"abc")
    assert window_of(window_value(WindowWrite("win:p", 41, b"", 60.0))) == StoredWindow(42, b"")
    assert window_value(WindowWrite("win:p", 41, None, 60.0)) == b""


@pytest.mark.parametrize("value", [None, b"", b"w", b"w1234567", b"v\x00\x00\x00\x00\x00\x00E@abc"])
def test_windows_of_another_layout_are_none(value: bytes | None) -> None:
    """As if nobody had written one (S-2)."""
    assert window_of(value) == StoredWindow(0, b"")


def test_only_what_changes_something_is_settled() -> None:
    """A flight that ends, or a count that may be taken back (LD-6)."""
    ops = [
        Settle(PLAIN, "ld:p:none", 1.5),
        Settle(PLAIN, "ld:p:leads", 2.5, 3),
        Settle(FREE, "ld:p:free", 3.5),
        Settle(PLAIN, "ld:p:joined", 4.5, JOINED),
    ]
    keys, told = encode_settle(ops, failed=False)
    assert (keys, unpack(told)) == ([redis_key("ld:p:leads")], [False, 2.5, 3, 60.0, False, 0])
    keys, told = encode_settle(ops, failed=True)
    assert keys == [redis_key("ld:p:leads"), redis_key("ld:p:free")]
    assert unpack(told) == [True, 2.5, 3, 60.0, False, 0, 3.5, 0, 60.0, True, 3]


def test_corrections_of_money_are_whole() -> None:
    """Rounded, and in two parts, of which the lower is never negative (L-5)."""
    ops = [
        AdjustCharge(TEN, "tb:p:a", -0.5),
        AdjustCharge(BudgetSpec(1), "cb:p:b", -20.000000001),
        AdjustCharge(BudgetSpec(1), "cb:p:c", 2**61),
    ]
    keys, told = encode_correct(ops)
    assert keys == [redis_key(op.key) for op in ops]
    assert unpack(told) == [2, 1.0, 10.0, -3600.0, -0.5, 3, -1, 2**30 - 20, 0, 0, 3, 2**31, 0, 0, 0]
