"""What is remembered of a session, packed: fixed size whatever its length, fingerprints and counts only. What each part
means is its detector's matter; storing it the engine's. Bytes:

    head 204 · ring of steps 16 x 8 and its counts 32 · tails 16 x 8 · table 32 x 32 · texts 16 x 14 · tools 8 x 18
    sketches 12 x 37 · filters of lines, marks and words 2 x 512 each: 5,400 in all, and evidence of at most 200
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from breakloop.detect.steps.filters import AgedFilter

VERSION: Final = 1
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

_HEAD: Final = struct.Struct("<4BI2d4f8s8s4I3H8s8s8s8s8s8s8s8s8s9fII3H")
_COUNTS: Final = struct.Struct(f"<{RING}e")
_ENTRY: Final = struct.Struct("<8s4seeeHI")
_ROW: Final = 8 + _ENTRY.size
_TEXT: Final = struct.Struct("<8seI")
_TOOL: Final = struct.Struct("<8s4seI")
_SKETCH: Final = struct.Struct(f"<4sB{SKETCH}H")
_FILTERS: Final = (512, 512, 512)  # bytes of a half: lines, marks, words
_PARTS: Final = (TABLE * _ROW, TEXTS * _TEXT.size, TOOLS * _TOOL.size, SKETCHES * _SKETCH.size)


class Entry:
    """What is known of one call (A)."""

    __slots__ = ("e", "epoch", "failed", "last", "r", "row", "same")

    def __init__(self, r: bytes, e: bytes, counts: tuple[float, float, float], epoch: int, last: int) -> None:
        self.r = r  # its last result
        self.e = e  # its last error, four bytes of it
        self.same, self.row, self.failed = counts  # returned that: in all, step after step; failed without a success
        self.epoch = epoch  # changes made by then
        self.last = last  # the step in which it was seen last

    def pack(self) -> bytes:
        """Return the entry as the table keeps it: a step needs few of them, so the others stay packed."""
        return _ENTRY.pack(self.r, self.e, self.same, self.row, self.failed, self.epoch, self.last)


def entry(packed: bytes) -> Entry:
    """Return an entry of the table."""
    r, e, same, row, failed, epoch, last = _ENTRY.unpack(packed)
    return Entry(r, e, (same, row, failed), epoch, last)


class Sketch(NamedTuple):
    """A sample of the words of one text, and to whom it went."""

    to: bytes  # four bytes
    words: tuple[int, ...]

    def pack(self) -> bytes:
        """Return the sketch as the window keeps it."""
        return _SKETCH.pack(self.to, len(self.words), *self.words, *(0,) * (SKETCH - len(self.words)))


def sketch(packed: bytes) -> Sketch:
    """Return a sketch of the window."""
    to, size, *words = _SKETCH.unpack(packed)
    return Sketch(to, tuple(words[:size]))


class Window:
    """One session's memory. `load` unpacks one, `dump` packs it again."""

    __slots__ = (
        "anchor", "bad", "count", "counts", "cue", "cues", "dry", "dry_id", "epoch", "evidence", "fall_at",
        "falls", "flow", "identity", "kind", "last_at", "level", "lines", "marks", "messages", "near",
        "near_count", "near_tool", "nested", "new_at", "peak", "prompt", "prompt_size", "ring", "run", "said",
        "said_before", "said_count", "size", "sketches", "stale", "steps", "storm", "storm_at", "table", "tail",
        "tail_count", "tail_users", "tails", "texts", "told", "told_level", "tools", "unknown", "words",
    )  # fmt: skip

    def __init__(self) -> None:
        self.kind = self.level = self.told_level = self.falls = 0  # of the standing loop; size falls in a row
        self.steps = 0
        self.last_at = self.storm_at = 0.0  # when the last step came; when the last repeat of a tail was counted
        self.dry = self.flow = 0.0  # turns without news; moving average of the share of new lines
        self.told = self.count = 0.0  # count at which the standing loop was told last; its count now
        self.dry_id = self.identity = NONE
        self.new_at = self.fall_at = 0  # the last step with news; the last with a fall in size
        self.size = self.messages = 0
        self.epoch = self.bad = self.stale = 0  # changes made; last results' badness as bits; steps without flow
        self.said = self.said_before = self.prompt = self.cue = NONE
        self.near = self.near_tool = self.tail = self.tail_users = NONE
        self.unknown = self.said_count = self.nested = self.cues = self.near_count = self.storm = 0.0
        self.anchor = NONE
        self.tail_count = 0.0  # texts of the last tail
        self.run = 0.0  # calls of one tool in a row
        self.peak = self.prompt_size = 0
        self.ring = bytearray(RING * 8)
        self.counts = [0.0] * RING
        self.tails = bytearray(TAILS * 8)
        self.table: dict[bytes, bytes] = {}  # A -> its entry, packed; the one used longest ago first
        self.texts: dict[bytes, tuple[float, int]] = {}
        self.tools: dict[bytes, tuple[bytes, float, int]] = {}
        self.sketches: list[bytes] = []  # packed
        self.evidence = ""
        self.lines, self.marks, self.words = (AgedFilter(size) for size in _FILTERS)

    def dump(self) -> bytes:
        """Return the window packed."""
        counts = _COUNTS.pack(*self.counts)
        table = b"".join([key + one for key, one in self.table.items()])
        texts = b"".join([_TEXT.pack(key, *one) for key, one in self.texts.items()])
        tools = b"".join([_TOOL.pack(one[0], key, *one[1:]) for key, one in self.tools.items()])
        sketches = b"".join(self.sketches)
        lists = (table, texts, tools, sketches)
        parts = [part.ljust(size, b"\x00") for part, size in zip(lists, _PARTS, strict=True)]
        filters = [self.lines.dump(), self.marks.dump(), self.words.dump()]
        sizes = bytes((len(self.table), len(self.texts), len(self.tools), len(self.sketches)))
        return b"".join([self._head(), sizes, self.ring, counts, self.tails, *parts, *filters, self.evidence.encode()])

    def _head(self) -> bytes:
        return _HEAD.pack(
            VERSION, self.kind, self.level << 4 | self.told_level, self.falls, self.steps, self.last_at, self.storm_at,
            self.dry, self.flow, self.told, self.count, self.dry_id, self.identity,
            self.new_at, self.fall_at, self.size, self.messages, self.epoch, self.bad, self.stale,
            self.said, self.said_before, self.prompt, self.cue, self.near, self.near_tool, self.tail, self.tail_users,
            self.anchor, self.unknown, self.said_count, self.nested, self.cues, self.near_count, self.storm, self.run,
            self.tail_count, 0.0,
            self.peak, self.prompt_size, self.lines.count, self.marks.count, self.words.count,
        )  # fmt: skip

    def take_head(self, data: bytes) -> None:
        """Set what the head of a packed window holds."""
        (
            _, self.kind, levels, self.falls, self.steps, self.last_at, self.storm_at,
            self.dry, self.flow, self.told, self.count, self.dry_id, self.identity,
            self.new_at, self.fall_at, self.size, self.messages, self.epoch, self.bad, self.stale,
            self.said, self.said_before, self.prompt, self.cue, self.near, self.near_tool, self.tail, self.tail_users,
            self.anchor, self.unknown, self.said_count, self.nested, self.cues, self.near_count, self.storm, self.run,
            self.tail_count, _,
            self.peak, self.prompt_size, self.lines.count, self.marks.count, self.words.count,
        ) = _HEAD.unpack_from(data)  # fmt: skip
        self.level, self.told_level = levels >> 4, levels & 15


