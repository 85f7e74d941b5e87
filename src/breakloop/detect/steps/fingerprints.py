"""Fingerprints of a step: keyed digests of 8 bytes, from which no text can be read. In names and comments, A is a call
with its arguments, A' the same with numbers masked (`loose_a`), R its result, E the masked error, K the class of the
result.

Whether a call changes something is guessed from its name and arguments. The guess errs towards a change: a change that
is none hides a loop for a while, a missed one stops honest work.

Texts are masked before they are compared: times, durations, ids and our own notes everywhere; paths, quotes and numbers
only in errors. Each mask has a cheap test first, because most texts need none, and each pattern begins with a character
or a class, because its search is fastest then.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec
import orjson
import xxhash

from breakloop.detect.steps.purposes import (
    LIMITED,
    MARKS,
    NO_EFFECT,
    NO_WAIT,
    PLAIN,
    SHORT,
    effect_by_name,
    says,
    waits,
    waits_by_name,
)
from breakloop.detect.steps.results import APART, LOW_APART, content, is_bare
from breakloop.dialects.content import lazy_pattern
from breakloop.model.call import Result, Step, ToolCall
from breakloop.model.decision import END, MARK, MARKED_NOTE_MAX

_MARK: Final = MARK.encode()
_END: Final = END.encode()
_DIGITS: Final = b"0123456789"
# As a number, a character is found by `in` in a quarter of the time, and in an eighth of the time of `find`.
_ZERO, _HYPHEN, _COLON, _HASH, _BRACKET, _PARENTHESIS, _LESS, _MORE = b"0-:#[(<>"
_WHITE: Final = b" \t\n\r\x0b\x0c"
BLANKS: Final = b" \t\r\x0b\x0c"  # white space within a line
_UUID_SIZE: Final = 36
_UUID_TEST: Final = re.compile(rb"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-").search
_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b").sub
# A time of day, with or without a date, and a duration: what follows the first digit. Thousandths after a comma are
# only recognised in a log line; in a table, a comma separates values.
_CLOCK_FORM: Final = (
    rb"\d(?:\d\d-\d\d-\d\d[T ]\d\d)?:\d\d(?::\d\d(?:\.\d+|,\d{3}(?=[] |\t)]))?)?"
    rb"(?: ?[AP]M\b|Z\b|[+-]\d\d:?\d\d\b)?"
)
_LENGTH_FORM: Final = rb"(?<![\d.,][0-9])[\d.,]*+ ?(?:ms|us|ns|s|secs?|seconds?|milliseconds?)\b"
_CLOCK_TEST: Final = re.compile(rb":[0-9][0-9]").search
_CLOCK: Final = lazy_pattern(rb"[0-9]" + _CLOCK_FORM)
_LENGTH: Final = lazy_pattern(rb"[0-9]" + _LENGTH_FORM)
_CLOCK_OR_LENGTH: Final = lazy_pattern(rb"[0-9](?:" + _CLOCK_FORM + rb"|" + _LENGTH_FORM + rb")")
# Without the characters in between, a duration is a digit and an "s". An address begins with "0x".
_BETWEEN: Final = b" munilecod"
_UNITS: Final = bytes(48 if code in _DIGITS else code if code in b"sx" else 46 for code in range(256))
_EITHER: Final = bytes(48 if code in _DIGITS else 115 if code in b"sx" else 46 for code in range(256))
_ADDRESS: Final = re.compile(rb"0x[0-9a-fA-F]{5,}").sub
_PROCESS: Final = re.compile(rb"[pPtT](?:id|ID|rocess|hread)[ =:#\[-]{1,2}\d+").sub
# Letters and digits as "a": a long id is found in a quarter of the time of an expression.
_AS_A: Final = bytes(97 if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_DIGITS_AS_ZERO: Final = bytes.maketrans(_DIGITS, b"0" * 10)
_LONG_ID: Final = b"a" * 12
_TYPED_ID: Final = re.compile(rb"\b(?:[A-Za-z]{2,12}[_-])?(?=[A-Za-z]*\d)[0-9A-Za-z]{12,}\b").sub
_NUMBER: Final = re.compile(rb"[0-9][\w.,:/-]*").sub
_QUOTED: Final = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`").sub
_QUOTE: Final = b"\x01"
_PLACES: Final = bytes.maketrans(b"/\\" + _DIGITS + b"#", b"#" * 12 + b"\x02")
_MARKS_APART: Final = bytes.maketrans(b"{}[]()<>\"'`:,;=", b" " * 15)
_WORD_MIN: Final = 4
_WORDS_READ: Final = 3000  # characters of a text
_LOOSE_MAX: Final = 2000


def own(raw: bytes) -> bytes:
    """Return a text without our own notes, which are never part of a fingerprint."""
    if raw.find(_MARK) < 0 or raw.find(_END) < 0:
        return raw
    *pieces, rest = raw.split(_END)
    return b"".join([_before_note(piece) for piece in pieces]) + rest


def _before_note(piece: bytes) -> bytes:
    """Return the text before the note that ends here; all of it if there is no note."""
    at = piece.rfind(_MARK)
    return piece[:at] if at >= 0 and len(piece) - at - len(_MARK) <= MARKED_NOTE_MAX else piece + _END


def steady(raw: bytes) -> bytes:
    """Return a text without what changes by itself: times, durations, addresses, process numbers, UUIDs."""
    units = raw.translate(_EITHER, _BETWEEN)
    if _ZERO not in units:
        return raw
    length = address = bool(units.partition(b"0s")[1])  # a short text is searched in a third of the time of `find`
    if length:
        units = raw.translate(_UNITS, _BETWEEN)
        length, address = units.find(b"0s") >= 0, units.find(b"0x") >= 0
    if _HYPHEN in raw and len(raw) >= _UUID_SIZE and _UUID_TEST(raw):
        raw = _UUID(b"~", raw)
    if address:
        raw = _ADDRESS(b"~", raw)
    if _COLON in raw and _CLOCK_TEST(raw):
        raw = (_CLOCK_OR_LENGTH().sub if length else _CLOCK().sub)(b"~", raw)
    elif length:
        raw = _LENGTH().sub(b"~", raw)
    low = raw.lower()
    if (
        low.partition(b"process")[1] or low.partition(b"thread")[1] or low.partition(b"pid")[1]
    ):  # the longest is fastest
        raw = _PROCESS(b"~", raw)
    return raw


def compact(raw: bytes) -> bytes:
    """Return a text without white space."""
    return raw.translate(None, _WHITE)


def folded(raw: bytes) -> bytes:
    """Return a text with white space folded, for short texts in which a space may matter."""
    return b" ".join(raw.split())


def lowered(raw: bytes) -> bytes:
    """Return a text in lower case, in any script."""
    return raw.decode("utf-8", "surrogatepass").lower().encode("utf-8", "surrogatepass")


def loose(raw: bytes) -> bytes:
    """Return a call's arguments with ids and tokens that begin with a digit masked, for `near`."""
    if _ZERO not in raw.translate(_DIGITS_AS_ZERO):  # deleting characters takes longer for a short text
        return raw
    if len(raw) >= _UUID_SIZE and _HYPHEN in raw and _UUID_TEST(raw):
        raw = _UUID(b"#", raw)
    head = raw[:_LOOSE_MAX]
    if head.translate(_AS_A).partition(_LONG_ID)[1]:
        head = _TYPED_ID(b"#", head)
    return _NUMBER(b"#", head) + raw[_LOOSE_MAX:]


