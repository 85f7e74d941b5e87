"""The detector of a `similarity: steps` block.

`StepEvaluator` evaluates one step against the window of its session; hooks use it without an engine. A step is counted
once. Progress and new text of the user reset counts. `StepsDetector` applies it to the newest step of a call.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from breakloop.detect.advice import POLL
from breakloop.detect.counting import CallReader, DetectorConfig, announced
from breakloop.detect.fingerprint import is_ping
from breakloop.detect.stateful import (
    BLOCK,
    NOTICE,
    RUN_IDLE_S,
    DetectorSlot,
    Evaluation,
    StatefulDetector,
)
from breakloop.detect.steps import ends, novelty, recent_answers, repeats, streaks, texts, waiting
from breakloop.detect.steps.findings import Finding, StepState
from breakloop.detect.steps.fingerprints import (
    NONE,
    RATE,
    UNSEEN,
    AnswerFingerprints,
    CallResult,
    Digest,
    StepFingerprinter,
    StepFingerprints,
    done,
    is_answer_elsewhere,
    tells_something,
)
from breakloop.detect.steps.kinds import (
    BY_NAME,
    CALLS,
    DRY,
    EFFECT,
    EVALUATED,
    EXEMPT,
    HIDDEN,
    NAMES,
    NEVER,
    NO_CHOICE,
    TEXT,
    TROUBLE,
    USERS,
    WAIT,
    KindChoice,
    StepsSettings,
    choose,
)
from breakloop.detect.steps.novelty import handed_on
from breakloop.detect.steps.purposes import waits, waits_by_name
from breakloop.detect.steps.waiting import SLOW_S, Waiting, weight_of
from breakloop.detect.steps.window import (
    BYTES_MAX,
    CALLED,
    CHANGED,
    COUNT_MAX,
    EVIDENCE_MAX,
    ID_MAX,
    READ,
    TAILS,
    SessionWindow,
    UnpackedWindows,
    answered,
    awaits_answer,
    awaits_result,
    failed,
    find_row,
    keeps_answers,
    load,
    readable,
    set_key,
)
from breakloop.model.call import DERIVED_SESSION, Answer, Call, Step
from breakloop.store.keys import escape
from breakloop.store.ops import Op

_CALLED_AND_READ: Final = CALLED | READ
_AMBIGUOUS_WEIGHT: Final = 0.25  # of a step that may belong to another conversation
_HISTORY_MIN: Final = 2  # messages; the number of fewer shows nothing
_ID_MIN: Final = 8  # shorter ids ("call_1", "0") are counters, not random: they are the same in each conversation


def _no_system() -> str:
    return ""


class RequestContext(msgspec.Struct, frozen=True, gc=False):
    """What the evaluator needs to know about a request besides its step."""

    tracked: bool = False  # `answered` will be called with its answer
    unnamed: bool = False  # the session is derived from how the conversation opens: starting over is another run
    session: str = ""
    body: bytes = b""  # of an unnamed conversation, to find ids of its earlier steps
    system: Callable[[], str] = _no_system  # model and system prompt; only called if there is a loop
    interrupted: bool = False  # another unnamed conversation of the caller came since the last request of this one
    weight: float = 1.0  # of the step, if it repeats something


NO_CONTEXT: Final = RequestContext()
UNPACKED_MIN: Final = 4  # windows that an evaluator keeps unpacked, at least


class StepEvaluator:
    """Evaluates steps of many sessions: all state is in their windows."""

    __slots__ = ("_digest", "_dry_max", "_fingerprinter", "_has_options", "_thresholds", "_unpacked", "_user_max")

    def __init__(self, settings: StepsSettings, digest: Digest, unpacked_max: int = UNPACKED_MIN) -> None:
        self._thresholds = settings.thresholds
        self._has_options = bool(settings.tools)
        self._digest = digest
        self._fingerprinter = StepFingerprinter(digest, settings.tools)
        self._unpacked = UnpackedWindows(unpacked_max)
        reached = [one for one in settings.thresholds["dry"] if one != NEVER]
        self._dry_max = min(2 * max(reached, default=0.0) or COUNT_MAX, COUNT_MAX)
        # What remains of these counts after new text of the user: some steps are left before a block.
        self._user_max = {name: min(settings.thresholds[name][1] / 2, COUNT_MAX) for name in ("dry", "stagnation")}

    def evaluate(self, data: bytes, step: Step, now: float, context: RequestContext = NO_CONTEXT) -> Evaluation:
        """Evaluate a request's newest step; `data` is the packed window, b"" for a new session."""
        window = self._unpacked.take(data)
        kept = window.recent_answers
        is_branch, answer = False, None
        if kept and not (step.calls or step.said):
            step, answer, is_branch = self._with_kept(kept, step)
        # The fields of a named tuple are slow to read one by one, and this is on the path of every request.
        said, calls, call_ids, results, _, _, messages, size, _, _, stored = step[:]
        prints = self._fingerprinter.step(step, answer)
        steps = window.steps
        gap_s = now - window.last_at if steps else 0.0
        if gap_s >= RUN_IDLE_S and not _goes_on(window, step, prints):
            window, steps, gap_s = load(b""), 0, 0.0
        tail = self._tail(step, prints)
        users = self._users(prints) if prints.users else NONE
        counted = window.tails.find(tail) >= 0 and find_row(window.tails, tail, 8) >= 0  # `in` takes twice the time
        weight = context.weight if gap_s < SLOW_S else weight_of(gap_s) * context.weight
        opens = not (said or calls or results)
        is_cut = bool(opens and steps and prints.users) and texts.is_summary(window, step, prints)
        if is_cut:
            counted = tail == window.tail
        elif context.unnamed and steps:
            if opens and tail != window.tail:
                window, counted, weight = load(b""), False, 1.0  # from the first message: another run of the program
            elif not counted and messages <= window.messages and _is_foreign(window, step, context.body):
                window.ambiguous_at, weight = now, _AMBIGUOUS_WEIGHT
        elif is_branch and not counted and context.session.startswith(DERIVED_SESSION):
            window.ambiguous_at, weight = now, _AMBIGUOUS_WEIGHT
        if calls or results or is_cut:
            sent = window.run_bytes + size
            window.run_bytes = sent if sent < BYTES_MAX else BYTES_MAX  # noqa: FURB136 - takes a tenth of the time
        else:
            window.run_bytes, window.run_work = size, 0
        if counted:
            return self._evaluate_again(window, step, (tail, users), now, context)
        if is_cut:  # not a step: what is counted goes on after it
            found = streaks.cut(window, step, now)
            window.size, window.messages = size, messages
            window.tails[:] = bytes(len(window.tails))  # the same at the same position is not a retry any more
        else:
            found = self._findings(window, step, prints, now, weight, context)
            set_key(window.tails, window.steps % TAILS * 8, tail)
            window.steps += 1
        choice = choose(self._thresholds, found, told=_was_told(window)) if found else NO_CHOICE
        window.last_at = window.storm_at = now
        window.pending_repeats = window.forgiven_repeats = 0
        window.tail, window.tail_users = tail, users
        keeps = _keeps_answers(window.keeps_answers, step, restored=answer is not None) if stored else 0
        window.keeps_answers, window.recent_answers = keeps, kept if keeps else b""
        last_id = call_ids[0].encode("utf-8", "surrogatepass") if context.unnamed and call_ids else b""
        window.last_id = last_id if _ID_MIN <= len(last_id) <= ID_MAX else b""  # others do not show whose step it is
        if choice is not NO_CHOICE:
            return self._report(window, step, choice, now, context)
        window.level = window.kind = 0
        window.evidence = b""
        return Evaluation(self._unpacked.keep(window))

    def answered(self, data: bytes, answer: Answer) -> bytes:
        """Return the packed window after an answer; the same object if nothing changed. Copies of its text, or of what
        it hands to another agent, are not new. A request that failed is not a loop when it is sent again."""
        if not readable(data):
            return data
        after = self._answered(data, answer)
        if after is not data:
            self._unpacked.answered(data, after)
        return after

    def _answered(self, data: bytes, answer: Answer) -> bytes:
        if answer.failed:
            return failed(data, streaks.FORGIVEN_MAX)
        if keeps_answers(data):
            data = self._keep(data, answer)
        if awaits_result(data):
            if not answer.text:
                return answered(data, NONE, ())
            key = self._fingerprinter.result(answer.text).key
            return answered(data, key, novelty.result_marks(key))
        fingerprinter = self._fingerprinter
        calls = [call for call in answer.calls if fingerprinter.tool(call.name).hands_on] if answer.calls else ()
        handed: Sequence[int] = ()
        if calls or "}" in answer.text:
            handed = [novelty.mark(fingerprinter.incoming(text).key) for text in handed_on(answer.text, calls)]
        if not answer.text:
            return answered(data, NONE, handed)
        key = fingerprinter.said(answer.text)
        return answered(data, key, (*novelty.marks(key), *handed))

    def _keep(self, data: bytes, answer: Answer) -> bytes:
        window = load(data)
        kept = recent_answers.add(window.recent_answers, answer, window.messages, window.size, self._fingerprinter)
        if kept is window.recent_answers:
            return data
        window.recent_answers = kept
        return window.dump()

    def _with_kept(self, kept: bytes, step: Step) -> tuple[Step, AnswerFingerprints | None, bool]:
        """Return a step with the answer that it continues, the fingerprints of that answer, and whether it is not the
        newest one; the step as it is if the answer was not kept."""
        found = recent_answers.find(kept, step, self._fingerprinter)
        if found is None:
            return step, None, False
        answer, is_newest = found
        step = recent_answers.restored(step, answer, self._fingerprinter)
        return step, recent_answers.fingerprints(answer, self._fingerprinter), not is_newest

    def _findings(
        self,
        window: SessionWindow,
        step: Step,
        prints: StepFingerprints,
        now: float,
        weight: float,
        context: RequestContext,
    ) -> list[Finding]:
        pairs, users = prints.pairs, prints.users
        shown_again = bool(pairs and users) and _is_shown_again(window, step, prints)
        exempt = shown_again or (self._has_options and _are_exempt(pairs))
        inside, changed = self._inside(window, pairs), False
        for pair in pairs:
            if not window.run_work & READ:
                window.run_work |= _CALLED_AND_READ if tells_something(pair) else CALLED
            if pair.changes and done(pair) and repeats.is_new(window, pair):
                changed = True
                window.run_work |= CHANGED
        waits: Waiting | None = None
        if pairs and inside & WAIT:
            waits = waiting.of_step(window, pairs, now)
            if waits is not None:
                weight = min(waits.weight, weight) if window.ambiguous_at == now else waits.weight
        new = novelty.compare(window, step, prints, self._fingerprinter.seed, weight, self._dry_max)
        if new.news and users and not step.calls and not step.results:
            self._reset_for_user(window, step)
        known = texts.known_texts(window, prints) if users or window.tail_texts else 0
        state = StepState(window, step, prints, self._fingerprinter, new, known, now, weight, context.tracked, changed)
        inside |= (DRY if new.dried else 0) | (TEXT if step.as_text else 0)
        inside |= (EXEMPT if exempt else 0) | (USERS if users else 0)
        found: list[Finding] = []
        for evaluate in EVALUATED[inside]:
            if some := evaluate(state):
                found += some
        if exempt:
            _pass_over(window, shown_again=shown_again)
        if changed:
            streaks.add_change(window)
        elif new.news and pairs:
            streaks.add_result(window)
        return waits.advise(found) if found and waits is not None else found

    def _inside(self, window: SessionWindow, pairs: Sequence[CallResult]) -> int:
        """Return what is in the calls of a step and in its window, as `LoopKind.needs` has it. A count that is not 0
        may have to be reset."""
        found = 0 if pairs else TEXT
        if window.error_bits or window.unknown_tools or window.ends != ends.NO_ENDS:
            found |= TROUBLE
        if window.cue_count or window.answer_count:
            found |= TEXT
        if window.awaits_result or window.storm:
            found |= HIDDEN
        if window.waiting_since or window.waited_at or window.announced_at:
            found |= WAIT
        for pair in pairs:
            found |= CALLS
            if pair.failed or pair.refused:
                found |= TROUBLE
            if pair.effect:
                found |= EFFECT
            if pair.kind == UNSEEN:
                found |= HIDDEN
            if pair.waits or pair.says or pair.kind == RATE:
                found |= WAIT
            if self._has_options:
                options = pair.tool.options
                found |= (EFFECT if options.max_per_run else 0) | (WAIT if options.poll else 0)
        return found

    def _reset_for_user(self, window: SessionWindow, step: Step) -> None:
        """Reset counts, because there is new text of the user."""
        if not step.said:
            window.texts.clear()  # another task from its beginning, which may lead to the same questions
            window.cue_count = 0.0
        window.effects.clear()
        window.answer_count = 0.0
        window.epoch = window.epoch + 1 & 0xFFFF
        repeats.reset_cycles(window)
        window.error_bits = 0
        window.unknown_tools = window.near_count = 0.0
        window.dry = min(window.dry, self._user_max["dry"])
        streaks.limit_stagnation(window, self._user_max["stagnation"])
        ends.reset(window)

    def _tail(self, step: Step, prints: StepFingerprints) -> bytes:
        """Return what identifies a step: the ids of its calls, or else what it contains and its position."""
        said, calls, ids = step[:3]
        if not (calls or said):  # all there is with `previous_response_id`
            ids = tuple([one.call_id for one in step.results])
        if len(ids) == 1:
            joined = shortest = ids[0]
        else:
            joined, shortest = "\0".join(ids), min(ids, key=len, default="")
        if len(shortest) >= _ID_MIN:
            return self._digest(b"ids\0" + joined.encode("utf-8", "surrogatepass"))
        counted = b"" if calls else joined.encode("utf-8", "surrogatepass")
        parts = [step.messages.to_bytes(4, "little"), prints.said, prints.round, *prints.users, counted]
        return self._digest(b"\0".join(parts))

    def _users(self, prints: StepFingerprints) -> bytes:
        users = prints.users
        return users[0] if len(users) == 1 else self._fingerprinter.of(*users)

    def _evaluate_again(
        self, window: SessionWindow, step: Step, tail: tuple[bytes, bytes], now: float, context: RequestContext
    ) -> Evaluation:
        """Evaluate a step that was counted before. If it is the newest one and there is a loop,
        it gets the same evaluation again. With another system prompt or other tools, a different program sent it: an
        LLM judge, a summary. With another size, the history is different: one question about each item of a list."""
        other = tail != (window.tail, window.tail_users) or step.size != window.size
        if other or (window.level and _sender(step, context) != window.tail_sender):
            return Evaluation(self._unpacked.keep(window))
        if context.interrupted and begins(step):  # many people may open a conversation alike
            window.storm, window.pending_repeats = 0.0, 0
            return Evaluation(self._unpacked.keep(window))
        choice = choose(self._thresholds, streaks.storm(window, now, context.tracked))
        if choice.level > window.level:
            return self._report(window, step, choice, now, context)
        if not window.level:
            return Evaluation(self._unpacked.keep(window))
        evidence, identity = window.evidence.decode(errors="ignore"), window.identity.hex()
        packed, kind, ambiguous = self._unpacked.keep(window), NAMES[window.kind], _is_ambiguous(window, now)
        return Evaluation(packed, window.level, kind, evidence, identity, False, window.hits, ambiguous)

    def _report(
        self, window: SessionWindow, step: Step, choice: KindChoice, now: float, context: RequestContext
    ) -> Evaluation:
        finding = choice.finding
        if finding is None:
            return Evaluation(self._unpacked.keep(window))
        window.level = choice.level
        identity = self._fingerprinter.of(b"loop", finding.key)
        known = identity == window.identity
        fresh = not known or choice.level > window.reported_level or finding.hits >= 2 * window.reported_hits
        window.told_step = window.told_step or window.steps
        if fresh:
            window.reported_hits, window.reported_level = min(finding.hits, COUNT_MAX), choice.level
        window.identity, window.kind = identity, BY_NAME[finding.kind].id
        window.hits = min(finding.hits, COUNT_MAX)
        evidence = finding.evidence.encode()[:EVIDENCE_MAX].decode(errors="ignore")
        window.evidence = evidence.encode()
        window.tail_sender = _sender(step, context)
        packed, ambiguous = self._unpacked.keep(window), _is_ambiguous(window, now)
        return Evaluation(packed, choice.level, finding.kind, evidence, identity.hex(), fresh, window.hits, ambiguous)


