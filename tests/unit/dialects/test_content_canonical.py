"""Canonical JSON of bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import content
from breakloop.dialects.content import canonical

_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_VALUES, st.randoms(use_true_random=False))
def test_spelling_does_not_matter(value: Any, random: Any) -> None:
    """Key order, white space and escapes are no difference (LD-1)."""
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    other = json.dumps(_shuffled(value, random), indent=3).encode()
    assert canonical(plain) == canonical(other) == canonical(b"\n" + plain + b" ")


@given(_VALUES, _VALUES)
def test_different_values_stay_different(one: Any, other: Any) -> None:
    """Nothing is lost, so two requests are one only if they say the same (LD-1)."""
    first, second = canonical(json.dumps(one).encode()), canonical(json.dumps(other).encode())
    assert (first == second) == (_typed(one) == _typed(other))
    assert _typed(json.loads(first)) == _typed(one)


def _shuffled(value: Any, random: Any) -> Any:
    if isinstance(value, list):
        return [_shuffled(item, random) for item in value]
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: _shuffled(value[key], random) for key in keys}
    return value


def _typed(value: Any) -> Any:
    """Python takes True for 1; JSON does not."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    return ("bool", value) if isinstance(value, bool) else value


@pytest.mark.parametrize("spelling", [b"1", b"1.0", b"1e0", b"10e-1", b"1.00", b"1E+0"])
def test_equal_numbers_are_one(spelling: bytes) -> None:
    """1, 1.0 and 1e0 are the same number (LD-1)."""
    assert canonical(b'{"n": ' + spelling + b', "a": [0.5]}') == b'{"a":[0.5],"n":1}'
    assert canonical(spelling) == b"1"


def test_large_integers_are_not_rounded() -> None:
    """Ids of 24 digits that differ in the last stay two (LD-1)."""
    first, second = b'{"id":123456789012345678901234}', b'{"id":123456789012345678901235}'
    assert canonical(first) == first
    assert canonical(first) != canonical(second)
    assert canonical(b'{"n":1e17}') == canonical(b'{"n":100000000000000000}')


def test_what_the_fast_decoders_refuse() -> None:
    """A BOM, a lone surrogate and NaN do not make a body opaque (C-9)."""
    assert canonical(b'\xef\xbb\xbf{"b": 1, "a": 2}') == b'{"a":2,"b":1}'
    assert canonical(rb'{"b": "\ud800", "a": 2}') == canonical(rb'{"a":2.0,"b":"\uD800"}')
    assert canonical(b'{"b": NaN, "a": 2}') == canonical(b'{"a":2,"b":NaN}')


@pytest.mark.parametrize(
    "body", [b"", b"a=1&b=2", b"{", b'{"a":1}x', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5_000, b"9" * 5_000]
)
def test_what_is_not_json_is_itself(body: bytes) -> None:
    """Else the body itself counts, byte for byte; deep nesting is no crash (LD-1)."""
    assert canonical(body) == body


def test_deep_nesting_with_odd_numbers() -> None:
    """How deep is too deep does not depend on how deep the caller stands (E-7)."""
    for depth in (150, 250):
        nested = b'{"n": 1.0, "d": ' + b"[" * depth + b"]" * depth + b"}"
        assert canonical(nested) == canonical(nested.replace(b" ", b""))
    for start in (b'{"n": 1.0, "d": ', rb'{"n": "\ud800", "d": '):
        deep = start + b"[" * 300 + b"]" * 300 + b"}"
        assert canonical(deep) == deep


def test_large_bodies_are_not_taken_apart_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 MB of `1.0,` would hold up everybody for a second. What is different stays different (Y-2)."""

    def one_by_one(*_args: object) -> object:
        raise AssertionError("value by value")

    monkeypatch.setattr(content, "_integers", one_by_one)
    padding = b'"' + b"x" * content._ONE_BY_ONE_MAX_BYTES + b'"'
    floats, swapped = b'{"a":1.0,"b":' + padding + b"}", b'{"b":' + padding + b', "a":1.0}'
    assert canonical(floats) == canonical(swapped) != canonical(floats.replace(b"1.0", b"2.0"))
    huge = b"[" + padding + b",%d]" % 2**80  # beyond 64 bits the decoder rounds: its neighbour is the same float
    assert canonical(huge) != canonical(huge[:-2] + b"7]")
    surrogate = b'["\\ud800",' + padding + b"]"
    assert canonical(surrogate) == surrogate