def without_ids(raw: bytes) -> bytes:
    """Return the words of a text, each that has a digit in it masked: numbers, times and most ids."""
    words = raw.translate(_MARKS_APART).split()
    return b" ".join([word if len(word.translate(None, _DIGITS)) == len(word) else b"#" for word in words])


def shape(raw: bytes) -> bytes:
    """Return the form of an error or an empty result: quotes, paths and numbers masked, lines kept."""
    lines = _QUOTED(_QUOTE, raw).translate(_PLACES).split(b"\n")
    return b"\n".join([b" ".join([b"#" if _HASH in one else one for one in line.split()]) for line in lines])


def content_words(text: str) -> list[bytes]:
    """Return the different content words and numbers at the beginning of a text."""
    plain = text[:_WORDS_READ].lower().encode("utf-8", "surrogatepass").translate(APART)
    return [word for word in dict.fromkeys(plain.split()) if len(word) >= _WORD_MIN or word.isdigit()]


def word_digests(found: Sequence[bytes], seed: int) -> list[int]:
    """Return 32-bit digests of words."""
    return list(map(zlib.crc32, found, repeat(seed)))


def ranked(words: Sequence[bytes], digests: list[int]) -> list[int]:
    """Return the digests of words in an order that does not depend on the key, so that detectors with different keys
    compare the same sample of words. The order is that of their checksums; without words, it is left as it is."""
    if not words:
        return digests
    by_rank = dict(zip(map(zlib.crc32, words), digests, strict=True))
    return [by_rank[rank] for rank in sorted(by_rank)]


OTHER, READS, CHANGES, RUNS = range(4)

