"""Sessions that the client gave no name, by caller and agent: whether such sessions run side by side, and prompts that
wrap the previous prompt and begin a new session each time (kind `nested`).

Part of a `similarity: steps` block. It runs before the detector of steps, which only gives notice of what it would
block while unnamed sessions overlap. The section of the agent's window, 1,067 bytes at most, newest entries first:

    head 11 · sessions 16 x 17 · series of prompts, one for each model and system prompt, 16 x 49
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Final

from breakloop.detect.counting import CallReader, DetectorConfig
from breakloop.detect.stateful import NOTHING, RUN_IDLE_S, Evaluation, StatefulDetector, agent_owner
from breakloop.detect.steps import texts
from breakloop.detect.steps.findings import times
from breakloop.detect.steps.fingerprints import NONE, Digest, StepFingerprinter
from breakloop.detect.steps.kinds import level
from breakloop.detect.steps.waiting import weight_of
from breakloop.detect.steps.window import COUNT_MAX
from breakloop.model.call import Call, Step

KIND: Final = "nested"
OVERLAP_S: Final = 600.0  # how long after an overlap sessions count as overlapping, and how long a session is kept
SESSIONS: Final = 16  # of so many side by side, each comes again before it is dropped
SERIES: Final = 16

_VERSION: Final = 2
_HEAD: Final = Struct("<BdBB")  # version, time of the last overlap, number of sessions and of series that follow
_SESSION: Final = Struct("<8sdB")  # digest, time of its last request, whether it came again after another session
_SERIES: Final = Struct("<8s8s8s8sIeedB")
_NEVER: Final = -math.inf
_SEEN_S: Final = 30.0  # the time of a session is updated after this many seconds
_NOTED_S: Final = 60.0  # and the time of an overlap


class PromptSeries:
    """The last prompt of one model and system prompt, in the attributes that `texts.nested` uses, and its loop."""

    __slots__ = (
        "added", "identity", "last_at", "level", "nested", "prompt", "prompt_size", "reported_hits", "reported_level",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prompt = self.added = self.identity = NONE
        self.prompt_size = 0
        self.nested = self.reported_hits = 0.0  # the count now, and when it was last reported
        self.last_at = _NEVER
        self.level = self.reported_level = NOTHING

    def pack(self, key: bytes) -> bytes:
        levels = self.level << 4 | self.reported_level
        digests = (key, self.prompt, self.added, self.identity)
        return _SERIES.pack(*digests, self.prompt_size, self.nested, self.reported_hits, self.last_at, levels)


class UnnamedSessionsDetector(StatefulDetector):
    """Evaluates the steps of sessions without a name."""

    __slots__ = ("_fingerprints", "_thresholds")

    def __init__(
        self, config: DetectorConfig, read: CallReader, digest: Digest, thresholds: tuple[float, float, float]
    ) -> None:
        super().__init__(config, read, "lanes:")  # names its section in stored windows: never change it
        self.of_unnamed = True
        self._thresholds = {KIND: thresholds}
        self._fingerprints = StepFingerprinter(digest)

    def owner(self, call: Call) -> str:
        """Return caller and agent; "" if the session has a name, or if ids of calls distinguish conversations."""
        read = self._read
        step = call.parsed.step or read.step(call)
        return "" if step is None or step.call_ids or not read.derived(call) else agent_owner(read, call)

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        """Evaluate the call, and set `crowded` and `interrupted` of `call.decision`."""
        step = self._read.step(call)
        if step is None:
            return None
        # Reading a system prompt takes time, and only prompts are compared by it.
        system = "" if step.calls or step.results else self._read.model_and_system(call)
        evaluation = self.evaluate_step(window, self._read.session(call), system, step, now)
        call.decision.crowded = evaluation.ambiguous
        newest = window[_HEAD.size : _HEAD.size + 8]
        call.decision.interrupted = bool(newest) and newest != evaluation.window[_HEAD.size : _HEAD.size + 8]
        return evaluation

    def evaluate_step(self, window: bytes, session: str, system: str, step: Step, now: float) -> Evaluation:
        """Evaluate a request's newest step; `system` is model and system prompt."""
        overlap_at, sessions, series = _load(window)
        key = self._fingerprints.plain(session.encode("utf-8", "surrogatepass"))
        newer_at, newer_sessions = _add_session(overlap_at, sessions, key, now)
        newer_series, one, fresh = series, None, False
        if not (step.calls or step.results) and step.users:
            one, fresh, newer_series = self._nested(series, system, step, now)
        if newer_sessions is not sessions or newer_series is not series:  # an overlap changes the sessions too
            sizes = len(newer_sessions) // _SESSION.size, len(newer_series) // _SERIES.size
            window = b"".join((_HEAD.pack(_VERSION, newer_at, *sizes), newer_sessions, newer_series))
        overlap = abs(now - newer_at) < OVERLAP_S
        if one is None or not one.level:
            return Evaluation(window, ambiguous=overlap)
        evidence = f"each prompt contains the previous one, {times(one.nested)}"
        return Evaluation(window, one.level, KIND, evidence, one.identity.hex(), fresh, ambiguous=overlap)

    def _nested(self, series: bytes, name: str, step: Step, now: float) -> tuple[PromptSeries, bool, bytes]:
        """Compare a prompt with the previous one of its series. Return the series, whether its loop is to be reported,
        and all series after the step."""
        key = self._fingerprints.plain(name.encode("utf-8", "surrogatepass"))
        at, one = _find(series, key, now)
        before, gap_s, begins = one.prompt, now - one.last_at, not one.nested
        found = texts.nested(one, step, self._fingerprints, weight_of(gap_s))
        fresh = False
        if found:
            if begins:
                one.identity = self._fingerprints.of(b"loop", key, before)
                one.reported_hits, one.reported_level = 0.0, NOTHING
            one.level = level(self._thresholds, found[0])
            fresh = bool(one.level) and (one.level > one.reported_level or one.nested >= 2 * one.reported_hits)
            if fresh:
                one.reported_hits, one.reported_level = one.nested, one.level
        elif one.prompt != before:
            one.level = NOTHING
        elif gap_s < _SEEN_S:  # the same prompt again: nothing changes
            return one, False, series
        one.last_at = now
        kept = series[:at] + series[at + _SERIES.size :]
        return one, fresh, one.pack(key) + kept[: (SERIES - 1) * _SERIES.size]


