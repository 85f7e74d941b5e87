"""The state of a session, packed: fingerprints and counts, 5.9 KB whatever the length of the session. In order:

    head · ring of steps · cycle counts · tails · ends · calls · texts · tools · sketches · effects
    filters of lines, marks and words, 1 KB each · evidence, at most 200 bytes
    answers of a conversation that the provider keeps (`recent_answers`), at most 1 KB

To add a counter, add a field to the head of `SessionWindow`: packing, unpacking and the version follow from the types.
Windows of another version count as new. Lists stay packed during an evaluation, because a step touches a row or two of
them.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import filterfalse
from operator import length_hint
from typing import Annotated, Any, Final, Literal

WORD: Final[Literal["L", "Q"]] = "L" if array("L").itemsize == 8 else "Q"  # 64 bits; as "L" they are set faster
HALF: Final = 64  # words of a half
BYTES: Final = 2 * HALF * 8
CAPACITY: Final = HALF * 8  # digests of a half, 8 bits each: when it is full, about 3 % of new ones look known
_NO_WORDS: Final = bytes(HALF * 8)
_EMPTY: Final = array(WORD, _NO_WORDS)
_MANY: Final = 40  # digests, for which unpacking all words takes less time than unpacking one for each
# Which bits of its word a digest sets, by its last 12 bits: computing them each time would cost as much as the rest. An
# array takes 32 KB, a tuple 180 KB, too much to stay in the processor's cache.
_BIT: Final = [1 << place for place in range(64)]
_BITS: Final = array(
    WORD,
    [_BIT[low] | second | _BIT[low * 7 + high * 13 + 29 & 63] for high, second in enumerate(_BIT) for low in range(64)],
)


class AgedFilter:
    """A Bloom filter of 32-bit digests in two halves: three bits in one word of each half.

    When the younger half is full, it becomes the older one, and the older one is dropped. So a long session neither
    grows nor finds everything known. The words belong to the window.
    """

    __slots__ = ("_at", "_words", "aged", "count")

    def __init__(self, words: array[int], at: int, count: int, *, aged: bool = True) -> None:
        """Use two halves of `words` from `at` on. The younger half comes first and contains `count` digests. Unless it
        has aged, the older half is empty, and not looked at."""
        self._words = words
        self._at = at
        self.count = count
        self.aged = aged

    def sift(self, digests: list[int]) -> list[int]:
        """Add digests; return the indexes of those that were not known. This is the inner loop of an evaluation."""
        total = len(digests)
        if self.count + total > CAPACITY:
            return self._sift_in_parts(digests)
        known: list[int] = []  # indexes; most digests are new
        aged, start, has_aged = 0, self._at, self.aged
        many = total > _MANY
        words, offset = (self._words[start : start + 2 * HALF].tolist(), 0) if many else (self._words, start)
        left = iter(digests)  # tells how many are left: to count all takes longer, and few indexes are needed
        for digest in left:
            bits = _BITS[digest & 4095]
            at = offset + (digest >> 26)
            word = words[at]
            added = word | bits
            if added == word:
                known.append(total - 1 - length_hint(left))
            else:
                words[at] = added
                if has_aged and words[at + HALF] & bits == bits:
                    aged += 1
                    known.append(total - 1 - length_hint(left))
        if many:
            self._words[start : start + HALF] = array(WORD, words[:HALF])
        self.count += total - len(known) + aged
        if self.count >= CAPACITY:
            self._age()
        return [*filterfalse(frozenset(known).__contains__, range(total))] if known else [*range(total)]

    def _sift_in_parts(self, digests: list[int]) -> list[int]:
        """Add no more digests at once than the younger half has room for."""
        new: list[int] = []
        start = 0
        while start < len(digests):
            some = digests[start : start + CAPACITY - self.count]
            new += [start + index for index in self.sift(some)]
            start += len(some)
        return new

    def add(self, *digests: int) -> None:
        """Add digests, one after the other."""
        words, start = self._words, self._at
        for digest in digests:
            at = start + (digest >> 26)
            word = words[at]
            added = word | _BITS[digest & 4095]
            if added != word:
                words[at] = added
                self.count += 1
                if self.count >= CAPACITY:
                    self._age()

    def add_new(self, digest: int) -> bool:
        """Add one digest if it is not known; return whether it was new."""
        bits, words = _BITS[digest & 4095], self._words
        at = self._at + (digest >> 26)
        word = words[at]
        if word & bits == bits or (self.aged and words[at + HALF] & bits == bits):
            return False
        words[at] = word | bits
        self.count += 1
        if self.count >= CAPACITY:
            self._age()
        return True

    def add_both(self, first: int, second: int) -> bool | None:
        """Add two digests if the first is not known; return whether the second was known before. None: the first is
        known, and nothing was added."""
        words, start = self._words, self._at
        bits, at = _BITS[first & 4095], start + (first >> 26)
        word = words[at]
        if word & bits == bits or (self.aged and words[at + HALF] & bits == bits):
            return None
        more, there = _BITS[second & 4095], start + (second >> 26)
        other = words[there]
        if other & more == more or at == there or self.count + 2 >= CAPACITY:  # seldom
            known = self.knows(second)
            self.add(first, second)
            return known
        words[at], words[there] = word | bits, other | more
        self.count += 2
        return self.aged and words[there + HALF] & more == more

    def knows(self, digest: int) -> bool:
        """Tell whether a digest is known."""
        bits, words = _BITS[digest & 4095], self._words
        at = self._at + (digest >> 26)
        return words[at] & bits == bits or (self.aged and words[at + HALF] & bits == bits)

    def _age(self) -> None:
        words, young = self._words, self._at
        words[young + HALF : young + 2 * HALF] = words[young : young + HALF]
        words[young : young + HALF] = _EMPTY
        self.count = 0
        self.aged = True


RING: Final = 16
TAILS: Final = 16
CALLS: Final = 32
TEXTS: Final = 16
TOOLS: Final = 8
ENDS: Final = 12
EFFECTS: Final = 9
SKETCHES: Final = 12
SKETCH: Final = 16
EVIDENCE_MAX: Final = 200
KEPT_MAX: Final = 1024  # bytes of all kept answers
ID_MAX: Final = 48
COUNT_MAX: Final = 1000.0  # of any count: half floats are exact in quarters up to 512, and no threshold is higher
NONE: Final = bytes(8)
set_key: Final = struct.Struct("8s").pack_into  # in a list, at a position: a slice is assigned in three times the time

COUNTS: Final = struct.Struct(f"<{RING}e")
# A, last result, last error or masked result, same, in a row, failed, epoch, last step, its time in whole seconds
CALL: Final = struct.Struct("<8s8s4seeeHIH")
CLOCK: Final = 0xFFFF  # of times in whole seconds, as two bytes
TEXT: Final = struct.Struct("<8seIHI")  # text, count, last step, epoch, second of the clock
END: Final = struct.Struct("<4se")  # call or tool, count of equal ends
TOOL: Final = struct.Struct("<4s8seI")  # tool, result, count, last step
EFFECT: Final = struct.Struct("<8sHHI")  # call and masked result, or a tool with a limit; count, epoch, last step
FRAME_LINES: Final = 6  # of a result, three at each end
FRAME_RESULTS: Final = 4
FRAME: Final = struct.Struct(f"<{FRAME_RESULTS * FRAME_LINES}H")  # the last 16 bits of the digests of lines; 0 for none
SKETCH_ROW: Final = struct.Struct(f"<4sB{SKETCH}H")  # recipient, number of words, words

CALLED, READ, CHANGED = 1, 2, 4  # `run_work`: calls were made; one returned something; one changed something
BYTES_MAX: Final = 2**32 - 1

# Types of the head's fields, with their codes in `struct`.
U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
F32 = Annotated[float, "f"]
Time = Annotated[float, "d"]
Key4 = Annotated[bytes, "4s"]
Key = Annotated[bytes, "8s"]
CallId = Annotated[bytes, f"{ID_MAX}s"]
Frame = Annotated[bytes, f"{FRAME.size}s"]


class SessionWindow:
    """One session's state. `load` unpacks it, `dump` packs it. The fields of the types above are the head."""

    version: U8
    kind: U8  # id of the current loop's kind
    levels: U8  # `level` and `reported_level` when packed
    work_since_cut: U8  # new results since the context was cut; `streaks.CHANGED` and more: a change
    call_rows: U8  # lengths of the lists when packed
    text_rows: U8
    tool_rows: U8
    sketch_rows: U8
    keeps_answers: U8  # not 0: the next request may leave the answer out, because the provider keeps the conversation
    evidence_size: U8
    effect_rows: U8
    pending_repeats: U8  # repeats of a tail that were counted and have no answer yet
    forgiven_repeats: U8  # repeats that were uncounted because their answers failed
    awaits_result: U8  # 1: the results of the last step's calls are not in requests, at best in the answer
    storm: F32
    mark_count: U16  # counts of the filters when packed
    last_answer: Key  # the last answer to a call whose result is not in requests
    steps: U32
    last_new_step: U32  # the last step with something new
    told_step: U32  # the step of the first notice, counted from 1; 0: none yet
    cut_step: U32  # when the context was last cut
    cuts: F32  # of the context, few steps apart
    cut_at: Time
    size: U32  # of the last request
    messages: U32
    messages_before_cut: U32
    prompt_size: U32
    last_at: Time  # of the last step
    storm_at: Time  # when a repeat of the tail was last counted
    ambiguous_at: Time  # when another conversation was last seen in this window
    waited_at: U32  # in seconds: when a wait last ended that took long enough for a look
    announced_at: U32  # the same for a wait that is only long by its arguments
    waiting_since: U32  # since when there were only waits, and looks with the same result; 0: not waiting
    line_count: U16
    word_count: U16
    epoch: U16  # number of changes made
    stubborn_epoch: U16  # at the last end that `stubborn` counted
    error_bits: U16  # of the last results, 1 for an error
    stale_steps: U16  # steps with low `line_novelty`
    tail_texts: U16  # number of texts in the last tail
    run_work: U8  # what was done since the run opened: CALLED, READ, CHANGED
    run_bytes: U32  # sent since then
    dry: F32  # turns without anything new
    line_novelty: F32  # moving average of the share of new lines
    reported_hits: F32  # count at which the current loop was last reported
    hits: F32  # its count now
    unknown_tools: F32
    answer_count: F32
    nested: F32
    cue_count: F32
    near_count: F32
    same_tool_run: F32  # calls of one tool in a row
    dry_key: Key
    identity: Key  # of the current loop
    answer: Key  # of the model, as text
    answer_before: Key
    prompt: Key
    added: Key  # what the last prompt had more than the one before it
    cue: Key
    near_call: Key
    tail: Key  # identifies the last step
    tail_users: Key
    tail_anchor: Key
    near_tool: Key4
    failed_tool: Key4  # whose last result was an error or a refusal
    tail_sender: Key4  # of a loop: stands for model, system prompt and tools
    last_id: CallId  # of the last step's first call, as the client sent it
    frame: Frame  # lines at the ends of the last results

    ring: bytearray
    cycle_counts: bytes
    tails: bytearray
    ends: bytearray  # the least recently used row first; free rows are zero
    calls: bytearray  # lists: oldest row first
    texts: bytearray
    tools: bytearray
    sketches: bytearray
    effects: bytearray
    filters: array[int]
    lines: AgedFilter
    marks: AgedFilter
    words: AgedFilter
    evidence: bytes
    recent_answers: bytes
    level: int
    reported_level: int

    __slots__ = tuple(__annotations__)

    def dump(self) -> bytes:
        calls, texts, tools, sketches = self.calls, self.texts, self.tools, self.sketches
        effects, evidence = self.effects, self.evidence
        self.levels = self.level << 4 | self.reported_level
        self.call_rows, calls_rest = _CALLS_REST[len(calls)]
        self.text_rows, texts_rest = _TEXTS_REST[len(texts)]
        self.tool_rows, tools_rest = _TOOLS_REST[len(tools)]
        self.sketch_rows, sketches_rest = _SKETCHES_REST[len(sketches)]
        self.effect_rows, effects_rest = _EFFECTS_REST[len(effects)]
        self.evidence_size = len(evidence)
        self.line_count, self.mark_count, self.word_count = self.lines.count, self.marks.count, self.words.count
        return b"".join((
            _pack_head(self), self.ring, self.cycle_counts, self.tails, self.ends,
            calls, calls_rest, texts, texts_rest, tools, tools_rest, sketches, sketches_rest, effects, effects_rest,
            self.filters, evidence, self.recent_answers,
        ))  # fmt: skip


