"""What is remembered of one caller and agent whose sessions have no name (SPEC C-7, DETECTION): whether such sessions
run side by side, and prompts that are wrapped anew each time, which begin a session each. Sessions themselves are
judged by `steps`; that of a crowded caller nothing is blocked is left to whoever asks. One packed section:

    head 11 · ring of sessions 16 x 17 · lanes (a model and a system prompt each) 16 x 49, all newest first: 1,067 bytes

The part of a `similarity: steps` block that looks beyond one session: conversations that the client did not name
(SPEC C-7), judged by caller and agent. What is remembered of them is `detect.lanes`' matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import CallReaders, SeverityActions, StatefulDetector
from breakloop.detect.steps import texts
from breakloop.detect.steps.detector import RUN_IDLE_S, weight_of
from breakloop.detect.steps.fingerprints import NONE, Digest, StepFingerprinter
from breakloop.detect.steps.kinds import NOTHING, level, times
from breakloop.detect.steps.window import COUNT_MAX
from breakloop.model.call import Call, Step

KIND: Final = "nested"
OVERLAP_S: Final = 600.0  # so long a caller counts as crowded, and so long a session is remembered
RING: Final = 16  # sessions: of so many side by side, one comes again before it is forgotten
LANES: Final = 16

_VERSION: Final = 2
_HEAD: Final = Struct("<BdBB")  # version, when sessions overlapped last, how many sessions and lanes follow
_SESSION: Final = Struct("<8sdB")  # digest, when it was seen last, whether it came again after another
_LANE: Final = Struct("<8s8s8s8sIeedB")
_NEVER: Final = -math.inf
_SEEN_S: Final = 30.0  # a time is not written anew sooner
_NOTED_S: Final = 60.0  # nor is an overlap


class LaneEvaluation(NamedTuple):
    """What a step means; `window` is the object that was handed in where there is nothing new to remember."""

    window: bytes
    level: int  # 0 nothing, 1 notice, 2 block, 3 stop
    kind: str = ""
    evidence: str = ""
    identity: str = ""  # of the loop, 16 hex digits
    fresh: bool = False  # not told before at this level, nor at half the count
    crowded: bool = False  # two sessions without a name overlapped lately


class ConversationLane:
    """The last prompt of one lane, under the names by which `texts.nested` goes, and how far the loop has come."""

    __slots__ = ("added", "identity", "last_at", "level", "nested", "prompt", "prompt_size", "told", "told_level")

    def __init__(self) -> None:
        self.prompt = self.added = self.identity = NONE
        self.prompt_size = 0
        self.nested = self.told = 0.0  # the count, and at which count it was told last
        self.last_at = _NEVER
        self.level = self.told_level = NOTHING

    def pack(self, key: bytes) -> bytes:
        """Return the lane as the window keeps it."""
        levels = self.level << 4 | self.told_level
        digests = (key, self.prompt, self.added, self.identity)
        return _LANE.pack(*digests, self.prompt_size, self.nested, self.told, self.last_at, levels)


def looks(step: Step) -> bool:
    """Tell whether `judge` looks at the lane: where nothing was called. Of any other step it need not be known."""
    return not (step.calls or step.results) and bool(step.users)


class LaneTracker:
    """Judges steps of sessions without a name. One for many callers: all that is remembered is in the windows."""

    __slots__ = ("_printer", "_thresholds")

    def __init__(self, thresholds: tuple[float, float, float], digest: Digest) -> None:
        self._thresholds = {KIND: thresholds}
        self._printer = StepFingerprinter(digest)

    def judge(self, window: bytes, session: str, lane: str, step: Step, now: float) -> LaneEvaluation:
        """Judge a request's newest step; `window` is b"" for a caller and agent that are new."""
        overlap_at, ring, lanes = _load(window)
        key = self._printer.plain(session.encode("utf-8", "surrogatepass"))
        newer_at, newer_ring = _met(overlap_at, ring, key, now)
        judged, newer_lanes = self._nested(lanes, lane, step, now) if looks(step) else (_NOT_JUDGED, lanes)
        if newer_ring is not ring or newer_lanes is not lanes:  # an overlap moves the ring
            sizes = len(newer_ring) // _SESSION.size, len(newer_lanes) // _LANE.size
            window = b"".join((_HEAD.pack(_VERSION, newer_at, *sizes), newer_ring, newer_lanes))
        return judged._replace(window=window, crowded=abs(now - newer_at) < OVERLAP_S)

    def _nested(self, lanes: bytes, name: str, step: Step, now: float) -> tuple[LaneEvaluation, bytes]:
        """Judge a prompt by the one before it in its lane; also return the lanes as they are after it."""
        key = self._printer.plain(name.encode("utf-8", "surrogatepass"))
        at, lane = _find(lanes, key, now)
        before, gap_s, begins = lane.prompt, now - lane.last_at, not lane.nested
        found = list(texts.nested(lane, step, self._printer, weight_of(gap_s)))
        fresh = False
        if found:
            if begins:
                lane.identity, lane.told, lane.told_level = self._printer.of(b"loop", key, before), 0.0, NOTHING
            lane.level = level(self._thresholds, found[0])
            fresh = bool(lane.level) and (lane.level > lane.told_level or lane.nested >= 2 * lane.told)
            if fresh:
                lane.told, lane.told_level = lane.nested, lane.level
        elif lane.prompt != before:
            lane.level = NOTHING
        elif gap_s < _SEEN_S:  # the same prompt again stands as it stood
            return _judged(lane, fresh=False), lanes
        lane.last_at = now
        kept = lanes[:at] + lanes[at + _LANE.size :]
        return _judged(lane, fresh=fresh), lane.pack(key) + kept[: (LANES - 1) * _LANE.size]