_READING: Final = frozenset((
    "get", "list", "read", "search", "find", "view", "show", "fetch", "query", "check", "look", "describe", "inspect",
))  # fmt: skip
_CHANGING: Final = frozenset((
    "write", "edit", "create", "insert", "replace", "save", "delete", "remove", "update", "apply", "patch", "submit",
    "send", "post", "book", "cancel", "modify", "move", "put", "add", "set", "append", "upload", "commit", "push",
    "rename", "exchange", "return", "transfer", "todo", "generate", "change", "adjust", "rewrite", "upsert",
))  # fmt: skip
_SHELLS: Final = frozenset((
    "bash", "sh", "shell", "zsh", "terminal", "exec", "execute", "run", "command", "commands", "cmd", "powershell",
    "python", "code", "ipython", "repl", "interpreter", "console", "script",
))  # fmt: skip
# Names of tools that stand for another agent, or send it something.
_HANDING: Final = frozenset((
    "agent", "agents", "subagent", "ask", "assign", "delegate", "handoff", "message", "send", "task", "transfer",
))  # fmt: skip
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+").findall
# What changes something in a command line: a redirection, a line of code, a command. Each pattern begins with a
# character, or is only tried if one of its words occurs, because most commands only read. No pattern may read past the
# point where it could begin again, or a line full of beginnings takes quadratic time.
_REDIRECTION: Final = re.compile(rb">(?<![-=<>0-9&|]>)>?\s*(?!/dev/null|&|=)[\w./~$\"']").search
_WRITING: Final = re.compile(rb"\.(?:write|write_text|to_csv|save)\(").search
_OPENS_FOR_WRITING: Final = re.compile(rb"open\([^()\n]*['\"][wax]b?\+?['\"]").search
_COMMAND: Final = lazy_pattern(
    rb"\b(?:sed\s+(?:-\w+\s+){0,4}-\w*i|tee\s|"
    rb"git\s+(?:add|commit|apply|push|checkout|stash|reset|merge|rebase|revert)\b|"
    rb"(?:mv|rm|cp|mkdir|touch|chmod|patch|unzip|tar)\s|(?:pip3?|npm|yarn|apt|apt-get|conda|uv)\s+(?:install|i|add)\b)"
)
_COMMAND_WORDS: Final = frozenset((
    b"sed", b"tee", b"git", b"mv", b"rm", b"cp", b"mkdir", b"touch", b"chmod", b"patch", b"unzip", b"tar", b"pip",
    b"pip3", b"npm", b"yarn", b"apt", b"conda", b"uv",
))  # fmt: skip
# A comment in a command that is part of JSON, up to the end of its line. Nothing with quotes, which may be a string.
_COMMENT: Final = re.compile(rb"(?: |;|(?<=\\n))#[^\"'\\#]{0,200}(?=\\n|\")").sub
_LOOKS: Final = lazy_pattern(rb"\"(?:command|action|mode|operation)\":\s?\"(?:view|read|list|get|show|open|search)")
_INNER: Final = re.compile(rb"\"(?:tool_name|tool|function|method)\":\s?\"([\w./-]{1,80})\"").search
_READ_MAX: Final = 4000
_NAMES_MAX: Final = 1000
_SAID_MAX: Final = 1000
_NAME_MAX: Final = 200


class ToolOptions(NamedTuple):
    """What a policy sets for a tool."""

    exempt: bool = False  # its calls are never counted
    poll: bool = False  # a look at something that goes on by itself: time decides what a repeat counts
    include: frozenset[str] = frozenset()  # only these arguments distinguish calls; empty: all
    exclude: frozenset[str] = frozenset()  # these do not
    max_per_run: int = 0  # calls allowed in a run; 0: any number


class ToolTraits(msgspec.Struct, frozen=True, gc=False):
    """What is known about a tool."""

    name: str
    raw: bytes
    key: bytes  # 4 bytes
    manner: int
    options: ToolOptions
    to_agent: bool  # it stands for another agent, or sends it something
    hands_on: bool  # its arguments may be a message to another agent; commands, files and searches are not
    waits: int  # by its name
    effect: int


class ToolTable:
    """Tools by name, with their options. The same names occur in each step, so they are cached."""

    __slots__ = ("_exact", "_prefixes", "known")

    def __init__(self, options: Mapping[str, ToolOptions]) -> None:
        """Take options by name. A name that ends in `*` is a prefix; the longest one that matches applies."""
        self._exact = {name: one for name, one in options.items() if not name.endswith("*")}
        patterns = sorted((name for name in options if name.endswith("*")), key=len, reverse=True)
        self._prefixes = [(name[:-1], options[name]) for name in patterns]
        self.known: dict[str, ToolTraits] = {}

    def of(self, name: str) -> ToolTraits:
        known = self.known.get(name)
        if known is None:
            raw = name.encode("utf-8", "surrogatepass")
            short = name[:_NAME_MAX]
            how, options = manner(short), self._options(name)
            key, agent = zlib.crc32(raw).to_bytes(4, "little"), to_agent(short)
            purposes = waits_by_name(short), effect_by_name(short)
            known = ToolTraits(name, raw, key, how, options, agent, agent or how == OTHER, *purposes)
            if len(name) <= _NAME_MAX:
                if len(self.known) >= _NAMES_MAX:
                    self.known.clear()
                self.known[name] = known
        return known

    def _options(self, name: str) -> ToolOptions:
        if name in self._exact:
            return self._exact[name]
        return next((one for prefix, one in self._prefixes if name.startswith(prefix)), NO_OPTIONS)


