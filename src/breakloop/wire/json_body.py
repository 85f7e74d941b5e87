"""One spelling for equal JSON bodies, so that `exact` fingerprints see what was said and not how it was written.

What counts as the same request beyond that (ids, time stamps) is the detectors' business.
"""

from __future__ import annotations

import json
import re

import msgspec
import orjson

_BOM = b"\xef\xbb\xbf"
# How orjson writes 1.0, and numbers from 1e16 on. Two searches with a literal prefix are quicker than `in` on bytes.
_WHOLE_FLOAT = re.compile(rb"\.0(?:[,\]}]|\Z)").search
_LARGE_FLOAT = re.compile(rb"e\+\d").search
_DEPTH_MAX = 200
# Values one by one cost 0.15 us a byte: a larger body would hold up everybody else, so it is taken as the decoder gives
# it, or as it was sent. Whoever repeats himself to the byte is recognised all the same.
_ONE_BY_ONE_MAX_BYTES = 256 * 1024
_BAD_JSON = (ValueError, RecursionError)  # msgspec's and orjson's decode errors are ValueErrors


def canonical(body: bytes) -> bytes:
    """Return sorted-key, compact JSON where `body` is JSON, else `body` itself."""
    if not body:
        return body
    if body.startswith(_BOM):
        body = body[3:]
    try:
        value = orjson.loads(body)
    except ValueError:
        return _tolerant(body)
    try:
        spelled = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # nested deeper than orjson writes
        return body
    if _WHOLE_FLOAT(spelled) or _LARGE_FLOAT(spelled):
        return _with_one_spelling_of_numbers(body, spelled)
    return spelled


def _with_one_spelling_of_numbers(body: bytes, spelled: bytes) -> bytes:
    """1, 1.0 and 1e0 are one number, and orjson rounds integers over 64 bits, which would make two bodies one."""
    if len(body) > _ONE_BY_ONE_MAX_BYTES:
        return body if _LARGE_FLOAT(spelled) else spelled
    try:
        value = _whole(msgspec.json.decode(body))
    except _BAD_JSON:
        return spelled
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer over 64 bits
        return msgspec.json.encode(value, order="sorted")


def _whole(value: object, depth: int = 0) -> object:
    # A bound of our own: Python's depends on how deep the caller stands, and every door must come to the same result.
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {key: _whole(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item, depth + 1) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _tolerant(body: bytes) -> bytes:
    """Lone surrogates and NaN: the standard library reads them, the fast decoders do not."""
    if len(body) > _ONE_BY_ONE_MAX_BYTES:
        return body
    try:
        return json.dumps(_whole(json.loads(body)), sort_keys=True, separators=(",", ":")).encode()
    except _BAD_JSON:
        return body
