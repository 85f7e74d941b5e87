"""What is remembered of a session, packed: fixed size whatever its length, fingerprints and counts only. What each part
means is its detector's matter; storing it the engine's. Bytes:

    head 273 · ring of steps 16 x 8 and its counts 16 x 2 · tails 16 x 8 · table 32 x 32 · texts 16 x 14 · tools 8 x 18
    sketches 12 x 37 · filters of lines, marks and words 2 x 512 each: 5,469 in all, and evidence of at most 200

Lists stay packed while a step is judged, because a step touches a row or two of them.

A Bloom filter in two halves that age: when the younger half is full it becomes the older one, and what was older is
forgotten. So a long session neither grows nor finds everything known (DETECTION: dry).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

HALF: Final = 64  # 64-bit words of a half
BYTES: Final = 2 * HALF * 8
CAPACITY: Final = HALF * 8  # of a half, 8 bits a digest: when it is full about 3 % of new ones look known
_EMPTY: Final = memoryview(bytes(HALF * 8)).cast("Q")
# Which bits of its word a digest sets, by its last 12 bits: working that out each time would cost as much as the rest.
_BITS: Final = tuple(
    [1 << (one & 63) | 1 << (one >> 6) | 1 << ((one & 63) * 7 + (one >> 6) * 13 + 29 & 63) for one in range(4096)]
)


class AgedFilter:
    """Remembers 32-bit digests: three bits in one word of each half. The words themselves are the window's."""

    __slots__ = ("_at", "_words", "count")

    def __init__(self, words: memoryview, at: int, count: int) -> None:
        """Take over two halves of `words` from `at` on, the younger first, which holds `count` digests."""
        self._words = words
        self._at = at
        self.count = count

    def sift(self, digests: Sequence[int]) -> list[int]:
        """Remember digests; return at which places those stand that were not known."""
        new: list[int] = []
        if self.count + len(digests) < CAPACITY:  # as nearly always
            self._sift(digests, 0, new)
            return new
        start = 0
        while start < len(digests):
            some = digests[start : start + CAPACITY - self.count]
            self._sift(some, start, new)
            start += len(some)
            if self.count >= CAPACITY:
                self._age()
        return new

    def _sift(self, digests: Sequence[int], start: int, new: list[int]) -> None:
        """Sift no more digests than there is room for: the loop of which every step costs as much as the rest."""
        before, aged = len(new), 0
        young = self._words[self._at : self._at + HALF]
        old = self._words[self._at + HALF : self._at + 2 * HALF]
        for place, digest in enumerate(digests, start):
            bits = _BITS[digest & 4095]
            at = digest >> 26
            word = young[at]
            if word & bits != bits:
                young[at] = word | bits
                if old[at] & bits == bits:
                    aged += 1
                else:
                    new.append(place)
        self.count += len(new) - before + aged

    def add(self, *digests: int) -> None:
        """Remember digests, one after the other."""
        words, start = self._words, self._at
        for digest in digests:
            bits = _BITS[digest & 4095]
            at = start + (digest >> 26)
            word = words[at]
            if word & bits != bits:
                words[at] = word | bits
                self.count += 1
                if self.count >= CAPACITY:
                    self._age()

    def learns(self, digest: int) -> bool:
        """Remember one digest, if it is not known; tell whether it was new."""
        bits, words = _BITS[digest & 4095], self._words
        at = self._at + (digest >> 26)
        word = words[at]
        if word & bits == bits or words[at + HALF] & bits == bits:
            return False
        words[at] = word | bits
        self.count += 1
        if self.count >= CAPACITY:
            self._age()
        return True

    def knows(self, digest: int) -> bool:
        """Tell whether a digest was remembered, and leave it at that."""
        bits, words = _BITS[digest & 4095], self._words
        at = self._at + (digest >> 26)
        return words[at] & bits == bits or words[at + HALF] & bits == bits

    def _age(self) -> None:
        words, young = self._words, self._at
        words[young + HALF : young + 2 * HALF] = words[young : young + HALF]
        words[young : young + HALF] = _EMPTY
        self.count = 0


VERSION: Final = 3
RING: Final = 16
TABLE: Final = 32
TAILS: Final = 16
TEXTS: Final = 16
TOOLS: Final = 8
SKETCHES: Final = 12
SKETCH: Final = 16
EVIDENCE_MAX: Final = 200
COUNT_MAX: Final = 1000.0  # of any count: half floats keep quarters exactly up to 512, and nobody asks beyond
NONE: Final = bytes(8)

