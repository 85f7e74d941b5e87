"""Kinds `dry` and `novelty`: how long nothing new has come from outside. The model's own answers, copies of them
between agents of one session, and messages seen before are not new.

Texts are compared line by line, by digest, whatever their case and white space. Lines are weighted by length, so that
the short lines of a wrapper do not outweigh a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import filterfalse, repeat
from struct import Struct
from typing import Any, Final

import orjson
from xxhash import xxh32_intdigest

from breakloop.detect.steps.findings import Finding, Novelty, StepState
from breakloop.detect.steps.fingerprints import (
    ACK,
    BLANKS,
    EMPTY,
    NONE,
    UNSEEN,
    CallResult,
    StepFingerprints,
    content_words,
    done,
    is_answer_elsewhere,
    lowered,
    shape,
    tells,
    word_digests,
)
from breakloop.detect.steps.waiting import COUNTED_MIN
from breakloop.detect.steps.window import CAPACITY, COUNT_MAX, FRAME, FRAME_LINES, TOOL, AgedFilter, SessionWindow
from breakloop.dialects.content import lazy_pattern
from breakloop.model.call import Step, ToolCall

NEW_SHARE: Final = 0.4  # of the lines; with more, a step is news
_LONG: Final = 300  # longer lines are split
_MOST: Final = 256  # lines of one text; more would push everything else out of the filter
_WEIGHT_MAX: Final = 40
_PLAIN_MAX: Final = 34  # about the same without white space
_WEIGHTS: Final = bytes([min(size, _PLAIN_MAX) for size in range(256)])
_UNCLEAR: Final = (0.25, 0.6)  # between these, white space is weighed too, which takes longer
_EDGE: Final = FRAME_LINES // 2  # lines at each end of a result
_FRAME_SIZE: Final = FRAME_LINES * 2
# By the number of lines: packs their digests, unpacks the last 16 bits of each, packs these with zeros after them. That
# is three calls, whatever the number; to mask each digest takes longer.
_FRAME_ROWS: Final = [
    (
        Struct(f"<{lines}I").pack,
        Struct("<" + "H2x" * lines).unpack,
        Struct(f"<{lines}H{_FRAME_SIZE - 2 * lines}x").pack,
    )
    for lines in range(FRAME_LINES + 1)
]
_FRAME_BITS: Final = 0xFFFF
_OFTEN: Final = 3  # of the last results
_LOWER: Final = bytes(range(128)).lower() + bytes(range(128, 256))
# Where a long line is split, and what stands there then.
_ENDS: Final = tuple([(end[0], end + b" ", end + b"\n") for end in (b".", b",", b";", b"}", b"]", b")")])
_BACKSLASH: Final = ord("\\")
_BREAK: Final = ord("\n")


def share(
    known: AgedFilter, texts: Sequence[bytes], seed: int, window: SessionWindow | None = None, stripped: bytes = b""
) -> float | None:
    """Return the share of lines that are not known, and add them; None if there are no lines. With a window, lines of
    its frame weigh nothing, and lines are added to the frame. `stripped` is as in `plain`, if there is one text."""
    if len(texts) == 1:
        (text,) = texts
        has_long = len(text) > _LONG  # in a text that is no longer than a long line there is none to split
        if has_long and _BREAK not in text:  # one long line, as JSON often is
            has_long, stripped = False, b""
            texts = (pieces(text),)
        lines = plain(texts[0], stripped)
        lines = lines if len(lines) <= _MOST else bounded(lines)
    else:
        has_long, lines = True, _all(texts)
    if not lines:
        return None
    if has_long and max(map(len, lines)) > _LONG // 2:
        texts = [*map(pieces, texts)]
        lines = _all(texts)
    once = compared = lines
    digests = [*map(xxh32_intdigest, lines, repeat(seed))]
    if len({*digests}) < len(digests):  # usually a line that is there twice, which is not known for that
        once, compared, digests = _each_once(lines, digests, may_age=known.count + len(lines) >= CAPACITY)
    indexes = known.sift(digests)
    packed = b""
    if window is not None:
        packed = window.frame
        window.frame = add_to_frame(packed, digests)
    if not indexes:
        return 0.0
    if len(indexes) == len(lines) == len(once):  # all are new, as often: nothing is to be weighed
        return 1.0
    new = [*map(compared.__getitem__, indexes)]  # a comprehension here would slow down all uses of its variables
    fresh = _weight(new)
    about = fresh / _weight(once)
    frame: set[bytes] = set()
    if packed and about < _UNCLEAR[1]:
        frame = frame_of(packed, compared, digests).difference(new)
        if frame:
            about = fresh / _weight([*filterfalse(frame.__contains__, once)])
    if about >= _UNCLEAR[1] and len(once) < len(lines):
        beside_all = fresh / _weight(lines)
        return beside_all if beside_all >= _UNCLEAR[1] else about
    return _weighed(texts, lines, new, frame) if _UNCLEAR[0] < about < _UNCLEAR[1] else about


def _each_once(lines: list[bytes], digests: list[int], *, may_age: bool) -> tuple[list[bytes], list[bytes], list[int]]:
    """Return the different lines, and those to compare with their digests. If the filter may age in between, all lines
    are compared."""
    by_line = dict(zip(lines, digests, strict=True))
    once = [*by_line]
    return (once, lines, digests) if may_age else (once, once, [*by_line.values()])


def frame_of(packed: bytes, lines: Sequence[bytes], digests: Sequence[int]) -> set[bytes]:
    """Return those lines of a result, given with their digests, that belong to the frame: lines that a harness puts
    around results, such as `Execution logs:`. They stood near the beginning or the end of three of the last four
    results of new calls. They weigh nothing, or a short result would look old for its frame. A call that is repeated
    teaches nothing: there, equal lines are the loop."""
    before, last = FRAME.unpack(packed), max(len(lines) - _EDGE, _EDGE)
    places = [*range(min(len(lines), _EDGE)), *range(last, len(lines))]
    return {lines[at] for at in places if before.count(digests[at] & _FRAME_BITS) >= _OFTEN}


def add_to_frame(packed: bytes, digests: list[int]) -> bytes:
    """Return the lines of the last results after another one, given the digests of its lines, each once."""
    if len(digests) > FRAME_LINES:
        digests = digests[:_EDGE] + digests[-_EDGE:]
    pack, last_bits, pack_row = _FRAME_ROWS[len(digests)]
    return pack_row(*last_bits(pack(*digests))) + packed[:-_FRAME_SIZE]


def _all(texts: Sequence[bytes]) -> list[bytes]:
    if len(texts) == 1:
        lines = plain(texts[0])
        return lines if len(lines) <= _MOST else bounded(lines)
    return [line for text in texts for line in bounded(plain(text))]


def _weight(lines: Sequence[bytes]) -> int:
    """Return the weight of lines: the length of each, at most `_PLAIN_MAX`."""
    try:
        return sum(bytes(map(len, lines)).translate(_WEIGHTS))  # takes a quarter of the time of a loop
    except ValueError:  # a line is longer than 255 bytes
        return sum([min(len(line), _PLAIN_MAX) for line in lines])


def _weighed(texts: Sequence[bytes], lines: list[bytes], new: Sequence[bytes], frame: set[bytes]) -> float:
    """Return the share of new lines with white space weighed, beside all lines but those of the frame."""
    weights = [min(len(line), _WEIGHT_MAX) for text in texts for line in bounded(folded(text))]
    first = dict(zip(reversed(lines), reversed(weights), strict=True))
    return sum([first[line] for line in new]) / sum([first[line] for line in first if line not in frame])


def plain(text: bytes, stripped: bytes = b"") -> list[bytes]:
    """Return a text's lines in lower case and without white space. `stripped` is the text without blanks, if there is
    one already: it is put in lower case in half the time."""
    if text.isascii():
        low = stripped.lower() or text.translate(_LOWER, BLANKS)
    else:
        low = lowered(text).translate(None, BLANKS)  # in other scripts, lower case depends on where a word ends
    lines = low.split(b"\n")
    return lines if all(lines) else list(filter(None, lines))  # most texts have no empty ones


def folded(text: bytes) -> list[bytes]:
    """Return a text's lines with white space folded: as many as `plain` returns."""
    return list(filter(None, [b" ".join(line.split()) for line in text.split(b"\n")]))


