"""`similarity: simhash`: how similar the last requests of an agent are to the newest one, as a weighted score.

Texts are normalised first: UUIDs and long hex become `<id>`, ISO timestamps `<ts>`, numbers `<num>`; white space and
case are folded. A number is a run of digits without a letter before it: `42`, `12ms`, `order-17`, but not the names
`utf8` and `file2.py`. Then each text is reduced to a 64-bit SimHash over word 3-grams, so that texts which share most
of their 3-grams differ in few bits.

The section of the window is one byte of version, and 25 bytes for each request, oldest first:
    1  flags: which of the following are set; whether the answer is awaited; whether the prompt is a short result
    8  SimHash of the prompt        8  SimHash of the answer        8  digest of the calls that the request shows
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

import xxhash

from breakloop.detect.counting import CallReader, DetectorConfig
from breakloop.detect.fingerprint import packed
from breakloop.detect.stateful import BLOCK, NOTHING, Evaluation, StatefulDetector, agent_owner
from breakloop.model.call import Answer, Call, Step, ToolCall

_GRAM: Final = 3  # words
_BYTES: Final = 8  # of a SimHash; a word's hash has twice as many


def simhash(text: str, seed: int = 0) -> int:
    """Return the SimHash of a normalised text; 0 if it has no words. The secret seed prevents guessing texts."""
    # A 3-gram's hash is made of its words' hashes, so each word is hashed once. The votes of all 3-grams on one bit
    # are counted together, as the ones in a long integer.
    words = text.encode("utf-8", "surrogatepass").split()
    hashes = b"".join(map(xxhash.xxh3_128_digest, words, repeat(seed)))
    # Column k holds byte k of every word's hash, the first word's lowest.
    columns = [int.from_bytes(hashes[offset :: 2 * _BYTES], "little") for offset in range(2 * _BYTES)]
    grams = len(words)
    if grams >= _GRAM:
        grams -= _GRAM - 1
        columns = [_gram_column(columns, offset) for offset in range(_BYTES)]
    ones = int.from_bytes(b"\x01" * grams, "little")
    masks = [ones << bit for bit in range(8)]
    majority, found, value = grams // 2, 0, 1
    for column in columns[:_BYTES]:
        for mask in masks:
            if (column & mask).bit_count() > majority:
                found += value
            value += value
    return found


def _gram_column(columns: list[int], offset: int) -> int:
    """Return one byte of every 3-gram. Its three words contribute bytes from different offsets of their hashes;
    with the same offset, the order of the words would make no difference."""
    return columns[offset] ^ (columns[_BYTES + offset] >> 8) ^ (columns[(offset + 3) % _BYTES] >> 16)


ID: Final = "<id>"
TS: Final = "<ts>"
NUM: Final = "<num>"

_LONG: Final = 16  # hex digits of an id; fewer may be a word, or an abbreviated commit
_UUID: Final = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_ids: Final = re.compile(rf"(?<![0-9a-zA-Z])(?:{_UUID}|(?:0[xX])?[0-9a-fA-F]{{{_LONG},}})(?![0-9a-zA-Z])").sub
# The patterns begin with a digit, so that the search runs from digit to digit, and look behind afterwards.
_times: Final = re.compile(
    r"\d(?<!\d\d)\d{3}-\d\d-\d\d"
    r"(?:[Tt ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[Zz]|[+-]\d\d(?::?\d\d)?)?)?(?!\d)"
).sub
_numbers: Final = re.compile(r"\d(?<![^\W\d_]\d)(?<!\d\d)\d*(?:[.,]\d+)*(?:[eE][+-]?\d+)?").sub

# A map of the text, with hex digits or digits as `0`, shows whether there is anything to find, in a twentieth of the
# time that the search takes.
_HEX_MAP: Final = bytes(48 if code in b"0123456789abcdefABCDEF" else 45 if code == 45 else 32 for code in range(256))
_DIGIT_MAP: Final = bytes(48 if code in b"0123456789" else 45 if code == 45 else 32 for code in range(256))
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"
_LONG_SHAPE: Final = b"0" * _LONG
_DATE_SHAPE: Final = b"0000-00-00"


def normalised(text: str) -> str:
    """Return a text without what changes from turn to turn: `Page 42  of 100` as `page <num> of <num>`."""
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
TEXT_MAX_CHARS: Final = 16 * 1024  # longer texts are sampled, so that the work per request is bounded

_VERSION: Final = b"\xa1"
_ENTRY: Final = Struct("<BQQQ")
_PROMPT: Final = 1
_ANSWER: Final = 2
_CALLS: Final = 4
_AWAITED: Final = 8
_SHORT: Final = 16
_SHORT_WORDS: Final = 20  # shorter results are acknowledgements ("ok", "saved"), the same for many different calls
_PIECE_CHARS: Final = 2 * 1024

KIND: Final = "simhash"

Entry = tuple[int, int, int, int]


class SimhashScore(NamedTuple):
    """The score of one request, and the section after it."""

    window: bytes
    score: float
    tripped: bool
    prompts: int  # earlier requests with a prompt like this one's
    responses: int  # earlier requests like this one whose answer is similar to the answer of the last of them
    tools: int  # earlier requests that show the same calls
    identity: str = ""  # of the loop if it tripped: 16 hex digits
    evidence: str = ""  # if it tripped: numbers only


class SimhashDetector(StatefulDetector):
    """Scores the requests of one caller and agent against each other."""

    __slots__ = ("_keep", "_seed", "_threshold", "_weights")

    def __init__(
        self,
        config: DetectorConfig,
        read: CallReader,
        *,
        window_requests: int = 20,
        threshold: float = 10.0,
        weights: tuple[float, float, float] = (1.0, 2.0, 1.5),  # of prompts, responses and tool calls
        seed: int = 0,  # derived from the secret, so that a stored window reveals nothing
    ) -> None:
        super().__init__(config, read, "score:")
        self._keep = (window_requests - 1) * _ENTRY.size  # bytes of the earlier requests
        self._threshold = threshold
        self._weights = weights
        self._seed = seed

    def owner(self, call: Call) -> str:
        return agent_owner(self._read, call)

    def evaluate(self, call: Call, window: bytes, _now: float) -> Evaluation | None:
        step = self._read.step(call)
        if step is None:
            return None
        found = self.score(window, new_prompt(step), step.calls, tracked=call.tracked)
        level = BLOCK if found.tripped else NOTHING
        return Evaluation(found.window, level, KIND, found.evidence, found.identity, fresh=True)

    def awaits_answer(self, _call: Call, _evaluation: Evaluation) -> bool:
        return True

    def score(self, window: bytes, prompt: str, calls: Sequence[ToolCall], *, tracked: bool = False) -> SimhashScore:
        """Score a request by what is new in it (`new_prompt`) and by the calls whose results it contains.

        `tracked`: `answered` will be called for it. The request does not count until then, so asking for many answers
        to one prompt at the same time is not a loop.
        """
        earlier = _entries(window)[-self._keep :] if self._keep else b""
        text = normalised(_bounded(prompt))
        flags = (_PROMPT if text else 0) | (_CALLS if calls else 0)
        if calls and text.count(" ") < _SHORT_WORDS - 1:
            flags |= _SHORT
        prompt_hash = simhash(text, self._seed) if text else 0
        calls_digest = self._calls_digest(calls) if calls else 0
        alike, prompts, tools = _alike(earlier, flags, prompt_hash, calls_digest)
        responses = _answered_alike(alike)
        prompt_weight, response_weight, tool_weight = self._weights
        score = prompts * prompt_weight + responses * response_weight + tools * tool_weight
        tripped = score > self._threshold
        if tracked and not tripped:  # a request that trips may be denied, and then it has no answer
            flags |= _AWAITED
        kept = b"".join((_VERSION, earlier, _ENTRY.pack(flags, prompt_hash, 0, calls_digest)))
        if not tripped:
            return SimhashScore(kept, score, False, prompts, responses, tools)
        evidence = (
            f"score {score:g} is over {self._threshold:g}: of the last {len(earlier) // _ENTRY.size} requests "
            f"{prompts} had a similar prompt, {responses} a similar answer, {tools} the same tool calls"
        )
        return SimhashScore(kept, score, True, prompts, responses, tools, self._identity(alike[0]), evidence)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Add the answer (text and calls, without envelope and ids) to the newest request that has none. A request that
        failed upstream is removed: sending it again is not a loop."""
        entries = list(_ENTRY.iter_unpack(_entries(window)))
        at = _unanswered(entries)
        if at < 0:
            return window
        flags, prompt_hash, _, calls_digest = entries[at]
        if answer.failed:
            del entries[at]
        else:
            text = normalised(_bounded(_answer_text(answer)))
            flags &= ~_AWAITED
            answer_hash = simhash(text, self._seed) if text else 0
            entries[at] = (flags | _ANSWER if text else flags, prompt_hash, answer_hash, calls_digest)
        return _VERSION + b"".join([_ENTRY.pack(*entry) for entry in entries])

    def _calls_digest(self, calls: Sequence[ToolCall]) -> int:
        """Return a digest of calls made together, whatever their order."""
        distinct = sorted({packed([call.name, call.arguments]) for call in calls})
        return xxhash.xxh3_64_intdigest(b"\xfe".join(distinct), self._seed)

    def _identity(self, oldest: Entry) -> str:
        """Return the identity of a loop: its oldest request in the window, which stays the same while it goes on."""
        return xxhash.xxh3_64_hexdigest(_ENTRY.pack(0, oldest[1], 0, oldest[3]), self._seed)