def _codes() -> dict[str, str]:
    """Return the fields of the head with their codes."""
    known = {name: kind.__metadata__[0] for name, kind in globals().items() if hasattr(kind, "__metadata__")}
    # `typing.get_type_hints` compiles each of the annotations, which takes 1.5 ms.
    return {name: known[kind] for name, kind in SessionWindow.__annotations__.items() if kind in known}


_CODES: Final = _codes()
_NAMES: Final = tuple(_CODES)


def _offset(name: str) -> int:
    return struct.calcsize("<" + "".join([_CODES[one] for one in _NAMES[: _NAMES.index(name)]]))


_HEAD: Final = struct.Struct("<" + "".join(_CODES.values()))


def layout_version(codes: Mapping[str, str]) -> int:
    """Return the version of a layout: another one for other fields, or other sizes of the lists."""
    lists = (
        RING, TAILS, CALLS, TEXTS, TOOLS, SKETCHES, SKETCH, HALF, ENDS, CALL.format, TEXT.format,
        TOOL.format, EFFECTS, EFFECT.format,
    )  # fmt: skip
    return zlib.crc32(repr(([*codes.items()], lists)).encode()) & 0xFF


VERSION: Final = layout_version(_CODES)
_FLOATS: Final = struct.Struct(
    "<" + "".join([code if code == "f" else f"{struct.calcsize('<' + code)}x" for code in _CODES.values()])
)
_TAIL_AT: Final = _offset("tail")
_PENDING_AT: Final = _offset("pending_repeats")
_AWAITS_RESULT_AT: Final = _offset("awaits_result")
_KEEPS_AT: Final = _offset("keeps_answers")
_CALL_ROWS_AT: Final = _offset("call_rows")
_RUN: Final = struct.Struct("<BI")
_RUN_AT: Final = _offset("run_work")
# What an answer changes, from `pending_repeats` to `last_answer`.
_ANSWER: Final = struct.Struct(
    "<" + "".join([*_CODES.values()][_NAMES.index("pending_repeats") : _NAMES.index("last_answer") + 1])
)