def bounded(lines: list[bytes]) -> list[bytes]:
    """Return the first and the last lines if there are too many."""
    return lines if len(lines) <= _MOST else lines[: _MOST // 2] + lines[-_MOST // 2 :]


def pieces(text: bytes) -> bytes:
    """Return a text with its very long lines split where a sentence or a field ends."""
    lines = text.split(b"\n")
    for at, line in enumerate(lines):
        if len(line) > _LONG:
            cut = line.replace(b"\t", b" ").replace(b"\r", b" ").replace(b"\x0b", b" ").replace(b"\x0c", b" ")
            if _is_long(cut):
                lines[at] = _split(cut)
    return b"\n".join(lines)


def _is_long(line: bytes) -> bool:
    """Tell whether a line is long with its blanks folded."""
    if len(line) > _LONG + 2 and line.find(b"  ") < 0:
        return True  # only the blanks at its ends go
    return len(line.translate(None, b" ")) > _LONG or len(b" ".join(line.split())) > _LONG


def _split(line: bytes) -> bytes:
    """Split a line where a sentence or a field ends. Most lines have few of the characters that end one, and a single
    character is found in a tenth of the time."""
    for character, end, split in _ENDS:
        if character in line:
            line = line.replace(end, split)
    return line.replace(b"\\\\n", b"\n") if _BACKSLASH in line else line


NEW_WORDS: Final = 0.5
WORDS_MIN: Final = 4
CHAPTER: Final = 100  # new content words
_NEWEST: Final = 0.25  # weight of the newest step in the moving average
_LOW_NOVELTY: Final = 0.1
_OTHER_RESULT: Final = 0.75
_STALE_MAX: Final = 60_000
_ANSWER_MARK: Final = 0x5A5A5A5A
_RESULT_MARK: Final = 0x33333333
_OPENING_MARK: Final = 0x0F0F0F0F
_READ_MARK: Final = 0x3C3C3C3C
_PLANS: Final = lazy_pattern(r"todo|plan|checklist", re.IGNORECASE)
_LISTS: Final = lazy_pattern(
    r"""\s*\{\s*(?:"explanation":.{0,500}?,\s*)?"(?:todos|plan|steps|items|tasks)":\s*\[""", re.DOTALL
)
_NO_TOOL: Final = bytes(4)
_mark: Final = Struct("<I4x").unpack  # of a digest: its first four bytes
_halves: Final = Struct("<II").unpack


def compare(
    window: SessionWindow, step: Step, prints: StepFingerprints, seed: int, weight: float, most: float = COUNT_MAX
) -> Novelty:
    """Compare a step with the session, add it to the filters, and change the counts, `dry` up to `most`."""
    pairs = prints.pairs
    by_form, failed = False, window.failed_tool != _NO_TOOL
    for pair in pairs:
        by_form = by_form or pair.failed or pair.kind == EMPTY  # results are compared by their form only
        failed = failed or pair.failed or pair.refused
    unseen, again, third = _calls(window, prints)
    share = _new_lines(window, prints, seed, by_form, window if unseen else None)
    new_words = _new_words(window, prints.words, prints.called) if prints.words else None
    fresh_words = new_words is not None and new_words >= NEW_WORDS
    wrote = False
    for pair in unseen:
        wrote = wrote or (pair.changes and done(pair))
    if failed and _recovered(window, pairs, unseen):
        wrote = True
    replans = wrote and _replans(window, step, pairs)
    if (wrote or (share is not None and share > NEW_SHARE)) and not replans:
        window.dry /= 2
        window.last_new_step = window.steps
        news, dried = True, False
    else:
        news = False
        visible = bool(step.results or step.users or not step.calls)  # without calls, nothing is hidden
        begins = not (step.said or step.calls or step.results)
        silent = bool(unseen) and not replans and all(pair.kind in (EMPTY, ACK) for pair in pairs)
        second = bool(pairs) and again and not third
        other_result = bool(pairs) and not (unseen or again or by_form)  # a known call with another result
        if other_result:  # some progress; errors of the filters must not add up over hours
            window.dry *= _OTHER_RESULT
            window.stale_steps //= 2
        if not step.calls and is_answer_elsewhere(step):
            dried = _is_dry_result(window, step, prints, again=again and not third, known=share is None)
        else:
            dried = visible and not (begins or silent or fresh_words or second or other_result)
            dried = dried and not (step.users and _copies_chapter(window, step, prints, seed))
            dried = dried and not (step.results and _is_report(window, step, prints, seed))
    if dried:
        if window.dry < 1:
            window.dry_key = prints.round
        window.dry = min(window.dry + weight * _dryness(window, pairs, share, new_words), most)
    if weight < COUNTED_MIN:
        pass  # what was waited for is neither new nor stale
    elif share is not None:
        window.line_novelty += _NEWEST * (share - window.line_novelty)
        window.stale_steps = min(window.stale_steps + 1, _STALE_MAX) if window.line_novelty < _LOW_NOVELTY else 0
    else:
        window.stale_steps = 0
    return Novelty(dried, news, fresh_words)


def findings(state: StepState) -> Sequence[Finding]:
    """Return `dry` and `novelty` if the step counts as one of them."""
    if not state.novelty.dried:
        return ()
    window = state.window
    ago = window.steps - window.last_new_step
    found = Finding("dry", window.dry, b"dry" + window.dry_key, f"nothing new for {ago} turns")
    if not window.stale_steps:
        return (found,)
    evidence = f"{window.stale_steps} results in a row with almost no new lines"
    return found, Finding("novelty", window.stale_steps, b"novelty" + window.dry_key, evidence)


def marks(key: bytes) -> tuple[int, int]:
    """Return the marks of the model's answer. One alone would be found by mistake in a twentieth of the cases, and a
    rejection that looks like an answer is not counted."""
    first, second = _halves(key)
    return first ^ _ANSWER_MARK, second ^ _ANSWER_MARK


def mark(key: bytes) -> int:
    """Return the mark of a text: that it is known."""
    found: int = _mark(key)[0]
    return found


def result_marks(key: bytes) -> tuple[int]:
    """Return the mark of an answer that is the result of a call: it is still new when the model gets it."""
    return (_mark(key)[0] ^ _RESULT_MARK,)


def is_answer(window: SessionWindow, key: bytes) -> bool:
    """Tell whether a text was an answer of the model in the session."""
    first, second = _halves(key)
    knows = window.marks.knows
    return knows(first ^ _ANSWER_MARK) and knows(second ^ _ANSWER_MARK)


def opening_marks(key: bytes) -> tuple[int, int]:
    """Return the marks of a text with which the session opened."""
    first, second = _halves(key)
    return first ^ _OPENING_MARK, second ^ _OPENING_MARK


def is_opening(window: SessionWindow, key: bytes) -> bool:
    """Tell whether the session opened with a text."""
    return all(map(window.marks.knows, opening_marks(key)))


def _new_lines(
    window: SessionWindow,
    prints: StepFingerprints,
    seed: int,
    by_form: bool,  # noqa: FBT001 - a keyword takes time
    framed: SessionWindow | None,
) -> float | None:
    """Return the share of new lines in results and texts of the user; None if there are none. A picture that the
    session has not seen is new, whatever is written beside it. `framed` is as in `share`."""
    known = window.marks
    if prints.said != NONE:
        known.add(*marks(prints.said))
    texts: list[bytes] = []
    new_medium, stripped = False, b""
    knows = known.knows
    for one in prints.incoming:
        if not (one.plain or one.media):
            continue
        first, second = _halves(one.key)
        if knows(first ^ _ANSWER_MARK) and knows(second ^ _ANSWER_MARK):
            continue  # as `is_answer` tells
        if known.add_new(first):
            if by_form:
                texts.append(shape(one.text))
            else:
                texts.append(one.text)
                stripped = one.lines
            for medium in one.media:
                new_medium = known.add_new(medium) or new_medium
    found = share(window.lines, texts, seed, framed, stripped) if texts else None
    return 1.0 if new_medium else found


def _dryness(window: SessionWindow, pairs: Sequence[CallResult], share: float | None, new_words: float | None) -> float:
    """Return what a turn without anything new counts: the more, the less is new in it. Without calls, the model's own
    words decide. An informative result counts more if another tool returned the same before it: then it does not depend
    on what is called. Of one tool it may be a sweep."""
    if not pairs:
        return 1.0 if new_words is None else 1 + NEW_WORDS - new_words
    pair, rows = pairs[-1], window.tools
    if not pair.telling or len(rows) < TOOL.size:
        return 1.0
    tool, result, _, last = TOOL.unpack_from(rows, len(rows) - TOOL.size)
    same = result == pair.r and tool != pair.tool.key and last == window.steps - 1
    return 1 + NEW_SHARE - (share or 0.0) if same else 1.0


def _copies_chapter(window: SessionWindow, step: Step, prints: StepFingerprints, seed: int) -> bool:
    """Tell whether a text of the user is a copy of another agent's answer, with a chapter of new content. It counts
    once. The words are added later, when they are in that agent's own history."""
    known, written = window.marks, window.words
    for key, text in zip(prints.users, step.users):  # noqa: B905 - as many; a keyword takes time
        if len(text) > CHAPTER and is_answer(window, key) and known.add_new(mark(key) ^ _READ_MARK):
            new = [word for word in word_digests(content_words(text), seed) if not written.knows(word)]
            if len(new) >= CHAPTER:
                return True
    return False


def _recovered(window: SessionWindow, pairs: Sequence[CallResult], unseen: Sequence[CallResult]) -> bool:
    """Tell whether a call that is new succeeded after one of the same tool failed or was refused: attempts that lead
    somewhere, for one item after the other."""
    key, found = window.failed_tool, False
    for pair in pairs:
        if pair.kind == UNSEEN:
            continue
        if pair.failed or pair.refused:
            window.failed_tool = pair.tool.key
        elif pair.tool.key == key != _NO_TOOL:
            window.failed_tool = _NO_TOOL
            found = found or (pair.kind != EMPTY and pair in unseen)
    return found


def _replans(window: SessionWindow, step: Step, pairs: Sequence[CallResult]) -> bool:
    """Tell whether a list of things to do is written right after it was written. It is the model's own text: whoever
    writes it again and does nothing else changes nothing."""
    tool = pairs[-1].tool
    if len(pairs) > 1 or not window.same_tool_run or tool.key != window.near_tool or not _PLANS().search(tool.name):
        return False
    return _LISTS().match(step.calls[0].arguments) is not None


def _is_report(window: SessionWindow, step: Step, prints: StepFingerprints, seed: int) -> bool:
    """Tell whether a result is the answer of another agent, which was called as a tool, with new words. That agent may
    end with it, so that the words would not be compared in its own history."""
    for one, result in zip(prints.incoming, step.results):  # noqa: B905 - a keyword takes time
        if is_answer(window, one.key):
            new = _new_words(window, word_digests(content_words(result.text), seed))
            if new is not None and new >= NEW_WORDS:
                return True
    return False


def _is_dry_result(window: SessionWindow, step: Step, prints: StepFingerprints, *, again: bool, known: bool) -> bool:
    """Tell whether results without their calls (`previous_response_id`) are a turn without anything new: all of them
    were seen more than once. Results that a change may have produced count as changes."""
    if not any(tells(one, failed=result.error) for one, result in zip(prints.incoming, step.results, strict=False)):
        window.dry /= 2
        return False
    if not known:
        window.dry *= _OTHER_RESULT
    return known and not again


def _calls(window: SessionWindow, prints: StepFingerprints) -> tuple[Sequence[CallResult], bool, bool]:
    """Return the calls not seen before, and whether the step was seen before: once, and more than once."""
    known, pairs = window.marks, prints.pairs
    (first,) = _mark(prints.round)
    second = first ^ _ANSWER_MARK
    if len(pairs) == 1:
        seen = known.add_both(first, _mark(pairs[0].a)[0])
        if seen is not None:  # a new step, as nearly always
            return () if seen else pairs, False, False
    unseen: list[CallResult] = []
    own: list[int] = []
    for pair in pairs:
        (call,) = _mark(pair.a)
        own.append(call)
        if not known.knows(call):
            unseen.append(pair)
    again = known.knows(first)
    more = again and known.knows(second)
    if again:
        known.add(first, *own, second)
    else:
        known.add(first, *own)
    return unseen, again, more


def _new_words(window: SessionWindow, words: list[int], called: int = 0) -> float | None:
    """Return the share of words that are new, and add them; None if there are too few. The last ones (`called`) are
    part of a call, and those of a call alone are not: that it has other arguments is no news, whatever its form."""
    new = window.words.sift(words)
    if len(words) < WORDS_MIN:
        return None
    share = len(new) / len(words)
    if not called or share < NEW_WORDS:
        return share
    said = len(words) - called
    return min(share, sum([at < said for at in new]) / said) if said >= WORDS_MIN else 0.0


TEXT_MIN: Final = 20  # characters; shorter ones are names and settings
TEXT_MAX: Final = 4000  # longer ones are documents
HANDED_MAX: Final = 12  # texts of one answer; more would push everything else out of the filter
_READ_MAX: Final = 16_384  # characters of an answer, or of arguments
_DEPTH_MAX: Final = 3


def handed_on(text: str, calls: Sequence[ToolCall]) -> list[str]:
    """Return the texts of an answer that may be handed to another agent: fields of a JSON answer, arguments of calls;
    `calls` are those that may hand on a text. They are not new when they come back as somebody's message, as copies of
    whole answers are not (`marks`).

    Orchestrators answer with an object that names the next agent and what to tell it, or call a tool that stands for
    that agent; a program sends the text on.
    """
    found: list[str] = []
    end = text.rfind("}", -_READ_MAX)
    if end >= 0:
        start = text.find("{", 0, _READ_MAX)
        if 0 <= start < end:
            _collect_texts(text[start : end + 1], found)
    for call in calls:
        _collect_texts(call.arguments, found)
    return found


def _collect_texts(given: str, found: list[str]) -> None:
    if not TEXT_MIN <= len(given) <= _READ_MAX:
        return
    try:
        value = orjson.loads(given)
    except ValueError:  # braces of code, arguments that are no JSON
        return
    for one in _strings(value, 0):
        if len(found) >= HANDED_MAX:
            return
        if TEXT_MIN <= len(one) <= TEXT_MAX:
            found.append(one)


def _strings(value: Any, depth: int) -> Iterator[str]:
    if type(value) is str:
        yield value
    elif depth < _DEPTH_MAX:
        for one in value.values() if type(value) is dict else value if type(value) is list else ():
            yield from _strings(one, depth + 1)