def _are_exempt(pairs: Sequence[CallResult]) -> bool:
    return bool(pairs) and all(pair.tool.options.exempt for pair in pairs)


def _pass_over(window: SessionWindow, *, shown_again: bool) -> None:
    """Note a step that is not counted."""
    window.storm = 0.0
    if shown_again:
        repeats.add_last_step(window)


def _was_told(window: SessionWindow) -> bool:
    """Tell whether there was a notice, and a step since: who was told gets one turn to answer it."""
    return 0 < window.told_step < window.steps - 1


def _goes_on(window: SessionWindow, step: Step, prints: StepFingerprints) -> bool:
    """Tell whether a request after a long pause continues the run: it brings results of calls, which took that long,
    and no new text of a person."""
    knows = window.marks.knows
    return bool(step.calls and step.results) and all(knows(novelty.mark(user)) for user in prints.users)


def begins(step: Step) -> bool:
    """Tell whether a request begins a conversation."""
    return not (step.said or step.calls or step.results)


_MAY_CONTINUE, _CONTINUED = 1, 2


def _keeps_answers(before: int, step: Step, *, restored: bool) -> int:
    """Return whether the stored answer to a step is to be kept: the next request may leave it out. A client that left
    out answers before may begin another chain with a whole conversation: it has replaced the history by a summary."""
    if restored or step.continues is not None:
        return _CONTINUED
    return _MAY_CONTINUE if begins(step) or before == _CONTINUED else 0


