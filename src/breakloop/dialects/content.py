"""JSON values and message contents as plain text: the helpers that all dialects share.

`canonical` and `arguments` give equal JSON one spelling, so that exact fingerprints compare values and not formatting.
`content` flattens a message content; media become `<type:digest>`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import cache, lru_cache, partial
from typing import Any, AnyStr, Final, TypeVar, cast

import msgspec
import orjson
import xxhash

# How orjson writes 1.0, and numbers from 1e16 on.
_WHOLE_FLOAT = re.compile(rb"\.0(?:[,\]}]|\Z)").search
_LARGE_FLOAT = re.compile(rb"e\+\d").search
_BOM = b"\xef\xbb\xbf"
_DEPTH_MAX = 200
# Visiting every value in Python costs 0.15 us a byte, so a larger body is compared as the fast decoder writes it, or
# byte for byte. Identical requests are still recognised.
_ONE_BY_ONE_MAX_BYTES = 256 * 1024
# A decoded value may take 50 times its size, so a body with more values than this is not decoded, and is compared byte
# for byte. The values of a smaller body are counted if most of it is new (`base.COUNTED_UNKNOWN_BYTES`).
VALUES_MAX: Final = 200_000
COUNTED_FROM_BYTES: Final = 1024 * 1024
# The same for what is decoded at once: a message, or a whole body that has to be. A value takes up to 0.3 us, and most
# messages are smaller than what is counted.
DECODED_VALUES_MAX: Final = 50_000
DECODED_UNCOUNTED_BYTES: Final = 128 * 1024
# Escape sequences and letters outside ASCII take time, too, and so does telling commas in texts from others. A message
# that is longer than this is decoded if it holds at most 50,000 of all of them, as pictures do; one that is longer than
# half of it, if it holds at most `_SPECIAL_MAX` escape sequences, commas, brackets and braces.
_LONG_BYTES: Final = 4 * 1024 * 1024
_SPECIAL_MAX: Final = 250_000
ESCAPES_FROM_BYTES: Final = 4 * 1024 * 1024
_ESCAPES_MAX: Final = 1_000_000  # of a body that is larger than this
_SPECIAL: Final = b",[{\\"
_SPECIAL_OR_NOT_ASCII: Final = _SPECIAL + bytes(range(128, 256))
# Larger bodies are not decoded as a whole, and half as large ones are not written again in one spelling.
LOADED_MAX_BYTES: Final = 4 * 1024 * 1024
CANONICAL_MAX_BYTES: Final = 2 * 1024 * 1024
# A longer text is inspected by its beginning and its end; what is between them is represented by its digest.
LONG_TEXT_CHARS: Final = 512 * 1024
_MAY_BE_LONG: Final = frozenset((str, list, dict))
_COUNTED_PIECE: Final = 256 * 1024
# Searching for one separator after the other takes a third of the time of looking at each byte, if they are as rare as
# in prose (one byte in 200), and longer if they are as frequent as in code (one in 50).
_SEPARATORS: Final = (b",", b"[", b"{")
_RARE: Final = 96
_SAMPLED: Final = 61  # one byte in so many shows how rare they are
# What may come before the first brace or bracket: white space, and the byte order marks and zero bytes of UTF-8 and
# UTF-16.
_BEFORE_JSON: Final = b" \t\r\n\0\xef\xbb\xbf\xff\xfe"
_BEGIN_BYTES: Final = 4096
_JSON_STARTS: Final = (b"{", b"[")
_BAD_JSON = (ValueError, RecursionError)  # the decode errors of msgspec and orjson are ValueErrors

# Parts of one content, and calls of one message, that are read one by one. The rest is represented by one digest, so
# that a request with millions of parts stays cheap and still differs from others.
ITEMS_MAX: Final = 1000
_TEXT_PARTS: Final = frozenset(("text", "input_text", "output_text"))
# Reasoning is worded differently each time, and its signatures and encrypted forms change like ids.
_REASONING_PARTS: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))
# Cache marks move along a conversation, and a retry carries new ids: neither makes a content different.
_NOT_IDENTITY: Final = frozenset(("id", "call_id", "tool_use_id", "cache_control"))
_NESTING: Final = ("{", "[")
_DIGITS_MAX: Final = 400
_KIND_MAX: Final = 64
# Characters of arguments that are rewritten in one spelling, and those whose numbers are normalised too; longer
# arguments are compared as they were sent. A message may hold a thousand calls, which share the third number.
ARGUMENTS_MAX: Final = 64 * 1024
_THOROUGH_MAX: Final = 1024
_ALL_ARGUMENTS_MAX: Final = 4 * ARGUMENTS_MAX
KEPT_MAX: Final = 1024  # characters of arguments whose spelling is cached: 2 MB at most

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that takes long, in steps that do not."""