NO_OPTIONS: Final = ToolOptions()


def manner(name: str) -> int:
    """Return what a tool does, by its name: it reads, changes something, runs commands or code, or something else."""
    words = [word.lower() for word in _WORDS(name)]
    if not words:
        return OTHER
    if words[0] in _READING:
        return READS
    if not _SHELLS.isdisjoint(words):
        return RUNS
    return OTHER if _CHANGING.isdisjoint(words) else CHANGES


def to_agent(name: str) -> bool:
    """Tell whether a tool stands for another agent, or sends it something, by its name."""
    return not _HANDING.isdisjoint([word.lower() for word in _WORDS(name)])


def changes(how: int, arguments: bytes) -> bool:
    """Tell whether a call changes something; `how` is the tool's `manner`."""
    if how == CHANGES:
        return _LOOKS().search(arguments, 0, _READ_MAX) is None
    if how != RUNS:
        return False
    inner = _INNER(arguments, 0, _READ_MAX)  # a tool that calls other tools
    if inner is not None:
        return changes(manner(inner[1].decode()), b"")
    return _command_changes(arguments[:_READ_MAX])


def _command_changes(line: bytes) -> bool:
    if (_LESS in line and line.find(b"<<") >= 0) or (_MORE in line and _REDIRECTION(line)):
        return True
    if _PARENTHESIS in line and (_WRITING(line) or _OPENS_FOR_WRITING(line)):
        return True
    return not _COMMAND_WORDS.isdisjoint(line.translate(APART).split()) and _COMMAND().search(line) is not None


Digest = Callable[[bytes], bytes]

NONE: Final = bytes(8)
OK, EMPTY, ACK, ERROR, RATE, UNKNOWN, UNSEEN = range(7)  # K
NO_EVIDENCE: Final = (UNSEEN, RATE)  # not known, or the tool's own rate limit

# Keys whose values differ from call to call and say nothing. Ids of records are not among them: they are the matter.
VOLATILE_KEYS: Final = frozenset((
    "nonce", "request_id", "requestid", "trace_id", "traceid", "span_id", "correlation_id", "correlationid",
    "idempotency_key", "idempotencykey", "timestamp", "ts", "call_id", "callid", "tool_call_id", "toolcallid",
    "invocation_id", "message_id", "client_request_id", "_meta", "progresstoken", "x_request_id",
))  # fmt: skip
_RATE_FORM: Final = re.compile(rb"rate.?limit|too many requests|\b429\b", re.IGNORECASE).search
_UNKNOWN_FORM: Final = lazy_pattern(
    rb"(?:unknown|no such|invalid|unrecognized|non-?existent) (?:tool|function)|(?:tool|function) \S{1,80} (?:is )?"
    rb"(?:not found|unknown|not available|does not exist)",
    re.IGNORECASE,
)
_EMPTY: Final = frozenset((
    b"", b"null", b"none", b"[]", b"{}", b'""', b"()", b"undefined", b"no output", b"(no output)",
))  # fmt: skip
_ACK_FORM: Final = lazy_pattern(
    rb"\b(?:ok|okay|done|success\w*|true|complet\w+|saved|updated|created|deleted|removed|sent|accepted|applied|"
    rb"written|wrote|edited|changed|moved|added|submitted|executed|finished|set|recorded|stored|clicked|pressed|typed|"
    rb"scrolled|dragged|tapped|swiped|entered|selected)\b",
    re.IGNORECASE,
)
# Up to five words may come before: "Output does not match", "tool result: error". "0 failed" and "no errors" are none.
_BEFORE: Final = rb"\W{0,9}(?:(?!(?:0|no|zero|without)\b)\w{1,20}\W{1,9}){0,5}?"
_VERDICTS: Final = (
    rb"revise|revision|rejected|reject|redo|not yet|not approved|not accepted|not good enough|insufficient|incomplete|"
    rb"unsatisfactory|try again|needs? (?:more|work|revision|changes)|changes requested"
)
_REFUSALS: Final = (
    rb"error|errors|failed|failure|fails|exception|traceback|fatal|invalid|denied|refused|cannot|can't|couldn't|unable|"
    rb"not|missing|unknown|unexpected|forbidden|unauthori[sz]ed|conflict|no such|timed out"
)
_REFUSES: Final = lazy_pattern(_BEFORE + rb"(?:" + _REFUSALS + rb"|" + _VERDICTS + rb")\b", re.IGNORECASE)
_ASKS_AGAIN: Final = lazy_pattern(_BEFORE + rb"(?:" + _VERDICTS + rb")\b", re.IGNORECASE)
# One of them is in each refusal: most results have none, and this test takes a fifth of the time.
_REFUSING: Final = frozenset((
    b"error", b"errors", b"failed", b"failure", b"fails", b"exception", b"traceback", b"fatal", b"invalid", b"denied",
    b"refused", b"cannot", b"can", b"couldn", b"unable", b"not", b"missing", b"unknown", b"unexpected", b"forbidden",
    b"unauthorized", b"unauthorised", b"conflict", b"such", b"timed", b"revise", b"revision", b"rejected", b"reject",
    b"redo", b"insufficient", b"incomplete", b"unsatisfactory", b"try", b"need", b"needs", b"changes",
))  # fmt: skip
_OPENING: Final = 160  # bytes: the words before a refusal
# Letters, digits and underscores, in lower case: what patterns take for words. A refusal is among the first seven, and
# these are within so many bytes.
_LOW_WORDS: Final = bytes(
    ord(chr(code).lower()) if code < 128 and (chr(code).isalnum() or code == 95) else 32 for code in range(256)
)
_BEGINNING: Final = 200
_FIRST: Final = 7
_NOTABLE: Final = _REFUSING | MARKS  # one of them is in each short result of which more is to be read
SHORT_MAX: Final = 400  # bytes; a longer text that opens with "error" may be a page about errors
# As the first words of a result, behind brackets and the like.
_REFUSED_FORM: Final = lazy_pattern(
    rb"\W{0,9}(?:errors?|failed|failure|fatal|exception|traceback|cannot|can't|could not|couldn't|unable to|invalid|"
    rb"denied|permission denied|access denied|refused|rejected|forbidden|unauthori[sz]ed|no such|"
    rb"not (?:allowed|found|permitted|supported|possible)|no (?:changes?|replacements?) (?:was|were|made|performed))\b",
    re.IGNORECASE,
)
_NAME_FORM: Final = re.compile(r"[^\W\d][\w.-]{0,47}").fullmatch
_OPENS: Final = ("{", "[")
_KEPT_MAX: Final = 1024  # characters of arguments whose form is cached: 2 MB at most
_ACK_MAX: Final = 60
_ACK_LOOK: Final = 200
_SHORT: Final = 256
INFORMATIVE: Final = 80  # bytes; shorter results are acknowledgements as often as not
_NESTING: Final = frozenset((dict, list))
_ERROR_LOOK: Final = 400
_ERROR_READ: Final = 2000