_NOT_JUDGED: Final = LaneEvaluation(b"", NOTHING)


def _judged(lane: ConversationLane, *, fresh: bool) -> LaneEvaluation:
    if not lane.level:
        return _NOT_JUDGED
    evidence = f"each prompt holds the one before it, {times(lane.nested)}"
    return LaneEvaluation(b"", lane.level, KIND, evidence, lane.identity.hex(), fresh)


def _met(overlap_at: float, ring: bytes, key: bytes, now: float) -> tuple[float, bytes]:
    """Return when sessions overlapped last, and the ring with this one in it: the same object where that will do.

    Two overlap when each comes again after the other (A, B, A, B). A single call in between is no second session: a
    title that is asked for, a text that a tool has summed up.
    """
    size = _SESSION.size
    if ring[:8] == key:
        _, before, returned = _SESSION.unpack_from(ring)
        return overlap_at, ring if abs(now - before) < _SEEN_S else _SESSION.pack(key, now, returned) + ring[size:]
    at = next((at for at in range(size, len(ring), size) if ring[at : at + 8] == key), -1)
    if at < 0:
        return overlap_at, (_SESSION.pack(key, now, 0) + ring)[: RING * size]
    lately = abs(now - _SESSION.unpack_from(ring, at)[1]) < OVERLAP_S
    if lately and any(returned for _, _, returned in _SESSION.iter_unpack(ring[:at])):
        if abs(now - overlap_at) < _NOTED_S:
            return overlap_at, ring
        overlap_at = now
    return overlap_at, _SESSION.pack(key, now, lately) + ring[:at] + ring[at + size :]


def _find(lanes: bytes, key: bytes, now: float) -> tuple[int, ConversationLane]:
    """Return where a lane stands, and what is known of it; a new one where that is nothing, or too old."""
    lane = ConversationLane()
    at = next((at for at in range(0, len(lanes), _LANE.size) if lanes[at : at + 8] == key), len(lanes))
    if at < len(lanes):
        _, prompt, added, identity, size, nested, told, last_at, levels = _LANE.unpack_from(lanes, at)
        if abs(now - last_at) < RUN_IDLE_S and 0 <= nested <= COUNT_MAX and 0 <= told <= COUNT_MAX:
            lane.prompt, lane.added, lane.identity = prompt, added, identity
            lane.prompt_size, lane.last_at = size, last_at
            lane.nested, lane.told = nested, told
            lane.level, lane.told_level = levels >> 4 & 3, levels & 3
    return at, lane


def _load(window: bytes) -> tuple[float, bytes, bytes]:
    """Return when sessions overlapped last, the ring, and the lanes; nothing of a window that cannot be read."""
    if len(window) < _HEAD.size or window[0] != _VERSION:
        return _NEVER, b"", b""
    _, overlap_at, sessions, lanes = _HEAD.unpack_from(window)
    start = _HEAD.size + sessions * _SESSION.size
    if sessions > RING or lanes > LANES or len(window) != start + lanes * _LANE.size:
        return _NEVER, b"", b""
    return overlap_at, window[_HEAD.size : start], window[start:]


class UnnamedSessionsDetector(StatefulDetector):
    """Says of a call whether its session is one of a crowd, and finds prompts that wrap the one before."""

    __slots__ = ("_detector", "_lane", "_session")

    def __init__(
        self,
        config: DetectorConfig,
        ladder: SeverityActions,
        reads: CallReaders,
        detector: LaneTracker,
        *,
        session: Callable[[Call], str],
        lane: Callable[[Call], str],
    ) -> None:
        super().__init__(config, ladder, reads, "lanes:")
        self._detector = detector
        self._session = session
        self._lane = lane

    def owner(self, call: Call) -> str:
        """Return caller and agent, where that can matter: ids of calls tell conversations apart by themselves."""
        step = call.parsed.step or self._reads.step(call)
        return "" if step is None or step.call_ids else self._reads.owner(call)

    def evaluate(self, call: Call, window: bytes, now: float) -> LaneEvaluation | None:
        """Judge the call; where tools are at work, only whether there is a crowd is of interest."""
        step = self.newest(call, now)
        if step is None:
            return None
        lane = "" if step.calls or step.results else self._lane(call)
        judged = self._detector.judge(window, self._session(call), lane, step, now)
        call.decision.crowded = judged.crowded
        return judged