decode: Final = msgspec.json.Decoder().decode
"""Strict JSON decoder. Raises `ValueError`."""


class DenseError(ValueError):
    """JSON holds too many values to be decoded at once."""


def decode_bounded(raw: msgspec.Raw) -> Any:
    """Decode a part of a request. Raises `ValueError`, and `DenseError` if it holds too many values."""
    size = len(raw)
    if size <= DECODED_UNCOUNTED_BYTES:
        return decode(raw)
    if takes_long(bytes(raw)):
        raise DenseError
    return decode(raw) if size <= LONG_TEXT_CHARS else shortened(decode(raw))


def takes_long(message: bytes) -> bool:
    """Return whether a message of more than 128 KB would take long to decode."""
    size = len(message)
    special = size - len(message.translate(None, _SPECIAL if size <= _LONG_BYTES else _SPECIAL_OR_NOT_ASCII))
    if special <= DECODED_VALUES_MAX:
        return False
    return size > _LONG_BYTES or (size > _LONG_BYTES // 2 and special > _SPECIAL_MAX) or is_dense(message)


def shortened(value: Any) -> Any:
    """Return a decoded value with its longest texts shortened, in place. Equal texts remain equal, and others do not
    become so.
    """
    kind = type(value)
    if kind is str:
        return value if len(value) <= LONG_TEXT_CHARS else _without_middle(value)
    if kind is list:
        for at, item in enumerate(value):
            if type(item) in _MAY_BE_LONG:
                value[at] = shortened(item)
    elif kind is dict:
        for name, item in value.items():
            if type(item) in _MAY_BE_LONG:
                value[name] = shortened(item)
    return value


def _without_middle(text: str) -> str:
    half = LONG_TEXT_CHARS // 2
    middle = text[half:-half].encode("utf-8", "surrogatepass")
    return f"{text[:half]}<{len(middle)} bytes:{xxhash.xxh3_128_hexdigest(middle)}>{text[-half:]}"


def is_dense(body: bytes) -> bool:
    """Return whether JSON holds too many values to be decoded at once. What does not begin like JSON is not: decoding
    it fails soon.
    """
    return (
        len(body) > DECODED_UNCOUNTED_BYTES
        and _begins_like_json(body)
        and has_too_many_values(body, DECODED_VALUES_MAX)
    )


def _begins_like_json(body: bytes) -> bool:
    return body[:_BEGIN_BYTES].translate(None, _BEFORE_JSON)[:1] in _JSON_STARTS


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> Callable[[], re.Pattern[AnyStr]]:
    """Return a function that compiles a pattern when it is first called. For patterns that few requests need: compiling
    one takes up to 0.5 ms, and a hook is a new process for each tool call.
    """
    return cache(partial(re.compile, pattern, flags))


def has_too_many_values(body: bytes, most: int = VALUES_MAX) -> bool:
    """Return whether a JSON body holds more than `most` values, or as many strings, without decoding it. Reads no
    further than necessary: a hostile body of any size takes a few milliseconds.
    """
    return in_one_go(count_values(body, most))


def count_values(body: bytes, most: int = VALUES_MAX) -> Steps[bool]:
    """Do the same step by step. Too many escape sequences count like too many values, because they take as long."""
    separators = escapes = 0
    for start in range(0, len(body), _COUNTED_PIECE):
        piece = body[start : start + _COUNTED_PIECE]
        separators += _separators(piece)
        if separators > most:
            break
        if len(body) > ESCAPES_FROM_BYTES:
            escapes += piece.count(b"\\")
            if escapes > _ESCAPES_MAX:
                return True
        yield
    else:
        return False  # the usual case, in one pass
    outside = _OutsideStrings(most)
    for start in range(0, len(body), _COUNTED_PIECE):
        yield
        if outside.add(body[start : start + _COUNTED_PIECE]):
            return True
    return False


def in_one_go(steps: Steps[T]) -> T:
    """Return the result of work that could be done step by step."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        return cast("T", done.value)


class ValueCounter:
    """Does the same for a body that arrives in pieces, and takes about as long for each of them."""

    __slots__ = ("_most", "_outside", "_pieces", "_separators", "_size", "_uncounted")

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = self._separators = 0
        self._uncounted: list[bytes] = []  # the first pieces: a body of `most` bytes does not hold more values
        # Those whose strings have not been looked at. That takes longer, and is not necessary while there are few
        # separators.
        self._pieces: deque[bytes] = deque()
        self._outside: _OutsideStrings | None = None

    def add(self, piece: bytes) -> bool:
        """Return whether it is known from the pieces so far that there are too many values."""
        self._pieces.append(piece)
        if self._outside is None:
            self._size += len(piece)
            self._uncounted.append(piece)
            if self._size <= self._most:
                return False
            self._separators += sum(map(_separators, self._uncounted))
            self._uncounted.clear()
            if self._separators <= self._most:
                return False
            self._outside = _OutsideStrings(self._most)
        outside = self._outside
        return any(outside.add(self._pieces.popleft()) for _ in range(min(2, len(self._pieces))))

    def rest(self) -> Iterator[bool]:
        """Look at the pieces that were left, after the last one: one for each result, until one is true."""
        while self._outside is not None and self._pieces:
            yield self._outside.add(self._pieces.popleft())


class _OutsideStrings:
    """Counts separators outside strings."""

    __slots__ = ("_escape", "_most", "_quotes", "_separators")

    def __init__(self, most: int) -> None:
        self._most = most
        self._quotes = self._separators = 0
        self._escape = b""  # the begin of an escape sequence that the next piece completes

    def add(self, piece: bytes) -> bool:
        piece = self._escape + piece
        cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        self._escape = b"\\" * cut
        # The quotes that remain begin or end a string.
        plain = piece[: len(piece) - cut].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        self._separators += _separators_by_byte(b"".join(parts[self._quotes % 2 :: 2]))
        self._quotes += len(parts) - 1
        return self._separators > self._most or self._quotes > 2 * self._most


def _separators(json: bytes) -> int:
    """Count commas, objects and lists: one less than the number of values, or more if strings contain them."""
    size, found, rest = len(json), 0, json
    most = size // _RARE
    if _separators_by_byte(json[::_SAMPLED]) * _SAMPLED < most:
        for separator in _SEPARATORS:
            rest = rest.replace(separator, b"", most - found)
            found = size - len(rest)
        if found < most:
            return found
    return _separators_by_byte(json)


def _separators_by_byte(json: bytes) -> int:
    return len(json) - len(json.translate(None, b",[{"))


def canonical(body: bytes) -> bytes:
    """Return compact JSON with sorted keys, or `body` unchanged if it is no JSON, or too large, or too dense."""
    if not body or len(body) > CANONICAL_MAX_BYTES or is_dense(body):
        return body
    if body.startswith(_BOM):
        body = body[3:]
    try:
        value = orjson.loads(body)
    except ValueError:
        return _canonical_lenient(body)
    try:
        spelled = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # nested deeper than orjson writes
        return body
    # Few bodies contain what `find` looks for, and it takes less than half the time of the regular expressions.
    if (spelled.find(b".0") >= 0 and _WHOLE_FLOAT(spelled)) or (spelled.find(b"+") >= 0 and _LARGE_FLOAT(spelled)):
        return _with_canonical_numbers(body, spelled)
    return spelled


def _with_canonical_numbers(body: bytes, spelled: bytes) -> bytes:
    """1, 1.0 and 1e0 are one number. orjson rounds integers over 64 bits, which would make two bodies equal."""
    if len(body) > _ONE_BY_ONE_MAX_BYTES:
        return body if _LARGE_FLOAT(spelled) else spelled
    try:
        value = _integers(msgspec.json.decode(body))
    except _BAD_JSON:
        return spelled
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer over 64 bits
        return msgspec.json.encode(value, order="sorted")


def _integers(value: object, depth: int = 0) -> object:
    # Python's own recursion limit depends on the depth of the caller's stack; the result must not.
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {key: _integers(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        # Numbers, of which a list may hold many, are converted without a call each.
        return [
            (int(item) if item.is_integer() else item) if type(item) is float else _integers(item, depth + 1)
            for item in value
        ]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _canonical_lenient(body: bytes) -> bytes:
    """The standard library reads lone surrogates and NaN; the fast decoders do not."""
    if len(body) > _ONE_BY_ONE_MAX_BYTES:
        return body
    try:
        return json.dumps(_integers(json.loads(body)), sort_keys=True, separators=(",", ":")).encode()
    except _BAD_JSON:
        return body


def load(body: bytes) -> Any:
    """Decode JSON, also what a strict decoder rejects and some servers read (BOM, UTF-16, lone surrogates, NaN, control
    characters in strings, a NUL at the end); None if it is no JSON object or list, is too large, or holds too many
    values.
    """
    if len(body) > LOADED_MAX_BYTES or is_dense(body):
        return None
    try:
        return orjson.loads(body)
    except ValueError:
        if not _begins_like_json(body):
            return None
        try:
            decoded = body.decode(json.detect_encoding(body), "replace").rstrip("\0")
            return json.loads(decoded, parse_int=_integer, strict=False)
        except (ValueError, RecursionError):
            return None


def _integer(digits: str) -> int | float:
    # int() rejects thousands of digits, and one absurd number must not hide the conversation.
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def as_list(value: object) -> list[Any]:
    """Return a list unchanged, [] for None, and anything else as the only item."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def truth(value: object) -> bool:
    """Read a flag that may have been sent as a number or a string."""
    return bool(value) and value not in ("false", "False", "0")


def count(value: object) -> int | None:
    """Read a whole number; None for anything else."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def at_least_one(value: object) -> int:
    """Read how many answers a request asks for; 1 if the field is missing or invalid."""
    return max(1, count(value) or 1)


def text(value: object) -> str:
    """Return a string unchanged, "" for None, and anything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value).decode()