class IncomingStep(msgspec.Struct, gc=False):
    """A text that came from outside, or an answer. (A struct is made and read in a third of a named tuple's time.)"""

    key: bytes  # its digest
    text: bytes  # without what changes by itself
    plain: bytes  # the same without white space
    lines: bytes  # the same without white space except for line breaks
    size: int  # in bytes, as it came
    media: Sequence[int] = ()  # digests of the media beside the text, which the key stands for too


class CallResult(msgspec.Struct, gc=False):
    """One call and its result. What comes from the call alone is in `recent_answers.RecentCall`, too."""

    tool: ToolTraits
    a: bytes
    loose_a: bytes
    r: bytes
    e: bytes  # 4 bytes
    kind: int  # K
    failed: bool  # the result is bad
    size: int  # of the result, in bytes
    changes: bool
    telling: bool  # the result is informative, and the call changes nothing
    text: bytes  # of the result, without what changes by itself
    refused: bool  # the result is not bad, but it is short and opens with words of refusal or failure
    waits: int
    wait_s: float  # how long a wait was to take
    effect: int  # of the call, if it succeeds
    says: int = PLAIN  # what a short result says


_NO_ERROR: Final = bytes(4)
_NOT_DONE: Final = (UNSEEN, RATE)  # not known to have changed anything
_TELLING: Final = (OK, ERROR, UNKNOWN)
_NO_NEWS: Final = lazy_pattern(
    rb"\W{0,9}(?:no|none|nothing|zero|0|empty|idle|unchanged|all (?:clear|good|quiet|well)|up to date)\b", re.IGNORECASE
)


class AnswerFingerprints(msgspec.Struct, gc=False):
    """The fingerprints of an answer, which a step begins with."""

    said: bytes  # the model's text; NONE without text
    words: list[int]  # digests; ranked if the words themselves are not known
    calls: list[CallResult]  # without results
    spoken: Sequence[bytes] = ()  # the words
    called: int = 0  # how many words, the last ones, are part of a call that is written as text


class StepFingerprints(msgspec.Struct, gc=False):
    """The fingerprints of a step."""

    pairs: tuple[CallResult, ...]
    round: bytes  # the whole step: the sorted set of (A, R), or its texts and results if there are no calls
    said: bytes  # the model's text; NONE without text
    users: tuple[bytes, ...]  # each text of the user
    incoming: list[IncomingStep]  # each result, then each text of the user
    words: list[int]  # of the model's text: digests; ranked if the words themselves are not known
    spoken: Sequence[bytes] = ()  # the words
    called: int = 0  # as in `AnswerFingerprints`