_Unpack = Callable[[SessionWindow, bytes], None]


_ARGUMENTS: Final = 28  # of one call: Python makes a list of more than 30, and a tuple of the list


def _generate() -> tuple[_Unpack, _Unpack, Callable[[SessionWindow], bytes]]:
    """Return functions that unpack the head, unpack only its floats, and pack it. They are generated, as the methods of
    a named tuple are: loops over the names take five times as long (9.5 us instead of 1.7)."""
    head, floats = [f"w.{name}" for name in _NAMES], [f"w.{name}" for name in _NAMES if _CODES[name] == "f"]
    names: dict[str, Any] = {"head": _HEAD, "floats": _FLOATS}
    packed = []
    for at in range(0, len(_NAMES), _ARGUMENTS):
        some = slice(at, at + _ARGUMENTS)
        names[f"pack_{at}"] = struct.Struct("<" + "".join([_CODES[name] for name in _NAMES[some]])).pack
        packed.append(f"pack_{at}({', '.join(head[some])})")
    source = (
        f"def unpack_head(w, data): {', '.join(head)} = head.unpack_from(data)\n"
        f"def unpack_floats(w, data): {', '.join(floats)} = floats.unpack_from(data)\n"
        f"def pack_head(w): return {' + '.join(packed)}\n"
    )
    exec(source, names)  # noqa: S102 - made of the names above
    return names["unpack_head"], names["unpack_floats"], names["pack_head"]