def _sender(step: Step, context: RequestContext) -> bytes:
    """Return four bytes that stand for model, system prompt and the declared tools."""
    names = "\0".join([context.system(), *sorted(set(step.tools))])
    return zlib.crc32(names.encode("utf-8", "surrogatepass")).to_bytes(4, "little")


def _is_foreign(window: SessionWindow, step: Step, body: bytes) -> bool:
    """Tell whether a conversation that has not grown does not continue the last step: two that open alike share a
    window. It does not contain the id of that step. A client that only sends the last messages looks the same."""
    if step.messages < _HISTORY_MIN or is_answer_elsewhere(step):
        return False
    if step.size * 2 < window.size:
        return False  # the context was cut
    return not window.last_id or body.rfind(window.last_id) < 0


def _is_shown_again(window: SessionWindow, step: Step, prints: StepFingerprints) -> bool:
    """Tell whether the calls are those of the last step, at the same position, and only text of the user is new:
    examples before each item of a batch. Not every API has ids that would show it."""
    return step.messages <= window.messages and prints.round == repeats.last_step(window)


def _is_ambiguous(window: SessionWindow, now: float) -> bool:
    return bool(window.ambiguous_at) and now - window.ambiguous_at < RUN_IDLE_S


_OF_POLLS: Final = frozenset(("repeat", "interleaved", "cycle", "near"))  # kinds that a poll may be
_OF_USERS: Final = frozenset(("continue", "rejected", "nested"))  # kinds of texts that no agent should have written
COPIED: Final = "only reported, because the text is the answer of another agent"
OVERLAP: Final = "only reported, because unnamed conversations of this caller overlap (send X-Agent-Session)"
AMBIGUOUS: Final = "only reported, because two conversations share one derived session id (send X-Agent-Session)"
CUT_STREAM, REPORT_STREAM, RETRY_STREAM = 1, 2, 3  # `CallDecision.guards_stream`