def _add_session(overlap_at: float, sessions: bytes, key: bytes, now: float) -> tuple[float, bytes]:
    """Return the time of the last overlap, and the sessions with this one; the same objects if nothing changed.

    Two sessions overlap when each comes again after the other (A, B, A, B). A single call in between is not a second
    session: a client asks for a title, or a tool has a text summarised.
    """
    size = _SESSION.size
    if sessions[:8] == key:
        _, before, returned = _SESSION.unpack_from(sessions)
        return overlap_at, sessions if abs(now - before) < _SEEN_S else _SESSION.pack(key, now, returned) + sessions[
            size:
        ]
    at = next((at for at in range(size, len(sessions), size) if sessions[at : at + 8] == key), -1)
    if at < 0:
        return overlap_at, (_SESSION.pack(key, now, 0) + sessions)[: SESSIONS * size]
    lately = abs(now - _SESSION.unpack_from(sessions, at)[1]) < OVERLAP_S
    if lately and any(returned for _, _, returned in _SESSION.iter_unpack(sessions[:at])):
        if abs(now - overlap_at) < _NOTED_S:
            return overlap_at, sessions
        overlap_at = now
    return overlap_at, _SESSION.pack(key, now, lately) + sessions[:at] + sessions[at + size :]


def _find(series: bytes, key: bytes, now: float) -> tuple[int, PromptSeries]:
    """Return the position of a series and the series itself; a new one if it is missing or too old."""
    one = PromptSeries()
    at = next((at for at in range(0, len(series), _SERIES.size) if series[at : at + 8] == key), len(series))
    if at < len(series):
        _, prompt, added, identity, size, nested, reported_hits, last_at, levels = _SERIES.unpack_from(series, at)
        if abs(now - last_at) < RUN_IDLE_S and 0 <= nested <= COUNT_MAX and 0 <= reported_hits <= COUNT_MAX:
            one.prompt, one.added, one.identity = prompt, added, identity
            one.prompt_size, one.last_at = size, last_at
            one.nested, one.reported_hits = nested, reported_hits
            one.level, one.reported_level = levels >> 4 & 3, levels & 3
    return at, one


def _load(window: bytes) -> tuple[float, bytes, bytes]:
    """Return the time of the last overlap, the sessions, and the series; nothing if the data cannot be read."""
    if len(window) < _HEAD.size or window[0] != _VERSION:
        return _NEVER, b"", b""
    _, overlap_at, session_count, series_count = _HEAD.unpack_from(window)
    start = _HEAD.size + session_count * _SESSION.size
    if session_count > SESSIONS or series_count > SERIES or len(window) != start + series_count * _SERIES.size:
        return _NEVER, b"", b""
    return overlap_at, window[_HEAD.size : start], window[start:]