_unpack_head, _unpack_floats, _pack_head = _generate()
_CALL_SIZE, _TEXT_SIZE, _TOOL_SIZE, _SKETCH_SIZE = CALL.size, TEXT.size, TOOL.size, SKETCH_ROW.size
_CALLS_SIZE, _TEXTS_SIZE = CALLS * _CALL_SIZE, TEXTS * _TEXT_SIZE
_TOOLS_SIZE, _SKETCHES_SIZE = TOOLS * _TOOL_SIZE, SKETCHES * _SKETCH_SIZE
_EFFECT_SIZE, _EFFECTS_SIZE = EFFECT.size, EFFECTS * EFFECT.size
_SIZES: Final = (
    _HEAD.size, RING * 8, COUNTS.size, TAILS * 8, ENDS * END.size, _CALLS_SIZE, _TEXTS_SIZE, _TOOLS_SIZE,
    _SKETCHES_SIZE, _EFFECTS_SIZE, 3 * BYTES,
)  # fmt: skip
(
    _RING_AT, _COUNTS_AT, _TAILS_AT, _ENDS_AT, _CALLS_AT, _TEXTS_AT, _TOOLS_AT, _SKETCHES_AT, _EFFECTS_AT,
    _FILTERS_AT, _END,
) = (sum(_SIZES[:at]) for at in range(1, 12))  # fmt: skip
_MARKS_AT: Final = _FILTERS_AT + BYTES
_NEW: Final = bytes((VERSION,)) + bytes(_END - 1)


