"""`similarity: simhash` (SPEC LD-3): how much the last requests of an agent are like the newest, as a weighted score.

Pure: a packed window and a request in, a packed window and a score out. Where windows are kept, and what follows from
a trip, is the engine's business. A window is one byte that says what it is, and 25 bytes a request, oldest first:
    1  flags: which of the following there are; whether the answer is awaited; whether the prompt is a short result
    8  SimHash of the prompt        8  SimHash of the answer        8  digest of the calls that the request shows

One compiled `similarity: simhash` block (SPEC LD-3): scores a call against the last ones of its caller and agent.
How that is counted is `detect.score`'s matter.

64-bit SimHash over word 3-grams (SPEC LD-3): texts that share most of their 3-grams differ in few bits.

A 3-gram's hash is made of its words' hashes, so every word is hashed once and no 3-gram is ever spelled out. The votes
of all 3-grams on one bit are counted at once, as the ones in a long integer, and not one by one.

Takes out of a text what changes from one turn of a loop to the next (SPEC LD-3), in this order: UUIDs and long hex
become `<id>`, ISO timestamps `<ts>`, numbers `<num>`; white space and case are folded.

A number is a run of digits that no letter leads: `42`, `12ms`, `order-17`, but not the names `utf8` and `file2.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

import xxhash

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.fingerprint import packed
from breakloop.detect.stateful import BLOCK, CallReaders, SeverityActions, StatefulDetector
from breakloop.model.call import Answer, Call, Step, ToolCall

_GRAM: Final = 3  # words
_BYTES: Final = 8  # of a SimHash; a word's hash has twice as many


def simhash(text: str, seed: int = 0) -> int:
    """Return the SimHash of a normalised text; 0 where there is no word in it. Who lacks the seed can test no guess."""
    words = text.encode("utf-8", "surrogatepass").split()
    hashes = b"".join(map(xxhash.xxh3_128_digest, words, repeat(seed)))
    # Column k holds byte k of every word's hash, the first word's lowest.
    columns = [int.from_bytes(hashes[place :: 2 * _BYTES], "little") for place in range(2 * _BYTES)]
    grams = len(words)
    if grams >= _GRAM:
        grams -= _GRAM - 1
        columns = [_joined(columns, place) for place in range(_BYTES)]
    ones = int.from_bytes(b"\x01" * grams, "little")
    masks = [ones << bit for bit in range(8)]
    majority, found, value = grams // 2, 0, 1
    for column in columns[:_BYTES]:
        for mask in masks:
            if (column & mask).bit_count() > majority:
                found += value
            value += value
    return found


def distance(one: int, other: int) -> int:
    """Return in how many bits two SimHashes differ: about 32 for texts that have nothing in common."""
    return (one ^ other).bit_count()


def _joined(columns: list[int], place: int) -> int:
    """One byte of every 3-gram: its first word's, its second's and its third's, each from another place of the hash.

    Were they from the same place, the order of the words would make no difference.
    """
    return columns[place] ^ (columns[_BYTES + place] >> 8) ^ (columns[(place + 3) % _BYTES] >> 16)


ID: Final = "<id>"
TS: Final = "<ts>"
NUM: Final = "<num>"

_LONG: Final = 16  # as many hex digits in a row are an id; fewer may be a word, or an abbreviated commit
_UUID: Final = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_ids: Final = re.compile(
    rf"(?<![0-9a-zA-Z])(?:{_UUID}|(?:0[xX])?[0-9a-fA-F]{{{_LONG},}})(?![0-9a-zA-Z])",
).sub
# A digit comes first, so that the search runs from digit to digit; what is before it is looked at afterwards.
_times: Final = re.compile(
    r"\d(?<!\d\d)\d{3}-\d\d-\d\d"
    r"(?:[Tt ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[Zz]|[+-]\d\d(?::?\d\d)?)?)?(?!\d)",
).sub
_numbers: Final = re.compile(r"\d(?<![^\W\d_]\d)(?<!\d\d)\d*(?:[.,]\d+)*(?:[eE][+-]?\d+)?").sub

# Whether there is anything to find is seen in a map of the text, which costs a twentieth of looking for it: every
# hex digit as `0`, or every digit; hyphens as they are.
_HEX_MAP: Final = bytes(48 if code in b"0123456789abcdefABCDEF" else 45 if code == 45 else 32 for code in range(256))
_DIGIT_MAP: Final = bytes(48 if code in b"0123456789" else 45 if code == 45 else 32 for code in range(256))
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"
_LONG_SHAPE: Final = b"0" * _LONG
_DATE_SHAPE: Final = b"0000-00-00"


def normalised(text: str) -> str:
    """Return what stays the same: `Page 42  of 100` as `page <num> of <num>`."""
    spelled = text.encode("utf-8", "surrogatepass")
    words = text.split()
    shape = spelled.translate(_HEX_MAP)
    if _LONG_SHAPE in shape or _UUID_SHAPE in shape:
        words = [_ids(ID, word) if len(word) >= _LONG else word for word in words]
    text = " ".join(words)
    shape = spelled.translate(_DIGIT_MAP)
    if b"0" in shape or not text.isascii():  # other scripts have digits of their own
        if _DATE_SHAPE in shape:
            text = _times(TS, text)
        text = _numbers(NUM, text)
    return text.casefold()


SIMILAR_BITS: Final = 3  # fewer bits apart than this
TEXT_MAX_CHARS: Final = 16 * 1024  # of a longer text, pieces from all over it, so that work per request has a bound

_VERSION: Final = b"\xa1"
_ENTRY: Final = Struct("<BQQQ")
_PROMPT: Final = 1
_ANSWER: Final = 2
_CALLS: Final = 4
_AWAITED: Final = 8
_SHORT: Final = 16
_SHORT_WORDS: Final = 20  # a result of fewer is an acknowledgement ("ok", "saved"), the same after many different calls
_PIECE_CHARS: Final = 2 * 1024

Entry = tuple[int, int, int, int]


class SimhashScore(NamedTuple):
    """What became of one request. `window` is to be kept in place of the one before."""

    window: bytes
    score: float
    tripped: bool
    prompts: int  # earlier requests with a prompt like this one's
    responses: int  # of the requests like this one: how many were answered as the last of them was
    tools: int  # earlier requests that show the same calls
    identity: str = ""  # of the loop, where it tripped: 16 hex digits
    evidence: str = ""  # where it tripped: numbers only, never a word of what was said


class SimhashScorer:
    """Scores requests of one agent against each other."""

    __slots__ = ("_keep", "_prompt_weight", "_response_weight", "_seed", "_threshold", "_tool_weight")

    def __init__(
        self,
        window_requests: int = 20,
        threshold_score: float = 10.0,
        prompt_weight: float = 1.0,
        response_weight: float = 2.0,
        tool_weight: float = 1.5,
        seed: int = 0,  # from the secret, so that a stored window tells nobody what was said
    ) -> None:
        self._keep = (window_requests - 1) * _ENTRY.size  # bytes of the earlier requests
        self._threshold = threshold_score
        self._prompt_weight = prompt_weight
        self._response_weight = response_weight
        self._tool_weight = tool_weight
        self._seed = seed

    def judge(self, window: bytes, prompt: str, calls: Sequence[ToolCall], *, tracked: bool = False) -> SimhashScore:
        """Score a request by what is new in it (`new_prompt`) and the calls whose results it brings.

        `tracked`: `answered` will be called for it. Until then it counts for nothing, so that asking for many answers
        to one prompt at once is no loop.
        """
        earlier = _entries(window)[-self._keep :] if self._keep else b""
        text = normalised(_bounded(prompt))
        flags = (_PROMPT if text else 0) | (_CALLS if calls else 0)
        if calls and text.count(" ") < _SHORT_WORDS - 1:
            flags |= _SHORT
        said = simhash(text, self._seed) if text else 0
        made = self._round(calls) if calls else 0
        alike, prompts, tools = _alike(earlier, flags, said, made)
        responses = _answered_alike(alike)
        score = prompts * self._prompt_weight + responses * self._response_weight + tools * self._tool_weight
        tripped = score > self._threshold
        if tracked and not tripped:  # one that trips may be denied, and then it has no answer
            flags |= _AWAITED
        kept = b"".join((_VERSION, earlier, _ENTRY.pack(flags, said, 0, made)))
        if not tripped:
            return SimhashScore(kept, score, False, prompts, responses, tools)
        evidence = (
            f"score {score:g} is over {self._threshold:g}: of the last {len(earlier) // _ENTRY.size} requests "
            f"{prompts} had a similar prompt, {responses} a similar answer, {tools} the same tool calls"
        )
        return SimhashScore(kept, score, True, prompts, responses, tools, self._identity(alike[0]), evidence)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Return the window with the answer to its newest request that has none: text and calls, no envelope, no ids.

        A request that failed upstream leaves the window: trying it again is no loop.
        """
        entries = list(_ENTRY.iter_unpack(_entries(window)))
        at = _unanswered(entries)
        if at < 0:
            return window
        flags, said, _, made = entries[at]
        if answer.failed:
            del entries[at]
        else:
            text = normalised(_bounded(_spoken(answer)))
            flags &= ~_AWAITED
            entries[at] = (flags | _ANSWER, said, simhash(text, self._seed), made) if text else (flags, said, 0, made)
        return _VERSION + b"".join([_ENTRY.pack(*entry) for entry in entries])

    def _round(self, calls: Sequence[ToolCall]) -> int:
        """A digest of calls made together; their order says nothing."""
        spelled = sorted({packed([call.name, call.arguments]) for call in calls})
        return xxhash.xxh3_64_intdigest(b"\xfe".join(spelled), self._seed)

    def _identity(self, oldest: Entry) -> str:
        """Named after the oldest request of the loop that is still known, which stays the same while it goes on."""
        return xxhash.xxh3_64_hexdigest(_ENTRY.pack(0, oldest[1], 0, oldest[3]), self._seed)


