"""`similarity: simhash` (SPEC LD-3): how much the last requests of an agent are like the newest, as a weighted score.

Pure: a packed window and a request in, a packed window and a score out. Where windows are kept, and what follows from
a trip, is the engine's business. A window is one byte that says what it is, and 25 bytes a request, oldest first:
    1  flags: which of the following there are; whether the answer is awaited; whether the prompt is a short result
    8  SimHash of the prompt        8  SimHash of the answer        8  digest of the calls that the request shows
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import xxhash

from breakloop.detect.fingerprint import packed
from breakloop.detect.normalise import normalised
from breakloop.detect.simhash import simhash
from breakloop.model.answer import Answer
from breakloop.model.call import ToolCall
from breakloop.model.step import Step

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


class Scored(NamedTuple):
    """What became of one request. `window` is to be kept in place of the one before."""

    window: bytes
    score: float
    tripped: bool
    prompts: int  # earlier requests with a prompt like this one's
    responses: int  # of the requests like this one: how many were answered as the last of them was
    tools: int  # earlier requests that show the same calls
    identity: str = ""  # of the loop, where it tripped: 16 hex digits
    evidence: str = ""  # where it tripped: numbers only, never a word of what was said


class ScoreDetector:
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

    def judge(self, window: bytes, prompt: str, calls: Sequence[ToolCall], *, tracked: bool = False) -> Scored:
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
            return Scored(kept, score, False, prompts, responses, tools)
        evidence = (
            f"score {score:g} is over {self._threshold:g}: of the last {len(earlier) // _ENTRY.size} requests "
            f"{prompts} had a similar prompt, {responses} a similar answer, {tools} the same tool calls"
        )
        return Scored(kept, score, True, prompts, responses, tools, self._identity(alike[0]), evidence)

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