def _rests(most: int, size: int) -> dict[int, tuple[int, bytes]]:
    """Return, by the length of a list in bytes, its number of rows and the space of those that are missing."""
    return {rows * size: (rows, bytes((most - rows) * size)) for rows in range(most + 1)}


_CALLS_REST, _TEXTS_REST, _TOOLS_REST = _rests(CALLS, CALL.size), _rests(TEXTS, TEXT.size), _rests(TOOLS, TOOL.size)
_SKETCHES_REST, _EFFECTS_REST = _rests(SKETCHES, SKETCH_ROW.size), _rests(EFFECTS, EFFECT.size)
# Where lists end, by their number of rows. No number leads beyond the space of a list.
_CALLS_ENDS: Final = [min(_CALLS_AT + rows * CALL.size, _TEXTS_AT) for rows in range(256)]
_TEXTS_ENDS: Final = [min(_TEXTS_AT + rows * TEXT.size, _TOOLS_AT) for rows in range(256)]
_TOOLS_ENDS: Final = [min(_TOOLS_AT + rows * TOOL.size, _SKETCHES_AT) for rows in range(256)]
_SKETCHES_ENDS: Final = [min(_SKETCHES_AT + rows * SKETCH_ROW.size, _EFFECTS_AT) for rows in range(256)]
_EFFECTS_ENDS: Final = [min(_EFFECTS_AT + rows * EFFECT.size, _FILTERS_AT) for rows in range(256)]


