"""Kind `rerun`: a run that is started again and again, and ends the same way each time.

Part of a `similarity: steps` block. A run opens with a request that has text of the user and no results, and ends with
the answer that calls no tool. Runs with the same opening are compared when they have ended: the same
answer, nothing read that the runs before had not read, and nothing changed, is the same outcome. Anything else begins
the count again.

The section of the window of a caller and agent, 2,929 bytes at most, the last used opening last:

    version 1 · openings 24 x 122

The row of an opening has the sums of its runs, not each run. Only openings are evaluated; the rest of a run is counted
in the window of its session (`run_bytes`, `run_work`), where the answer finds it (`ended`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.counting import CallReader, DetectorConfig, announced
from breakloop.detect.fingerprint import is_ping
from breakloop.detect.stateful import (
    BLOCK,
    DENYING,
    NOTHING,
    NOTICE,
    DetectorSlot,
    Evaluation,
    StatefulDetector,
    section_tags,
    session_owner,
)
from breakloop.detect.steps.findings import times
from breakloop.detect.steps.fingerprints import Digest, StepFingerprinter, folded, lowered, own, steady
from breakloop.detect.steps.window import CALLED, CHANGED, READ, run_so_far
from breakloop.detect.trees import task_of
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Step
from breakloop.store.keys import join_values
from breakloop.store.ops import Op

KIND: Final = "rerun"
TRIGGER_HEADER: Final = "x-agent-trigger"
OPENINGS: Final = 24
WITHIN_S: Final = 4 * 3600  # in which runs are counted
APART_S: Final = 3600  # runs further apart are not compared: a window is not kept for longer
CADENCE_S: Final = 285  # five minutes, with the tolerance of a timer
MINUTE_CADENCE_S: Final = 57  # a minute, with the same tolerance

_VERSION: Final = 1
_ROW: Final = Struct("<6s4s6s6sBBefIIHBBfI72s")
_ID_BYTES: Final = 6
_SESSION_BYTES: Final = 4
_NO_ID: Final = bytes(_ID_BYTES)
_NEW: Final = 8  # beside CALLED, READ and CHANGED: something was read that earlier runs had not read
_FILTER_BYTES: Final = 72
_FILTER_BITS: Final = 8 * _FILTER_BYTES
_FILTER_FULL: Final = _FILTER_BITS // 2
_TEXT_MAX: Final = 16 * 1024  # characters that are compared
_TRIGGER_MAX: Final = 40
_TIME_MAX: Final = 2**32 - 1
_TOKENS_MAX: Final = 2**32 - 1
_HITS_MAX: Final = 20_000.0
_SUM_MAX: Final = 1e15
_GAPS_MAX: Final = 64
_GAPS_MIN: Final = 6  # fewer do not show a rhythm
_MINUTE_S: Final = 60
_MILLION: Final = 1_000_000
_NOT_PRINTED: Final = re.compile(r"[^\w ./:-]", re.ASCII).sub
_PERSONS: Final = frozenset(("user", "person", "human", "manual"))
_TIMERS: Final = re.compile(r"heart.?beat|cron|schedul|timer|interval|poll|watch|monitor|health|tick").search
_MONITORS: Final = re.compile(r"monitor|health|probe|watchdog").search
_HEARTBEAT: Final = re.compile(r"heart.?beat", re.IGNORECASE).search

PEOPLE: Final = "only reported, because people may have started it (send X-Agent-Trigger)"
HEARTBEAT: Final = "only reported, because it is a heartbeat, five minutes apart or more"
MONITOR: Final = "only reported, because it watches something, a minute apart or more"
NO_TOOLS: Final = "only reported, because it has no tools"

Bounds = tuple[float, float]  # notice, block


class RunOpening(NamedTuple):
    """The request with which a run begins."""

    task: str
    system: str = ""  # model and system prompt
    user: str = ""  # the end user, if the client names one
    session: str = ""
    trigger: str = ""  # what started the run, if the client names it
    agent_named: bool = False
    has_tools: bool = False


class _Runs(NamedTuple):
    """The runs with one opening."""

    opening: bytes
    session: bytes  # of the last run
    outcome: bytes  # of the runs that are counted
    ended: bytes  # outcome of the last run; `_NO_ID`: it has not ended
    work: int  # what the last run did: CALLED, READ, CHANGED, `_NEW`
    reported_level: int
    reported_hits: float
    hits: float  # runs that ended with `outcome`, one after the other
    first_s: int  # when the first of them began
    begun_s: int  # when the last run began, or was denied
    gap_s: int  # between the last two
    alike: int  # how many gaps were as long as the one before, give or take a quarter
    gaps: int  # how many gaps were compared
    tokens: float  # of the counted runs
    run_tokens: int  # of the last run
    results: bytes  # what the runs have read: a Bloom filter


def trigger_of(call: Call) -> str:
    """Return what started the run, as the client names it, or ""."""
    sent = call.headers.get(TRIGGER_HEADER)
    return _NOT_PRINTED("", sent[:_TRIGGER_MAX].decode("latin-1")).strip() if sent else ""


def opens_run(step: Step) -> bool:
    """Tell whether a request begins a run: with text of the user at the beginning of a conversation, or after an answer
    that called no tool."""
    return bool(step.users) and not (step.calls or step.results)


class RerunDetector(StatefulDetector):
    """Evaluates openings, and keeps how their runs end."""

    __slots__ = ("_bounds", "_fingerprints", "_step_tags")

    def __init__(self, config: DetectorConfig, read: CallReader, digest: Digest, bounds: Bounds = (8, 16)) -> None:
        super().__init__(config, read, "rerun:")
        self._fingerprints = StepFingerprinter(digest)
        self._bounds = bounds
        self._step_tags = section_tags(config)

    def plan(self, call: Call, project: str, group: int, now: float) -> DetectorSlot | None:
        """Return the slot for an opening. Runs are judged if the client names their agent or trigger, or has tools and
        names its sessions. Without a name, nothing tells the runs of a program from the visits of many people."""
        if not call.tracked:
            return None  # its answer, and so the outcome of the run, will not be known
        read, who = self._read, call.identity
        step = call.parsed.step or read.step(call)
        if step is None or not (
            (step.tools and not read.derived(call))
            or TRIGGER_HEADER in call.headers
            or (who.agent or read.agent(call)) != (who.caller or read.caller(call))
        ):
            return None
        slot = super().plan(call, project, group, now)
        if slot is None or trigger_of(call).lower() in _PERSONS:
            return None
        call.decision.runs = (*call.decision.runs, slot)
        return slot if opens_run(step) else None

    def owner(self, call: Call) -> str:
        return f"r:{join_values([self._read.caller(call), self._read.agent(call)])}"

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        read, chat = self._read, call.parsed.chat
        step = read.step(call)
        if step is None or (chat and is_ping(call, chat)):
            return None
        opening = RunOpening(
            task_of(step.users),
            read.model_and_system(call),
            read.user(call),
            read.session(call),
            trigger_of(call),
            agent_named=read.agent(call) != read.caller(call),
            has_tools=bool(step.tools),
        )
        key = call.decision.opening = self.opening_id(opening)
        return self.evaluate_opening(window, opening, now, key)

    def evaluate_opening(self, window: bytes, opening: RunOpening, now: float, key: bytes = b"") -> Evaluation:
        """Evaluate the request with which a run opens; `key` is its `opening_id`, if that is known."""
        key, at_s = key or self.opening_id(opening), min(max(int(now), 0), _TIME_MAX)
        known = _load(window)
        before = next((one for one in known if one.opening == key), None)
        runs = _begun(before, key, at_s)
        level, remark = self._level(runs, opening)
        hits = runs.hits + 1
        fresh = bool(level) and (level > runs.reported_level or hits >= 2 * runs.reported_hits)
        if fresh:
            runs = runs._replace(reported_level=level, reported_hits=min(hits, _HITS_MAX))
        if level < BLOCK or self.config.action not in DENYING:
            runs = runs._replace(session=self._session(opening.session))
        window = _dump([*[one for one in known if one is not before], runs])
        if not level:
            return Evaluation(window)
        identity = self._fingerprints.of(b"loop", KIND.encode(), key).hex()
        return Evaluation(window, level, KIND, _evidence(runs, at_s, opening.trigger, remark), identity, fresh, hits)

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op | None:
        if not evaluation.level or evaluation.hits <= announced(call, self.config, self._read):
            return None
        return self._act(call, evaluation, evaluation.level, project, group)

    def steps_of(self, call: Call) -> tuple[str, tuple[bytes, bytes]]:
        """Return the owner of the window that has the steps of a run, and the tags of its section."""
        return session_owner(self._read, call), self._step_tags

    def ended(self, window: bytes, steps: bytes, answer: Answer, call: Call) -> bytes:
        """Return the section after the answer that ends a run; `steps` is the section of its session's steps."""
        return self.end_run(window, call.decision.opening, self._read.session(call), run_so_far(steps), answer)

    def end_run(
        self, window: bytes, opening: bytes, session: str, work_done: tuple[int, int, list[bytes]], answer: Answer
    ) -> bytes:
        """The same, by the id of the opening, if the answer is to the request that opened the run, and the session.
        `work_done` is what `run_so_far` returns."""
        known = _load(window)
        at = _run_of(known, opening, self._session(session))
        if at < 0:
            return window
        runs = known[at]
        sent, work, results = work_done
        read = int.from_bytes(runs.results, "little")
        if read.bit_count() > _FILTER_FULL:
            read = 0
        for result in results:
            bits = _bits(result)
            if read & bits != bits:
                work |= _NEW
                read |= bits
        if runs.ended != _NO_ID:
            work |= runs.work & _NEW  # the run went on after an answer without calls
        usage = answer.usage
        last = usage.input_tokens + usage.output_tokens if usage is not None else 0
        known[at] = runs._replace(
            ended=self._id(_masked(answer.text), b"answer"),
            work=work,
            run_tokens=min(max(sent // CHARS_A_TOKEN, last), _TOKENS_MAX),
            results=read.to_bytes(_FILTER_BYTES, "little"),
        )
        return _dump(known)

    def opening_id(self, opening: RunOpening) -> bytes:
        """Return what identifies an opening: its text, model, system prompt and end user, without times and ids."""
        system = opening.system.encode("utf-8", "surrogatepass")
        system = steady(system[:_TEXT_MAX]) + system[_TEXT_MAX:]
        return self._id(_masked(opening.task), system, opening.user.encode("utf-8", "surrogatepass"))

    def _session(self, session: str) -> bytes:
        return self._fingerprints.plain(session.encode("utf-8", "surrogatepass"))[:_SESSION_BYTES]

    def _id(self, *parts: bytes) -> bytes:
        return self._fingerprints.plain(b"\x00".join(parts))[:_ID_BYTES]

    def _level(self, runs: _Runs, opening: RunOpening) -> tuple[int, str]:
        """Return the level of a run that begins, and why it is not more than a notice."""
        hits, (notice, block) = runs.hits + 1, self._bounds
        if hits < notice:
            return NOTHING, ""
        if not opening.trigger and not _is_regular(runs):
            # Without an agent's name, they may be the visitors of a web site that offers the same three questions.
            return (NOTICE, PEOPLE) if opening.agent_named else (NOTHING, "")
        if hits < block:
            return NOTICE, ""
        trigger, lasted_s = opening.trigger.lower(), runs.begun_s - runs.first_s
        timed, idle = _TIMERS(trigger), not runs.work & READ
        says_so = timed if trigger else _HEARTBEAT(opening.task[:_TEXT_MAX])
        if (says_so or idle) and lasted_s >= CADENCE_S * runs.hits:
            return NOTICE, HEARTBEAT
        # Monitors look more often, and so do probes that read nothing. They say that they are timed.
        if (_MONITORS(trigger) or (timed and idle)) and lasted_s >= MINUTE_CADENCE_S * runs.hits:
            return NOTICE, MONITOR
        if not (opening.trigger or opening.has_tools or runs.work & CALLED):
            return NOTICE, NO_TOOLS
        return BLOCK, ""


def _masked(text: str) -> bytes:
    """Return a text without what changes by itself."""
    return folded(lowered(steady(own(text[:_TEXT_MAX].encode("utf-8", "surrogatepass")))))


def _begun(before: _Runs | None, opening: bytes, at_s: int) -> _Runs:
    """Return the runs of an opening when one more run begins."""
    if before is None or not 0 <= at_s - before.begun_s <= APART_S:
        return _Runs(opening, bytes(_SESSION_BYTES), _NO_ID, _NO_ID, 0, 0, 0.0, 0.0, at_s, at_s, 0, 0, 0, 0.0, 0,
                      bytes(_FILTER_BYTES))  # fmt: skip
    row = _counted(before) if before.ended != _NO_ID else before
    gap_s = at_s - before.begun_s
    if gap_s and before.gap_s:
        alike = 4 * abs(gap_s - before.gap_s) <= before.gap_s
        row = row._replace(alike=row.alike + alike, gaps=row.gaps + 1)
        if row.gaps >= _GAPS_MAX:
            row = row._replace(alike=row.alike // 2, gaps=row.gaps // 2)
    lasted_s = at_s - row.first_s
    if lasted_s > WITHIN_S:
        # As if the runs had begun at equal intervals: of these, so many are within the time.
        share = WITHIN_S / lasted_s
        row = row._replace(hits=row.hits * share, tokens=row.tokens * share, first_s=at_s - WITHIN_S)
    return row._replace(ended=_NO_ID, begun_s=at_s, gap_s=gap_s)


def _counted(row: _Runs) -> _Runs:
    """Return an opening's row with its last run, which has ended."""
    if row.ended == row.outcome and not row.work & (CHANGED | _NEW):
        hits, tokens = min(row.hits + 1, _HITS_MAX), min(row.tokens + row.run_tokens, _SUM_MAX)
        return row._replace(hits=hits, tokens=tokens)
    hits = 0.0 if row.work & CHANGED else 1.0
    return row._replace(
        outcome=row.ended if hits else _NO_ID, hits=hits, tokens=float(row.run_tokens), first_s=row.begun_s,
        reported_level=0, reported_hits=0.0,
    )  # fmt: skip


def _is_regular(row: _Runs) -> bool:
    """Tell whether runs begin at regular intervals, as those of a program do; people come when they like."""
    return row.gaps >= _GAPS_MIN and 4 * row.alike >= 3 * row.gaps


def _run_of(rows: Sequence[_Runs], opening: bytes, session: bytes) -> int:
    """Return the index of the run that an answer ends: that of its own opening, or else the last one of its session
    that has not ended, or else the last one."""
    if opening:
        return next((at for at, one in enumerate(rows) if one.opening == opening and one.session == session), -1)
    found = [at for at, one in enumerate(rows) if one.session == session]
    running = [at for at in found if rows[at].ended == _NO_ID]
    return (running or found or [-1])[-1]


def _bits(result: bytes) -> int:
    number = int.from_bytes(result[:6], "little")
    one, number = number % _FILTER_BITS, number // _FILTER_BITS
    return 1 << one | 1 << number % _FILTER_BITS | 1 << number // _FILTER_BITS % _FILTER_BITS


def _evidence(row: _Runs, at_s: int, trigger: str, remark: str) -> str:
    minutes = max(1, round((at_s - row.first_s) / _MINUTE_S))
    span = f"{minutes} minute{'s' if minutes != 1 else ''}"
    parts = [f"the same run was started {times(int(row.hits) + 1)} in {span} with the same outcome"]
    if row.tokens:
        parts.append(f"about {_tokens(row.tokens)} tokens")
    if trigger:
        parts.append(f"trigger {trigger}")
    if remark:
        parts.append(remark)
    return "; ".join(parts)


def _tokens(count: float) -> str:
    return f"{count / _MILLION:.1f} million" if count >= _MILLION else f"{int(count):,}"


def _load(window: bytes) -> list[_Runs]:
    """Return the openings, the last used one last; none if the data cannot be read."""
    if not window or window[0] != _VERSION or (len(window) - 1) % _ROW.size:
        return []
    known = [_Runs(*one) for one in _ROW.iter_unpack(window[1:])]
    return [one for one in known if 0 <= one.hits <= _HITS_MAX and 0 <= one.tokens <= _SUM_MAX]


def _dump(rows: Sequence[_Runs]) -> bytes:
    return bytes((_VERSION,)) + b"".join([_ROW.pack(*one) for one in rows[-OPENINGS:]])