COUNTS: Final = struct.Struct(f"<{RING}e")
ENTRY: Final = struct.Struct("<8s8s4seeeHI")  # A, last result, last error, same, row, failed, epoch, last step
TEXT: Final = struct.Struct("<8seI")  # text, count, last step
TOOL: Final = struct.Struct("<4s8seI")  # tool, result, count, last step
SKETCH_ROW: Final = struct.Struct(f"<4sB{SKETCH}H")  # to whom, how many words, these

ID_MAX: Final = 48
_FIRST: Final = "<11BfH8s7I3d6H"
_FLOATS: Final = struct.Struct("<10f")
_HEAD: Final = struct.Struct(f"{_FIRST}10f{11 * '8s'}4s4s{ID_MAX}s")
_FLOATS_AT: Final = struct.calcsize(_FIRST)
_TAIL_AT: Final = _FLOATS_AT + _FLOATS.size + 8 * 8  # of the head: the digest of the last step's tail
_STORM: Final = struct.Struct("<f")
_STORM_AT: Final = 11
_ANSWER: Final = struct.Struct("<BBBfH8s")  # of the head: what an answer changes
_ANSWER_AT: Final = 8
_FILTERS: Final = ("lines", "marks", "words")
_SIZES: Final = (
    _HEAD.size, RING * 8, COUNTS.size, TAILS * 8, TABLE * ENTRY.size, TEXTS * TEXT.size, TOOLS * TOOL.size,
    SKETCHES * SKETCH_ROW.size, len(_FILTERS) * BYTES,
)  # fmt: skip
_RING_AT, _COUNTS_AT, _TAILS_AT, _TABLE_AT, _TEXTS_AT, _TOOLS_AT, _SKETCHES_AT, _FILTERS_AT, _END = (
    sum(_SIZES[:at]) for at in range(1, 10)
)
_MARKS_AT: Final = _FILTERS_AT + BYTES
_TABLE_SIZE, _TEXTS_SIZE, _TOOLS_SIZE, _SKETCHES_SIZE = _SIZES[4:8]
_NEW: Final = bytes((VERSION,)) + bytes(_END - 1)
_ZEROS: Final = bytes(max(_SIZES))
# Where lists end, by their number of rows; no number that a head can hold leads beyond.
_TABLE_ENDS: Final = [min(_TABLE_AT + rows * ENTRY.size, _TEXTS_AT) for rows in range(256)]
_TEXTS_ENDS: Final = [min(_TEXTS_AT + rows * TEXT.size, _TOOLS_AT) for rows in range(256)]
_TOOLS_ENDS: Final = [min(_TOOLS_AT + rows * TOOL.size, _SKETCHES_AT) for rows in range(256)]
_SKETCHES_ENDS: Final = [min(_SKETCHES_AT + rows * SKETCH_ROW.size, _FILTERS_AT) for rows in range(256)]