def load(data: bytes) -> SessionWindow:
    """Return the window that `data` packs; a new one if `data` is empty, not a window, or of another version."""
    if not readable(data):
        data = _NEW
    window = SessionWindow()
    _unpack_head(window, data)
    window.level, window.reported_level = window.levels >> 4, window.levels & 15
    window.last_id = window.last_id.rstrip(b"\x00")
    window.ring = bytearray(data[_RING_AT:_COUNTS_AT])
    window.cycle_counts = data[_COUNTS_AT:_TAILS_AT]
    window.tails = bytearray(data[_TAILS_AT:_ENDS_AT])
    window.ends = bytearray(data[_ENDS_AT:_CALLS_AT])
    window.calls = bytearray(data[_CALLS_AT : _CALLS_ENDS[window.call_rows]])
    window.texts = bytearray(data[_TEXTS_AT : _TEXTS_ENDS[window.text_rows]])
    window.tools = bytearray(data[_TOOLS_AT : _TOOLS_ENDS[window.tool_rows]])
    window.sketches = bytearray(data[_SKETCHES_AT : _SKETCHES_ENDS[window.sketch_rows]])
    window.effects = bytearray(data[_EFFECTS_AT : _EFFECTS_ENDS[window.effect_rows]])
    window.filters = words = array(WORD, data[_FILTERS_AT:_END])
    window.lines = AgedFilter(words, 0, window.line_count, aged=_has_aged(data, _FILTERS_AT))
    window.marks = AgedFilter(words, 2 * HALF, window.mark_count, aged=_has_aged(data, _MARKS_AT))
    window.words = AgedFilter(words, 4 * HALF, window.word_count, aged=_has_aged(data, _MARKS_AT + BYTES))
    window.evidence = data[_END : _END + window.evidence_size]
    window.recent_answers = data[_END + window.evidence_size :]
    return window