class StepFingerprinter:
    """Computes fingerprints. Instances with the same digest function compute the same ones."""

    __slots__ = ("_digest", "_known_tools", "_said", "_seed", "_tools", "seed", "tool")

    def __init__(self, digest: Digest, tools: Mapping[str, ToolOptions] | None = None) -> None:
        self._digest = digest
        self._tools = ToolTable(tools or {})
        self._known_tools = self._tools.known
        self.tool = self._tools.of  # returns what is known about a tool, by its name
        self._said: dict[int, bytes] = {}  # of the last answers, by the hash of the text
        self._seed = int.from_bytes(digest(b"seed"), "little")
        self.seed = self._seed & 0xFFFFFFFF  # for digests of lines and words

    def of(self, *parts: bytes) -> bytes:
        """Return the digest of short parts of fixed length or known order."""
        return self._digest(b"\x00".join(parts))

    def plain(self, plain: bytes) -> bytes:
        """Return the digest of bytes of any length."""
        return self._digest(xxhash.xxh3_128_digest(plain, self._seed) if len(plain) > _SHORT else plain)

    def incoming(self, text: str) -> IncomingStep:
        """Return a text without what changes by itself, and its digest."""
        raw = text.encode("utf-8", "surrogatepass")
        kept = steady(own(raw) if _BRACKET in raw else raw)
        lines = kept.translate(None, BLANKS)
        plain = lines.replace(b"\n", b"")  # as `compact`
        key = self._digest(xxhash.xxh3_128_digest(plain, self._seed) if len(plain) > _SHORT else plain)
        return IncomingStep(key, kept, plain, lines, len(raw))

    def result(self, text: str, failed: bool = False) -> IncomingStep:  # noqa: FBT001, FBT002 - a keyword takes time
        """Return the same for the content of a result. A short one is not masked, unless it is an error: its only
        content may be a time, a duration or an id."""
        raw = text.encode("utf-8", "surrogatepass")
        kept = content(own(raw) if _BRACKET in raw else raw)
        if failed or len(kept) > INFORMATIVE:
            kept = steady(kept)
        lines = kept.translate(None, BLANKS)
        plain = lines.replace(b"\n", b"")
        key = self._digest(xxhash.xxh3_128_digest(plain, self._seed) if len(plain) > _SHORT else plain)
        return IncomingStep(key, kept, plain, lines, len(raw))

    def said(self, text: str) -> bytes:
        """Return the digest of an answer's text. The next request usually contains the same text, so it is kept."""
        key = self.incoming(text).key
        if len(self._said) >= _SAID_MAX:
            self._said.clear()
        self._said[hash(text)] = key
        return key

    def step(self, step: Step, answer: AnswerFingerprints | None = None) -> StepFingerprints:
        """Return the fingerprints of a step; `answer` has those of its text and calls if they are known already."""
        _, calls, call_ids, results, texts = step[:5]  # fields of a named tuple are slow to read one by one
        if answer is None:
            answer = self.answer(step)
        said, made = answer.said, answer.calls
        incoming: list[IncomingStep] = []
        failed, call_id = False, ""
        media: tuple[str, ...] = ()
        for result in results:
            text, failed, call_id, media = result[:]
            one = self.result(text, failed)
            if media:
                self._add_media(one, media)
            incoming.append(one)
        users = [*map(self.incoming, texts)] if texts else []
        keys = tuple([one.key for one in users]) if users else ()
        pairs: tuple[CallResult, ...] = ()
        if len(made) == 1 and len(calls) == 1 and len(results) == 1:  # as nearly always
            pair = made[0]
            pairs = (pair,)
            if not (call_ids and call_id and call_id != call_ids[0]):  # as `_belongs` has it
                self._add_result(pair, failed, media, step, incoming[0])
            whole = pair.a + pair.r
        elif calls and made:
            pairs = tuple(made[: len(calls)])
            for pair, (_, got, at) in zip(pairs, paired(step), strict=False):
                if got is not None:
                    self._add_result(pair, got.error, got.media, step, incoming[at])
            whole = b"".join(sorted({pair.a + pair.r for pair in pairs}))
        else:
            whole = b"".join((said, *[one.key for one in incoming], *keys))
        incoming += users
        round_ = self._digest(whole)
        return StepFingerprints(pairs, round_, said, keys, incoming, answer.words, answer.spoken, answer.called)

    def _add_media(self, one: IncomingStep, media: Sequence[str]) -> None:
        raw = [medium.encode("utf-8", "surrogatepass") for medium in media]
        one.media = list(map(zlib.crc32, raw, repeat(self.seed)))
        one.key = self.of(one.key, *raw)

    def answer(self, step: Step) -> AnswerFingerprints:
        """Return the fingerprints of a step's answer."""
        text, calls = step[:2]
        as_text = step.as_text
        made: list[CallResult] = []
        for call in calls:
            one = self._call(call)
            if as_text and not (_NAME_FORM(call.name) or call.name in step.tools):
                one.tool = msgspec.structs.replace(one.tool, name="")  # the model's words must not be in evidence
            made.append(one)
        if not text:
            return AnswerFingerprints(NONE, [], made)
        spoken = content_words(text)
        called = 0
        if as_text and made:
            of_call = frozenset(content_words(step.calls[0].arguments)).intersection(spoken)
            called = len(of_call)
            spoken = [*[word for word in spoken if word not in of_call], *[word for word in spoken if word in of_call]]
        said = self._said.get(hash(text)) or self.incoming(text).key
        return AnswerFingerprints(said, word_digests(spoken, self.seed), made, spoken, called)

    def known_call(
        self, name: str, a: bytes, loose_a: bytes, *, changes: bool, waits: int, wait_s: float, effect: int
    ) -> CallResult:
        """Return a call without its result from fingerprints that were kept."""
        result = (NONE, _NO_ERROR, UNSEEN, False, 0)
        return CallResult(self._tools.of(name), a, loose_a, *result, changes, False, b"", False, waits, wait_s, effect)

    def _call(self, call: ToolCall) -> CallResult:
        name, given = call[:]
        tool = self._known_tools.get(name) or self._tools.of(name)
        options, how = tool.options, tool.manner
        if options is NO_OPTIONS and len(given) <= _KEPT_MAX:  # as in `canonical`
            arguments = _canonical_short(given)
        else:
            arguments = _canonical(given, options)
        changing = how >= CHANGES and changes(how, arguments)
        waiting, wait_s = NO_WAIT, 0.0
        if tool.waits or not changing:
            waiting, wait_s = waits(tool.waits, arguments, how == RUNS)
            changing = changing and not waiting
        effect = tool.effect
        if effect and _LOOKS().search(arguments, 0, _READ_MAX):
            effect = NO_EFFECT
        begins, plain = tool.raw + b"\x00", b" ".join(arguments.split())  # as `folded`
        if how == RUNS and _HASH in plain and plain.startswith(b"{"):
            plain = _COMMENT(b"", plain)
        whole = begins + plain
        a = self._digest(xxhash.xxh3_128_digest(whole, self._seed) if len(whole) > _SHORT else whole)  # as `plain`
        masked = loose(plain)
        loose_a = a if masked is plain else self.plain(begins + masked)
        return CallResult(  # by position, and without a star: it is made for each call
            tool, a, loose_a, NONE, _NO_ERROR, UNSEEN, False, 0, changing, False, b"", False, waiting, wait_s, effect
        )  # fmt: skip

    def _add_result(
        self,
        made: CallResult,
        failed: bool,  # noqa: FBT001 - a keyword takes time
        media: Sequence[str],
        step: Step,
        incoming: IncomingStep,
    ) -> None:
        """Set what comes from the result."""
        text, plain = incoming.text, incoming.plain
        kind = OK
        if failed:
            kind = bad(text)
            if kind == ERROR and step.tools and not step.as_text and made.tool.name not in step.tools:
                kind = UNKNOWN  # some clients declare their tools in turns: only a failure shows it
            made.e = self.plain(compact(shape(text[:_ERROR_READ])))[:4]
        elif len(plain) <= _ACK_MAX and not media:
            kind = good(text)
        made.telling = not made.changes and (len(plain) >= INFORMATIVE or len(folded(text)) >= INFORMATIVE)
        if len(text) > _OPENING or not _NOTABLE.isdisjoint(text.translate(LOW_APART).split()):
            if not failed:
                made.refused = refuses(text)
            if len(plain) <= SHORT and not media:
                made.says = says(text)
                if made.says == LIMITED:
                    kind = RATE
        made.r, made.kind, made.failed, made.size, made.text = incoming.key, kind, failed, incoming.size, text


