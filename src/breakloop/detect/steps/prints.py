"""Fingerprints of a step, 8 bytes each (DETECTION): A and A' of its calls, R and R' of what came back, K its class, E
the masked error, T what the model said, U what the user did. Keyed digests; nothing of a text can be read from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson
import xxhash

from breakloop.detect.steps.masks import loose, own, shape, steady, undigited, words
from breakloop.detect.steps.tools import changes
from breakloop.model.call import ToolCall
from breakloop.model.step import Result, Step

Digest = Callable[[bytes], bytes]

NONE: Final = bytes(8)
OK, EMPTY, ACK, ERROR, RATE, UNKNOWN, UNSEEN = range(7)  # K

# Keys whose values differ from call to call and say nothing. Ids of records are not among them: they are the matter.
VOLATILE_KEYS: Final = frozenset((
    "nonce", "request_id", "requestid", "trace_id", "traceid", "span_id", "correlation_id", "correlationid",
    "idempotency_key", "idempotencykey", "timestamp", "ts", "call_id", "callid", "tool_call_id", "toolcallid",
    "invocation_id", "message_id", "client_request_id", "_meta", "progresstoken", "x_request_id",
))  # fmt: skip
_RATE_FORM: Final = re.compile(r"rate.?limit|too many requests|\b429\b", re.IGNORECASE).search
_UNKNOWN_FORM: Final = re.compile(
    r"(?:unknown|no such|invalid|unrecognized|non-?existent) (?:tool|function)|(?:tool|function) \S{1,80} (?:is )?"
    r"(?:not found|unknown|not available|does not exist)",
    re.IGNORECASE,
).search
_EMPTY: Final = frozenset((
    b"", b"null", b"none", b"[]", b"{}", b'""', b"()", b"undefined", b"no output", b"(no output)",
))  # fmt: skip
_ACK_FORM: Final = re.compile(
    rb"\b(?:ok|okay|done|success\w*|true|complet\w+|saved|updated|created|deleted|removed|sent|accepted|applied|"
    rb"written|wrote|edited|moved|added|submitted|executed|finished|set|recorded|stored)\b",
    re.IGNORECASE,
).search
_ACK_MAX: Final = 60
_SHORT: Final = 256
_WORDS_READ: Final = 3000
INFORMATIVE: Final = 80  # bytes; shorter results are acknowledgements as often as not
_ERROR_LOOK: Final = 400


class Incoming(NamedTuple):
    """A text that came from outside, or an answer."""

    key: bytes  # its digest
    text: str  # without what changes by itself
    plain: bytes  # the same, white space folded


class Pair(NamedTuple):
    """One call and what it returned."""

    name: str
    a: bytes
    loose_a: bytes
    r: bytes
    loose_r: bytes
    e: bytes
    kind: int  # K
    size: int  # of what came back, in characters
    changes: bool

    @property
    def failed(self) -> bool:
        """Tell whether the result is bad."""
        return self.kind in (ERROR, RATE, UNKNOWN)


_NOTHING: Final = Incoming(NONE, "", b"")


class Prints(NamedTuple):
    """A step's fingerprints."""

    pairs: tuple[Pair, ...]
    round: bytes  # the step as a whole: the sorted set of (A, R), or of T and U where nothing was called
    said: bytes  # T; NONE where nothing was said
    users: tuple[bytes, ...]  # U of each text
    incoming: tuple[Incoming, ...]  # each result, then each text of the user
    words: tuple[int, ...]  # of what was said