def json_text(value: object) -> bytes:
    """Return a decoded value as compact JSON with sorted keys."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, an integer over 64 bits, or nested too deep
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def clean(value: str) -> str:
    """Replace lone surrogates, so that the text can be encoded."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def arguments(value: object, most: int = ARGUMENTS_MAX) -> str:
    """Return the arguments of a call, given as a value or as text, in one spelling if they are JSON. Those with more
    than `most` characters are left as they are.
    """
    if isinstance(value, str):
        if len(value) <= KEPT_MAX <= most:
            return respelled_short(value)
        return _respelled(value, most) if value.startswith(_NESTING) or value.lstrip().startswith(_NESTING) else value
    if value is None:
        return ""
    spelled = json_text(value)
    return (canonical(spelled) if len(spelled) <= most and b".0" in spelled else spelled).decode()


def arguments_share(calls: int) -> int:
    """Return how many characters of the arguments of each call of a message are brought into one spelling."""
    return ARGUMENTS_MAX if calls <= 4 else _ALL_ARGUMENTS_MAX // calls


@lru_cache(1024)  # the same call is in an answer and in the next requests
def respelled_short(value: str) -> str:
    return _respelled(value, KEPT_MAX) if value.lstrip().startswith(_NESTING) else value


def _respelled(value: str, most: int) -> str:
    if len(value) > most:
        return value
    long = len(value) > _THOROUGH_MAX
    try:
        spelled = orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
        if long or (spelled.find(b".0") < 0 and spelled.find(b"e+") < 0):  # `in` takes twice as long
            return spelled.decode()
    except (ValueError, TypeError):  # not JSON, or deeper than orjson writes
        if long:
            return value
    # Three times as slow: normalises numbers, and reads what the fast decoder rejects.
    return canonical(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def content(value: object) -> str:
    """Return the text of a content: a string, or a list of parts joined by line breaks. Reasoning is left out."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [part(item) for item in value[:ITEMS_MAX] if not is_reasoning(item)]
        if len(value) > ITEMS_MAX:
            texts.append(more(value))
        return "\n".join(texts)
    return text(value)


def more(items: list[Any]) -> str:
    """Return the digest that represents the items beyond `ITEMS_MAX`."""
    return f"<more:{xxhash.xxh3_64_hexdigest(json_text(items[ITEMS_MAX:]))}>"


def prompt_text(value: object) -> str:
    """Return the text of a prompt or of a batch of prompts; token ids as a digest."""
    if not isinstance(value, list):
        return text(value)
    try:
        return "\n".join(value)
    except TypeError:
        return f"<tokens:{xxhash.xxh3_64_hexdigest(json_text(value))}>"


def is_reasoning(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    return isinstance(kind, str) and kind in _REASONING_PARTS


def part(item: object) -> str:
    """Return the text of one part; media and unknown types as `<type:digest>`."""
    if not isinstance(item, dict):
        return text(item)
    kind = item.get("type", "text")
    if not isinstance(kind, str):
        return media(text(kind), item)
    if kind in _TEXT_PARTS and "text" in item:
        return text(item["text"])
    if kind == "refusal":
        return text(item.get("refusal"))
    return media(kind, item)


def media(kind: str, item: dict[str, Any]) -> str:
    """Return `<kind:digest>`: equal for equal bytes, whatever ids and cache marks come with them."""
    if not _NOT_IDENTITY.isdisjoint(item):
        item = without_ids(item)
    return f"<{kind[:_KIND_MAX]}:{xxhash.xxh3_64_hexdigest(json_text(item))}>"


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields except ids and cache marks."""
    return {key: value for key, value in item.items() if key not in _NOT_IDENTITY}