_RINGS: Final = _HEAD.size + 4
_LISTS: Final = _RINGS + RING * 8 + _COUNTS.size + TAILS * 8
_BLOOMS: Final = _LISTS + sum(_PARTS)
_END: Final = _BLOOMS + 2 * sum(_FILTERS)


def load(data: bytes) -> Window:
    """Return the window that `data` packs; a new one for what is empty, foreign or of another version."""
    window = Window()
    if not _END <= len(data) <= _END + EVIDENCE_MAX or data[0] != VERSION:
        return window
    try:
        evidence = data[_END:].decode()
    except UnicodeDecodeError:
        return window
    window.take_head(data)
    window.evidence = evidence
    sizes = data[_HEAD.size : _RINGS]
    at = _RINGS
    window.ring = bytearray(data[at : at + RING * 8])
    window.counts = list(_COUNTS.unpack_from(data, at + RING * 8))
    window.tails = bytearray(data[_LISTS - TAILS * 8 : _LISTS])
    _load_lists(window, data, sizes)
    _load_filters(window, data)
    return window


def _load_lists(window: Window, data: bytes, sizes: bytes) -> None:
    at = _LISTS
    end = at + min(sizes[0], TABLE) * _ROW
    window.table = {data[one : one + 8]: data[one + 8 : one + _ROW] for one in range(at, end, _ROW)}
    at += _PARTS[0]
    texts = _TEXT.iter_unpack(data[at : at + min(sizes[1], TEXTS) * _TEXT.size])
    window.texts = {key: (count, last) for key, count, last in texts}
    at += _PARTS[1]
    tools = _TOOL.iter_unpack(data[at : at + min(sizes[2], TOOLS) * _TOOL.size])
    window.tools = {tool: (result, count, last) for result, tool, count, last in tools}
    at += _PARTS[2]
    end = at + min(sizes[3], SKETCHES) * _SKETCH.size
    window.sketches = [data[one : one + _SKETCH.size] for one in range(at, end, _SKETCH.size)]


def _load_filters(window: Window, data: bytes) -> None:
    at = _BLOOMS
    for half, one in zip(_FILTERS, (window.lines, window.marks, window.words), strict=True):
        one.load(data[at : at + 2 * half], one.count)
        at += 2 * half