def new_prompt(step: Step) -> str:
    """Return what is new in a request: the results after the model's last answer, and the user's texts."""
    parts = [part for result in step.results for part in (result.text, *result.media) if part]
    return "\n".join((*parts, *step.users))


def _answer_text(answer: Answer) -> str:
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
    """Return the entries of a section; none if it cannot be read."""
    if not window.startswith(_VERSION) or len(window) % _ENTRY.size != 1:
        return b""
    return window[1:]


def _unanswered(entries: Sequence[Entry]) -> int:
    """Return the index of the newest request whose answer is awaited, else of the newest without one; -1 for none."""
    found = -1
    for at in range(len(entries) - 1, -1, -1):
        flags = entries[at][0]
        if flags & _AWAITED:
            return at
        if found < 0 and not flags & _ANSWER:
            found = at
    return found


def _alike(earlier: bytes, flags: int, prompt_hash: int, calls_digest: int) -> tuple[list[Entry], int, int]:
    """Return the earlier requests with a similar prompt or the same calls, and how many of each."""
    alike: list[Entry] = []
    prompts = tools = 0
    for entry in _ENTRY.iter_unpack(earlier):
        if entry[0] & _AWAITED:
            continue
        both = entry[0] & flags
        same_calls = bool(both & _CALLS) and entry[3] == calls_digest
        same_prompt = bool(both & _PROMPT) and (entry[1] ^ prompt_hash).bit_count() < SIMILAR_BITS
        if same_prompt and both & _SHORT and not same_calls:
            same_prompt = False
        if same_prompt or same_calls:
            alike.append(entry)
            prompts += same_prompt
            tools += same_calls
    return alike, prompts, tools


def _answered_alike(alike: Sequence[Entry]) -> int:
    """Return how many of these requests have an answer similar to that of the last of them.

    Other requests are not compared: the same short answer to many different questions is a batch classification.
    """
    answers = [entry[2] for entry in alike if entry[0] & _ANSWER]
    if not answers:
        return 0
    last = answers.pop()
    return sum([(answer ^ last).bit_count() < SIMILAR_BITS for answer in answers])