class SessionWindow:
    """One session's memory. `load` unpacks one, `dump` packs it again."""

    __slots__ = (
        "_filters", "added", "anchor", "bad", "count", "counts", "cue", "cues", "dry", "dry_id", "epoch", "evidence",
        "fall_at", "falls", "flow", "forgiven", "heard", "identity", "kind", "last_at", "last_id", "level", "lines",
        "marks", "messages", "mixed_at", "near", "near_count", "near_tool", "nested", "new_at", "owed", "peak",
        "prompt", "prompt_size", "ring", "run", "said", "said_before", "said_count", "size", "sketches", "stale",
        "steps", "storm", "storm_at", "table", "tail", "tail_count", "tail_tools", "tail_users", "tails", "texts",
        "told", "told_level", "tools", "unknown", "waits", "words",
    )  # fmt: skip

    kind: int  # of the standing loop
    level: int
    told_level: int
    told: float  # the count at which it was told last
    count: float  # its count now
    identity: bytes
    evidence: bytes
    steps: int
    last_at: float  # when the last step came
    storm_at: float  # when the last repeat of a tail was counted
    storm: float
    owed: int  # repeats of a tail that were counted and are not answered yet
    forgiven: int  # counts that failed answers took back
    waits: int  # 1: what the last step's calls return goes elsewhere, and is in their answer at best
    heard: bytes  # the last answer to such a call
    last_id: bytes  # of the last step's first call, as it was written
    mixed_at: float  # when another conversation was last seen under the same name
    tail: bytes  # the last step's
    tail_users: bytes
    tail_tools: bytes  # where a loop stands: what stands for model, system prompt and tools
    tail_count: int  # texts of the last tail
    anchor: bytes
    dry: float  # turns without news
    dry_id: bytes
    new_at: int  # the last step with news
    flow: float  # moving average of the share of new lines
    stale: int  # steps without flow
    epoch: int  # changes made
    bad: int  # badness of the last results, as bits
    unknown: float
    said: bytes
    said_before: bytes
    said_count: float
    cue: bytes
    cues: float
    prompt: bytes
    prompt_size: int
    added: bytes  # what the last prompt had more than the one before it
    nested: float
    near: bytes
    near_tool: bytes
    near_count: float
    run: float  # calls of one tool in a row
    size: int  # of the last request
    messages: int
    falls: int  # of the size, in a row
    fall_at: int
    peak: int

    def __init__(self, data: bytes = _NEW) -> None:
        (
            _, self.kind, levels, self.falls, table, texts, tools, sketches, self.owed, self.forgiven,
            self.waits, self.storm, marks, self.heard,
            self.steps, self.new_at, self.fall_at, self.size, self.messages, self.peak, self.prompt_size,
            self.last_at, self.storm_at, self.mixed_at, lines, words, self.epoch, self.bad, self.stale, self.tail_count,
            self.dry, self.flow, self.told, self.count, self.unknown, self.said_count, self.nested, self.cues,
            self.near_count, self.run,
            self.dry_id, self.identity, self.said, self.said_before, self.prompt, self.added, self.cue,
            self.near, self.tail, self.tail_users, self.anchor, self.near_tool, self.tail_tools, last_id,
        ) = _HEAD.unpack_from(data)  # fmt: skip
        self.level, self.told_level = levels >> 4, levels & 15
        self.last_id = last_id.rstrip(b"\x00")
        self.ring = bytearray(data[_RING_AT:_COUNTS_AT])
        self.counts = data[_COUNTS_AT:_TAILS_AT]
        self.tails = bytearray(data[_TAILS_AT:_TABLE_AT])
        self.table = bytearray(data[_TABLE_AT : _TABLE_ENDS[table]])  # oldest first
        self.texts = bytearray(data[_TEXTS_AT : _TEXTS_ENDS[texts]])
        self.tools = bytearray(data[_TOOLS_AT : _TOOLS_ENDS[tools]])
        self.sketches = bytearray(data[_SKETCHES_AT : _SKETCHES_ENDS[sketches]])
        self._filters = bytearray(data[_FILTERS_AT:_END])
        view = memoryview(self._filters).cast("Q")
        self.lines = AgedFilter(view, 0, lines)
        self.marks = AgedFilter(view, 2 * HALF, marks)
        self.words = AgedFilter(view, 4 * HALF, words)
        self.evidence = data[_END:]

    def dump(self) -> bytes:
        """Return the window packed."""
        table, texts, tools, sketches = self.table, self.texts, self.tools, self.sketches
        return b"".join((
            self._head(), self.ring, self.counts, self.tails, table, _ZEROS[len(table) : _TABLE_SIZE],
            texts, _ZEROS[len(texts) : _TEXTS_SIZE], tools, _ZEROS[len(tools) : _TOOLS_SIZE],
            sketches, _ZEROS[len(sketches) : _SKETCHES_SIZE], self._filters, self.evidence,
        ))  # fmt: skip

    def _head(self) -> bytes:
        return _HEAD.pack(
            VERSION, self.kind, self.level << 4 | self.told_level, self.falls, len(self.table) // ENTRY.size,
            len(self.texts) // TEXT.size, len(self.tools) // TOOL.size, len(self.sketches) // SKETCH_ROW.size,
            self.owed, self.forgiven, self.waits, self.storm, self.marks.count, self.heard,
            self.steps, self.new_at, self.fall_at, self.size, self.messages, self.peak, self.prompt_size,
            self.last_at, self.storm_at, self.mixed_at, self.lines.count, self.words.count, self.epoch, self.bad,
            self.stale, self.tail_count,
            self.dry, self.flow, self.told, self.count, self.unknown, self.said_count, self.nested, self.cues,
            self.near_count, self.run,
            self.dry_id, self.identity, self.said, self.said_before, self.prompt, self.added, self.cue,
            self.near, self.tail, self.tail_users, self.anchor, self.near_tool, self.tail_tools, self.last_id,
        )  # fmt: skip