def new_prompt(step: Step) -> str:
    """Return what is new in a request: the results after the last answer, and what the user said since."""
    parts = [part for result in step.results for part in (result.text, *result.media) if part]
    return "\n".join((*parts, *step.users))


def _spoken(answer: Answer) -> str:
    if not answer.calls:
        return answer.text
    return "\n".join((answer.text, *[f"{call.name} {call.arguments}" for call in answer.calls]))


def _bounded(text: str) -> str:
    excess = len(text) - TEXT_MAX_CHARS
    if excess <= 0:
        return text
    pieces = TEXT_MAX_CHARS // _PIECE_CHARS
    starts = [number * _PIECE_CHARS + excess * number // (pieces - 1) for number in range(pieces)]
    return " ".join([text[start : start + _PIECE_CHARS] for start in starts])


def _entries(window: bytes) -> bytes:
    """The entries of a window; none of one that cannot be read, which counts as new."""
    if not window.startswith(_VERSION) or len(window) % _ENTRY.size != 1:
        return b""
    return window[1:]


def _unanswered(entries: Sequence[Entry]) -> int:
    """The place of the newest request whose answer is awaited, or else of the newest that has none; -1 for neither."""
    found = -1
    for at in range(len(entries) - 1, -1, -1):
        flags = entries[at][0]
        if flags & _AWAITED:
            return at
        if found < 0 and not flags & _ANSWER:
            found = at
    return found


def _alike(earlier: bytes, flags: int, said: int, made: int) -> tuple[list[Entry], int, int]:
    """The earlier requests that are like this one: by their prompt, or by the calls that they show."""
    alike: list[Entry] = []
    prompts = tools = 0
    for entry in _ENTRY.iter_unpack(earlier):
        if entry[0] & _AWAITED:
            continue
        both = entry[0] & flags
        same_calls = bool(both & _CALLS) and entry[3] == made
        same_prompt = bool(both & _PROMPT) and (entry[1] ^ said).bit_count() < SIMILAR_BITS
        if same_prompt and both & _SHORT and not same_calls:
            same_prompt = False
        if same_prompt or same_calls:
            alike.append(entry)
            prompts += same_prompt
            tools += same_calls
    return alike, prompts, tools


def _answered_alike(alike: Sequence[Entry]) -> int:
    """Of requests like the newest one: how many were answered as the last of them was.

    Not of all requests: the same short answer to many different questions is a batch being classified.
    """
    answers = [entry[2] for entry in alike if entry[0] & _ANSWER]
    if not answers:
        return 0
    last = answers.pop()
    return sum([(answer ^ last).bit_count() < SIMILAR_BITS for answer in answers])


KIND: Final = "simhash"


class ScoreEvaluation(NamedTuple):
    """What a score came to."""

    window: bytes
    level: int
    kind: str
    evidence: str
    identity: str
    fresh: bool = True


class SimhashDetector(StatefulDetector):
    """The block."""

    __slots__ = ("_detector",)

    def __init__(
        self, config: DetectorConfig, ladder: SeverityActions, reads: CallReaders, detector: SimhashScorer
    ) -> None:
        super().__init__(config, ladder, reads, "score:")
        self._detector = detector

    def evaluate(self, call: Call, window: bytes, now: float) -> ScoreEvaluation | None:
        """Score the call."""
        step = self.newest(call, now)
        if step is None:
            return None
        scored = self._detector.judge(window, new_prompt(step), step.calls, tracked=call.tracked)
        return ScoreEvaluation(scored.window, BLOCK if scored.tripped else 0, KIND, scored.evidence, scored.identity)

    def awaits_answer(self, _call: Call, _looked: ScoreEvaluation) -> bool:
        """Every answer counts."""
        return True

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Return the window after an answer: what it said counts from now on."""
        return self._detector.answered(window, answer)