def _belongs(step: Step, result: Result) -> bool:
    """Tell whether the only result of a step is that of its only call: it has no other id."""
    return not (step.call_ids and result.call_id and result.call_id != step.call_ids[0])


def paired(step: Step) -> list[tuple[ToolCall, Result | None, int]]:
    """Return the calls with their results and the indexes of these: by id if both have one, else by order."""
    results = step.results
    if len(step.calls) == len(results) == 1:
        belongs = _belongs(step, results[0])
        return [(step.calls[0], results[0], 0) if belongs else (step.calls[0], None, -1)]
    by_id = {result.call_id: at for at, result in enumerate(results) if result.call_id}
    if by_id and step.call_ids:
        ids = step.call_ids + ("",) * (len(step.calls) - len(step.call_ids))
        places = [by_id.get(one, -1) for one in ids]
    else:
        places = [at if at < len(results) else -1 for at in range(len(step.calls))]
    return [(call, results[at] if at >= 0 else None, at) for call, at in zip(step.calls, places, strict=False)]


def bad(text: bytes) -> int:
    """Return the class of an error (K). Dialects read that it is one: by flag, status or format, not by its words."""
    if _UNKNOWN_FORM().search(text, 0, _ERROR_LOOK):
        return UNKNOWN
    return RATE if _RATE_FORM(text, 0, _ERROR_LOOK) else ERROR