class Printer:
    """Makes the fingerprints of one fleet: with the same digest function the same ones everywhere."""

    __slots__ = ("_digest", "seed")

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self.seed = int.from_bytes(digest(b"seed"), "little")  # of line and word digests

    def of(self, *parts: bytes) -> bytes:
        """Return the digest of short parts of fixed length or known order."""
        return self._digest(b"\x00".join(parts))

    def text(self, text: str) -> bytes:
        """Return the digest of a text whatever its length, white space folded."""
        return self.plain(folded(text))

    def plain(self, plain: bytes) -> bytes:
        """Return the digest of bytes whatever their length."""
        return self._digest(xxhash.xxh3_128_digest(plain, self.seed) if len(plain) > _SHORT else plain)

    def step(self, step: Step) -> Prints:
        """Return the fingerprints of a step."""
        results = [self._incoming(result.text) for result in step.results]
        pairs = tuple(
            [self._pair(call, result, step, results[at] if at >= 0 else _NOTHING) for call, result, at in paired(step)]
        )
        users = [self._incoming(text) for text in step.users]
        said = self._incoming(step.said).key if step.said else NONE
        if pairs:
            whole = b"".join(sorted({pair.a + pair.r for pair in pairs}))
        else:
            whole = said + b"".join([one.key for one in users])
        spoken = words(step.said, _WORDS_READ, self.seed & 0xFFFFFFFF) if step.said else ()
        keys = tuple([one.key for one in users])
        return Prints(pairs, self._digest(whole), said, keys, (*results, *users), tuple(spoken))

    def _incoming(self, text: str) -> Incoming:
        text = steady(own(text)).strip()
        plain = folded(text)
        return Incoming(self.plain(plain), text, plain)

    def _pair(self, call: ToolCall, result: Result | None, step: Step, incoming: Incoming) -> Pair:
        name = call.name
        arguments = canonical(call.arguments)
        tool = name.encode("utf-8", "surrogatepass")
        a = self.of(tool, self.text(arguments))
        loose_a = self.of(tool, self.text(loose(steady(arguments))))
        known = not step.tools or step.as_text or name in step.tools
        changing = changes(name, arguments)
        if result is None:
            return Pair(name, a, loose_a, NONE, NONE, NONE, UNSEEN, 0, changing)
        r, text, plain = incoming
        kind = klass(text, plain, result)
        if kind == ERROR and not known:  # some clients declare by turns what there is: only a failure tells
            kind = UNKNOWN
        if result.media:
            r = self.of(r, *(one.encode("utf-8", "surrogatepass") for one in result.media))
        loose_r = self.plain(undigited(plain)) if len(plain) >= INFORMATIVE and not changing else NONE
        e = self.text(shape(text[:2000])) if kind in (ERROR, RATE, UNKNOWN) else NONE
        return Pair(name, a, loose_a, r, loose_r, e, kind, size(result.text), changing)


def size(text: str) -> int:
    """Return a text's bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def paired(step: Step) -> list[tuple[ToolCall, Result | None, int]]:
    """Return the step's calls with their results and where these stand: by id where both have one, else by order."""
    results = step.results
    by_id = {result.call_id: at for at, result in enumerate(results) if result.call_id}
    if by_id and step.call_ids:
        ids = step.call_ids + ("",) * (len(step.calls) - len(step.call_ids))
        places = [by_id.get(one, -1) for one in ids]
    else:
        places = [at if at < len(results) else -1 for at in range(len(step.calls))]
    return [(call, results[at] if at >= 0 else None, at) for call, at in zip(step.calls, places, strict=False)]


def folded(text: str) -> bytes:
    """Return a text with white space folded."""
    return " ".join(text.split()).encode("utf-8", "surrogatepass")


def klass(text: str, plain: bytes, result: Result) -> int:
    """Return the class of a result (K). Whether it is bad `wire` has read: by flag, status or form, never by words."""
    if result.error:
        if _UNKNOWN_FORM(text, 0, _ERROR_LOOK):
            return UNKNOWN
        return RATE if _RATE_FORM(text, 0, _ERROR_LOOK) else ERROR
    if result.media:
        return OK
    if len(plain) > _ACK_MAX:
        return OK
    return EMPTY if plain.lower() in _EMPTY else ACK if _ACK_FORM(plain) else OK


def canonical(arguments: str) -> str:
    """Return arguments in one spelling, volatile keys dropped; what is no JSON stays as it is."""
    if arguments.lstrip()[:1] not in ("{", "["):
        return arguments
    try:
        value = orjson.loads(arguments)
        return orjson.dumps(_without(value), option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, RecursionError, orjson.JSONEncodeError):  # no JSON, or nested too deep
        return arguments


def _without(value: Any) -> Any:
    if type(value) is dict:
        return {key: _without(one) for key, one in value.items() if key.lower() not in VOLATILE_KEYS}
    if type(value) is list:
        return [_without(one) for one in value]
    return value