def _has_aged(data: bytes, at: int) -> bool:
    """Tell whether there is anything in the older half of a packed filter."""
    return data[at + BYTES // 2 : at + BYTES] != _NO_WORDS


def readable(data: bytes) -> bool:
    """Tell whether `data` is a window of this version."""
    return _END <= len(data) <= _END + EVIDENCE_MAX + KEPT_MAX and data[0] == VERSION


class UnpackedWindows:
    """The windows of the last steps: a session that goes on soon, as agents do, is not unpacked again.

    Only stored data counts. A window is used if it packs exactly the bytes that were read, and its counts are set to
    the packed ones, which are less exact, so that every instance computes the same.
    """

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        self._most = most  # of some 12 KB each with their bytes
        self._kept: dict[bytes, tuple[bytes, SessionWindow]] = {}  # by tail, with the bytes; the oldest first

    def take(self, data: bytes) -> SessionWindow:
        """Return the window that `data` packs. The caller may change it, and passes it to `keep` then."""
        known = self._kept.pop(data[_TAIL_AT : _TAIL_AT + 8], None)
        if known is None or known[0] != data:
            return load(data)
        window = known[1]
        _unpack_floats(window, data)
        return window

    def answered(self, before: bytes, after: bytes) -> None:
        """Note that an answer has changed a packed window: what it changes is unpacked, and not the rest."""
        tail = before[_TAIL_AT : _TAIL_AT + 8]
        known = self._kept.get(tail)
        if known is not None and known[0] == before:
            window = known[1]
            _unpack_answer(window, after)
            self._kept[tail] = after, window

    def keep(self, window: SessionWindow) -> bytes:
        """Pack a window, and keep it."""
        kept, packed = self._kept, window.dump()
        if len(kept) >= self._most:
            del kept[next(iter(kept))]
        kept[window.tail] = packed, window
        return packed


def run_so_far(data: bytes) -> tuple[int, int, list[bytes]]:
    """Return how many bytes a session has sent since its run opened, what it did (`run_work`), and the last result of
    each of its calls."""
    if not readable(data):
        return 0, 0, []
    work, sent = _RUN.unpack_from(data, _RUN_AT)
    end = _CALLS_ENDS[data[_CALL_ROWS_AT]]
    return sent, work, [data[at + 8 : at + 16] for at in range(_CALLS_AT, end, _CALL_SIZE)]


def awaits_answer(data: bytes) -> bool:
    """Tell whether the answer to a packed window's last step matters beyond its text: it confirms a repeat, it
    contains the result of a call, or it is to be kept."""
    return bool(data[_PENDING_AT] or data[_AWAITS_RESULT_AT] or data[_KEEPS_AT])


def keeps_answers(data: bytes) -> bool:
    """Tell whether the answer to a packed window's last step is to be kept."""
    return bool(data[_KEEPS_AT])


def awaits_result(data: bytes) -> bool:
    """Tell whether the answer to a packed window's last step contains the result of a call."""
    return bool(data[_AWAITS_RESULT_AT])


def answered(data: bytes, key: bytes, marks: Sequence[int]) -> bytes:
    """Return a packed window after an answer, without unpacking the rest.

    A repeat counts once it is answered. `marks` stand for the text, so that copies of it are not new. If the answer is
    the result of a call, a result other than the last one (`key`) is progress, and one never seen before ends a cycle.
    """
    pending, forgiven, awaits, storm, count, last = _ANSWER.unpack_from(data, _PENDING_AT)
    if not (pending or marks or (awaits and last != key)):
        return data
    changed = bytearray(data)
    words = array(WORD, data[_MARKS_AT : _MARKS_AT + BYTES])
    known = AgedFilter(words, 0, count)
    if awaits and marks and not known.knows(marks[0]):
        changed[_COUNTS_AT:_TAILS_AT] = bytes(COUNTS.size)
    known.add(*marks)
    changed[_MARKS_AT : _MARKS_AT + BYTES] = words.tobytes()
    storm = min(storm + (pending > 0), COUNT_MAX)
    if awaits and key != last:
        storm, last = 0.0, key
    _ANSWER.pack_into(changed, _PENDING_AT, max(pending - 1, 0), forgiven, awaits, storm, known.count, last)
    return bytes(changed)


def _unpack_answer(window: SessionWindow, data: bytes) -> None:
    """Set what an answer changes: see `answered`, `failed` and `recent_answers.add`."""
    (
        window.pending_repeats,
        window.forgiven_repeats,
        window.awaits_result,
        window.storm,
        window.mark_count,
        window.last_answer,
    ) = _ANSWER.unpack_from(data, _PENDING_AT)
    window.cycle_counts = data[_COUNTS_AT:_TAILS_AT]
    window.filters[2 * HALF : 4 * HALF] = array(WORD, data[_MARKS_AT : _MARKS_AT + BYTES])
    window.marks.count, window.marks.aged = window.mark_count, _has_aged(data, _MARKS_AT)
    window.recent_answers = data[_END + window.evidence_size :]


def failed(data: bytes, forgiven_max: int) -> bytes:
    """Return a packed window after a request failed: repeats of it count once more than `forgiven_max` failed."""
    pending, forgiven, awaits, storm, count, last = _ANSWER.unpack_from(data, _PENDING_AT)
    if not pending:
        return data
    changed = bytearray(data)
    free = forgiven < forgiven_max
    storm = storm if free else min(storm + 1, COUNT_MAX)
    _ANSWER.pack_into(changed, _PENDING_AT, pending - 1, forgiven + free, awaits, storm, count, last)
    return bytes(changed)


def find_row(rows: bytearray, key: bytes, size: int) -> int:
    """Return the position of the row of `size` bytes that begins with `key`; -1 if there is none."""
    at = rows.find(key)
    while at > 0 and at % size:  # in the middle of another row
        at = rows.find(key, at + 1)
    return at


def find_recent_row(rows: bytearray, key: bytes, size: int) -> int:
    """Do the same where it is usually the last row, which takes less time to look at than all of them."""
    at = len(rows) - size
    return at if at >= 0 and rows[at : at + len(key)] == key else find_row(rows, key, size)