class UnpackedWindows:
    """The windows of the last steps, as they were left: what goes on soon, as agents do, is not unpacked again.

    What is stored alone counts. A window is only taken from here where it packs the very bytes that were read, and its
    counts become what the packed ones are: half as exact, on every instance.
    """

    __slots__ = ("_kept",)

    KEPT: Final = 4  # windows, of some 12 KB each with their bytes: a session must not take twice its memory

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[bytes, SessionWindow]] = {}  # by tail, with the bytes; the oldest first

    def take(self, data: bytes) -> SessionWindow:
        """Return the window that `data` packs. Whoever takes it may change it, and hands it back when it is packed."""
        known = self._kept.pop(data[_TAIL_AT : _TAIL_AT + 8], None)
        if known is None or known[0] != data:
            return load(data)
        window = known[1]
        (
            window.dry, window.flow, window.told, window.count, window.unknown, window.said_count, window.nested,
            window.cues, window.near_count, window.run,
        ) = _FLOATS.unpack_from(data, _FLOATS_AT)  # fmt: skip
        (window.storm,) = _STORM.unpack_from(data, _STORM_AT)
        return window

    def keep(self, window: SessionWindow) -> bytes:
        """Pack a window, and remember it."""
        kept, packed = self._kept, window.dump()
        if len(kept) >= self.KEPT:
            del kept[next(iter(kept))]
        kept[window.tail] = packed, window
        return packed


def load(data: bytes) -> SessionWindow:
    """Return the window that `data` packs; a new one for what is empty, foreign or of another version."""
    return SessionWindow(data) if readable(data) else SessionWindow()


def readable(data: bytes) -> bool:
    """Tell whether `data` is a window of this version."""
    return _END <= len(data) <= _END + EVIDENCE_MAX and data[0] == VERSION


def listens(data: bytes) -> bool:
    """Tell whether an answer changes more than what its copies would be worth: a repeat that is not answered yet, or a
    call whose result is in the answer."""
    return bool(data[_ANSWER_AT] or data[_ANSWER_AT + 2])


def waits(data: bytes) -> bool:
    """Tell whether the answer to a packed window's last step is what a call returned."""
    return bool(data[_ANSWER_AT + 2])


def answered(data: bytes, key: bytes, marks: Sequence[int]) -> bytes:
    """Return a packed window after an answer came; the rest stays packed.

    A repeat that is answered counts. Its text is remembered by `marks`, so that its copies are no news; where it is
    what a call returned, another one than the last time (`key`) is progress, and one that never came ends a cycle.
    """
    owed, forgiven, waits, storm, count, heard = _ANSWER.unpack_from(data, _ANSWER_AT)
    if not (owed or marks or (waits and heard != key)):
        return data
    changed = bytearray(data)
    known = AgedFilter(memoryview(changed)[_MARKS_AT : _MARKS_AT + BYTES].cast("Q"), 0, count)
    if waits and marks and not known.knows(marks[0]):
        changed[_COUNTS_AT:_TAILS_AT] = bytes(COUNTS.size)
    for one in marks:
        known.add(one)
    storm = min(storm + (owed > 0), COUNT_MAX)
    if waits and key != heard:
        storm, heard = 0.0, key
    _ANSWER.pack_into(changed, _ANSWER_AT, max(owed - 1, 0), forgiven, waits, storm, known.count, heard)
    return bytes(changed)


def failed(data: bytes, forgiven_max: int) -> bytes:
    """Return a packed window after a request failed: a repeat of it counts only when that goes on and on."""
    owed, forgiven, waits, storm, count, heard = _ANSWER.unpack_from(data, _ANSWER_AT)
    if not owed:
        return data
    changed = bytearray(data)
    free = forgiven < forgiven_max
    storm = storm if free else min(storm + 1, COUNT_MAX)
    _ANSWER.pack_into(changed, _ANSWER_AT, owed - 1, forgiven + free, waits, storm, count, heard)
    return bytes(changed)


def place(rows: bytearray, key: bytes, size: int) -> int:
    """Return where the row of `size` bytes that begins with `key` stands; -1 for nowhere."""
    at = rows.find(key)
    while at > 0 and at % size:  # in the middle of another row
        at = rows.find(key, at + 1)
    return at