def good(text: bytes) -> int:
    """Return the class of a short result that is not an error (K)."""
    short = folded(text)
    if len(short) > _ACK_MAX:
        return OK
    return EMPTY if short.lower() in _EMPTY or is_bare(short) else ACK if _ACK_FORM().search(short) else OK


def refuses(text: bytes) -> bool:
    """Tell whether a short text opens with words of refusal or failure. They do not make a result an error: they only
    tell that an attempt may have ended."""
    if len(text) > SHORT_MAX or _REFUSING.isdisjoint(text[:_BEGINNING].translate(_LOW_WORDS).split(None, _FIRST)):
        return False
    if _REFUSING.isdisjoint(text[:_OPENING].translate(LOW_APART).split()):
        return False
    return _REFUSES().match(text) is not None


def done(pair: CallResult) -> bool:
    """Tell whether a call changed something: its result is neither bad, nor does it open with words of failure instead
    of what was done."""
    if not pair.changes or pair.failed or pair.kind in _NOT_DONE:
        return False
    text = pair.text
    return _REFUSED_FORM().match(text, 0, _ACK_LOOK) is None or _ACK_FORM().search(text, 0, _ACK_LOOK) is not None


def tells_something(pair: CallResult) -> bool:
    """Tell whether a call returned something to work with: not a look at something that goes on by itself, an
    acknowledgement, or the news that there is none."""
    if pair.waits or pair.kind not in _TELLING:
        return False
    return pair.size > INFORMATIVE or _NO_NEWS().match(pair.text) is None


def no_news(text: bytes) -> bool:
    """Tell whether a text opens with the news that there is none."""
    return _NO_NEWS().match(text) is not None


def asks_again(text: bytes) -> bool:
    """Tell whether a text opens with the verdict that the work is to be done again."""
    return _ASKS_AGAIN().match(text) is not None


def is_answer_elsewhere(step: Step) -> bool:
    """Tell whether there are results without the answer that asked for them (`previous_response_id`)."""
    return bool(step.results) and not (step.calls or step.said)


def tells(result: IncomingStep, *, failed: bool) -> bool:
    """Tell whether a result whose call is not known shows that nothing was changed."""
    return failed or (len(result.text) >= INFORMATIVE and not _ACK_FORM().search(result.text, 0, _ACK_LOOK))


def canonical(arguments: str, options: ToolOptions = NO_OPTIONS) -> bytes:
    """Return arguments in canonical form, without what does not distinguish calls; unchanged if they are not JSON."""
    if options is NO_OPTIONS and len(arguments) <= _KEPT_MAX:
        return _canonical_short(arguments)
    return _canonical(arguments, options)


@lru_cache(1024)  # detectors compare the same call, and it is in an answer and in the next request
def _canonical_short(arguments: str) -> bytes:
    return _canonical(arguments, NO_OPTIONS)


def _canonical(arguments: str, options: ToolOptions) -> bytes:
    if arguments.startswith(_OPENS) or arguments.lstrip().startswith(_OPENS):
        try:
            value = orjson.loads(arguments)
            if options is not NO_OPTIONS and type(value) is dict:
                return orjson.dumps(_chosen(value, options), option=orjson.OPT_SORT_KEYS)
            return orjson.dumps(_without(value), option=orjson.OPT_SORT_KEYS)
        except (ValueError, RecursionError, orjson.JSONEncodeError):  # no JSON, or nested too deep
            pass
    return arguments.encode("utf-8", "surrogatepass")


def _chosen(value: dict[str, Any], options: ToolOptions) -> dict[str, Any]:
    """Select arguments by the policy's options. Arguments in `include` count even if they are volatile."""
    if options.include:
        return {key: _without(one) for key, one in value.items() if key in options.include - options.exclude}
    kept: dict[str, Any] = _without({key: one for key, one in value.items() if key not in options.exclude})
    return kept


def _without(value: Any) -> Any:
    if type(value) is dict:
        if VOLATILE_KEYS.isdisjoint(map(str.lower, value)) and _NESTING.isdisjoint(map(type, value.values())):
            return value  # as most
        return {key: _without(one) for key, one in value.items() if key.lower() not in VOLATILE_KEYS}
    if type(value) is list and not _NESTING.isdisjoint(map(type, value)):
        return [_without(one) for one in value]
    return value