class StepsDetector(StatefulDetector):
    """Evaluates steps, and has streamed answers checked for repetition (`stream_guard`)."""

    __slots__ = ("_evaluator", "guards_stream")

    def __init__(
        self, config: DetectorConfig, read: CallReader, evaluator: StepEvaluator, *, guards_stream: int = 0
    ) -> None:
        super().__init__(config, read)
        self._evaluator = evaluator
        self.guards_stream = guards_stream  # `CUT_STREAM`, `RETRY_STREAM`, or 0

    def plan(self, call: Call, project: str, group: int, now: float) -> DetectorSlot | None:
        """Return the slot for this call, and set `call.decision.guards_stream`."""
        slot = self._slot
        if group or self._exempts:
            planned = StatefulDetector.plan(self, call, project, group, now)  # `super()` takes longer than the call
            if planned is None:
                return None
            slot = planned
        if self.guards_stream and call.body:
            call.decision.guards_stream = call.decision.guards_stream or REPORT_STREAM if group else self.guards_stream
        return slot

    def owner(self, call: Call) -> str:
        """Return the same as `session_owner`, without the call."""
        session = self._read.window(call)
        return f"s:{escape(session)}" if session else ""

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        read = self._read
        step = call.parsed.step or read.step(call)
        if step is None:
            return None
        who = call.identity  # `owner` has found the session, usually
        unnamed = read.derived(call) if who.session is None else who.session_derived
        body = call.body if unnamed else b""
        chat = call.parsed.chat
        if chat and chat.max_tokens == 1 and begins(step) and is_ping(call, chat):
            return None
        system, interrupted = partial(read.model_and_system, call), call.decision.interrupted
        context = RequestContext(call.tracked, unnamed, who.session or "", body, system, interrupted)
        return self._evaluator.evaluate(window, step, now, context)

    def awaits_answer(self, call: Call, evaluation: Evaluation) -> bool:
        """An unnamed conversation repeats the answer in its next request, so few of its answers matter."""
        who = call.identity
        unnamed = self._read.derived(call) if who.session is None else who.session_derived
        return not unnamed or awaits_answer(evaluation.window)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        return self._evaluator.answered(window, answer)

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op | None:
        """Return the operation for an evaluation, if any.

        A block is downgraded to a notice if the counts may belong to two unnamed conversations: ids of calls have
        shown it, or unnamed conversations overlap, and neither ids nor the answers before show which one it is. A stop
        is not, because a loop that goes on for so long is not a mistake (C-7).
        """
        level = evaluation.level
        if not level or evaluation.hits <= announced(call, self.config, self._read):
            return None
        if call.decision.copied and evaluation.kind in _OF_USERS:
            return self._act(call, evaluation, NOTICE, project, group, COPIED)
        if evaluation.ambiguous and level == BLOCK:
            return self._act(call, evaluation, NOTICE, project, group, AMBIGUOUS)
        if call.decision.crowded and level == BLOCK and not (call.decision.alone or self._has_ids(call)):
            return self._act(call, evaluation, NOTICE, project, group, OVERLAP)
        return self._act(call, evaluation, level, project, group)

    def _advised(self, call: Call, evaluation: Evaluation) -> str:
        """Return the kind whose advice fits: who repeats a look at something that goes on by itself is to wait."""
        step = self._read.step(call) if evaluation.kind in _OF_POLLS else None
        if step is None or not step.calls:
            return evaluation.kind
        looks = [
            waits(waits_by_name(made.name), made.arguments.encode("utf-8", "replace"), runs=True)[0]
            for made in step.calls
        ]
        return POLL if all(looks) else evaluation.kind

    def _has_ids(self, call: Call) -> bool:
        step = self._read.step(call)
        return step is not None and bool(step.call_ids)
