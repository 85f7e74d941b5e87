"""`StepsDetector` (SPEC LD-4): judges one step against a session's window. It counts a tail once, lets progress and
fresh user text void what was counted, and returns the window as it is after the step. Cooldowns are the engine's."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from breakloop.detect.steps import novelty, repeats, streaks, texts
from breakloop.detect.steps.fingerprints import NONE, Digest, StepFingerprinter, StepFingerprints, is_answer_elsewhere
from breakloop.detect.steps.kinds import (
    KIND_IDS,
    KIND_NAMES,
    NEVER,
    NO_CHOICE,
    NOTHING,
    Finding,
    KindChoice,
    StepsSettings,
    choose,
)
from breakloop.detect.steps.window import (
    COUNT_MAX,
    EVIDENCE_MAX,
    ID_MAX,
    TAILS,
    SessionWindow,
    UnpackedWindows,
    answered,
    failed,
    place,
    readable,
    waits,
)
from breakloop.model.call import Answer, Step

RUN_IDLE_S: Final = 600.0  # a run ends after that
SLOW_S: Final = 20.0
SLOWER_S: Final = 60.0
_POLLED: Final = 0.25
_STRANGE: Final = 0.25  # what does not go on from the last step: several of one name are not added up
_HISTORY_MIN: Final = 2  # messages; with fewer nothing can be told from their number
_ID_MIN: Final = 8  # shorter ids ("call_1", "0") are counted, not drawn: they come again in each conversation


_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes


class StepEvaluation(NamedTuple):
    """What a step means, and the window to keep."""

    window: bytes
    level: int  # 0 nothing, 1 notice, 2 block, 3 stop
    kind: str = ""
    evidence: str = ""
    identity: str = ""  # of the loop, 16 hex digits
    fresh: bool = False  # not told before at this level, nor at half the count
    hits: float = 0.0
    mixed: bool = False  # another conversation goes by the same name, so that counts may be of both


_QUIET: Final = StepEvaluation(b"", NOTHING)[1:]


def _nobody() -> str:
    return ""


class RequestContext(msgspec.Struct, frozen=True, gc=False):
    """What else is known of a request."""

    tracked: bool = False  # its answer will be told
    unnamed: bool = False  # its session is named after its opening: beginning again is another run
    body: bytes = b""  # where an unnamed conversation shows what came before
    voice: Callable[[], str] = _nobody  # model and system prompt; asked for where a loop stands only


PLAIN: Final = RequestContext()


class StepsDetector:
    """Judges steps. One for many sessions: all that counts is in the windows."""

    __slots__ = ("_asked", "_dry_most", "_options", "_printer", "_thresholds", "_unpacked")

    def __init__(self, settings: StepsSettings, digest: Digest) -> None:
        self._thresholds = settings.thresholds
        self._options = bool(settings.tools)
        self._printer = StepFingerprinter(digest, settings.tools)
        self._unpacked = UnpackedWindows()
        reached = [one for one in settings.thresholds["dry"] if one != NEVER]
        self._dry_most = min(2 * max(reached, default=0.0) or COUNT_MAX, COUNT_MAX)
        # What is left of a count when a person has said something new: enough for some steps before a block.
        self._asked = {kind: min(block / 2, COUNT_MAX) for kind, (_, block, _) in settings.thresholds.items()}

    def judge(self, window: bytes, step: Step, now: float, view: RequestContext = PLAIN) -> StepEvaluation:
        """Judge a request's newest step; `window` is b"" for a new session."""
        seen = self._unpacked.take(window)
        if seen.steps and now - seen.last_at >= RUN_IDLE_S:
            seen = SessionWindow()
        prints = self._printer.step(step)
        tail = self._tail(step, prints)
        users = self._users(prints) if prints.users else NONE
        counted = seen.tails.find(tail) >= 0 and place(seen.tails, tail, 8) >= 0  # `in` takes twice the time
        gap_s = now - seen.last_at
        weight = 1.0 if gap_s < SLOW_S or not seen.steps else weight_of(gap_s)
        if view.unnamed and seen.steps:
            if tail != seen.tail and not (step.said or step.calls or step.results):
                seen, counted, weight = (
                    SessionWindow(),
                    False,
                    1.0,
                )  # from its first message: another run of the same program
            elif not counted and _strange(seen, step, view.body):
                seen.mixed_at, weight = now, _STRANGE
        if counted:
            return self._again(seen, step, (tail, users), now, view)
        found = self._findings(seen, step, prints, now, weight, tracked=view.tracked)
        choice = choose(self._thresholds, found) if found else NO_CHOICE
        at = seen.steps % TAILS * 8
        seen.tails[at : at + 8] = tail
        seen.steps += 1
        seen.last_at = seen.storm_at = now
        seen.owed = seen.forgiven = 0
        seen.tail, seen.tail_users = tail, users
        seen.last_id = b""
        if view.unnamed and step.call_ids:
            first = step.call_ids[0].encode("utf-8", "surrogatepass")
            seen.last_id = first if _ID_MIN <= len(first) <= ID_MAX else b""
        return self._told(seen, step, choice, now, view)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Return the window after a request was answered: what the model said is no news when it comes back, and a
        request that failed is no loop when it is sent again. The same object where nothing changes."""
        if not readable(window):
            return window
        if answer.failed:
            return failed(window, streaks.FORGIVEN_MAX)
        if not answer.text:
            return answered(window, NONE, ())
        if waits(window):
            key = self._printer.incoming(answer.text, result=True).key
            return answered(window, key, novelty.heard(key))
        key = self._printer.incoming(answer.text).key
        return answered(window, key, novelty.marks(key))

    def _findings(
        self, seen: SessionWindow, step: Step, prints: StepFingerprints, now: float, weight: float, *, tracked: bool
    ) -> list[Finding]:
        pairs = prints.pairs
        exempt = shown = bool(pairs) and _shown_again(seen, step, prints)
        if self._options and pairs:
            exempt = shown or all(pair.tool.options.exempt for pair in pairs)
            if all(pair.tool.options.poll for pair in pairs):
                weight = min(weight, _POLLED)
        changed = False
        for pair in pairs:
            if pair.changes and not pair.failed and repeats.is_new(seen, pair):
                changed = True
        look = novelty.look(seen, step, prints, self._printer.seed, weight, self._dry_most)
        if look.news and step.users and not step.calls and not step.results:
            _person(seen, step)
            seen.dry = min(seen.dry, self._asked["dry"])
            streaks.bounded(seen, self._asked["stagnation"])
        found: list[Finding] = []
        if not exempt:
            found += repeats.count_calls(seen, prints, weight)
            if not step.calls and is_answer_elsewhere(step):
                repeats.skipped(seen)
            else:
                laps = repeats.find_cycle(seen, prints.round, weight)
                found += laps if not laps or _is_known(seen, prints, tracked=tracked) else ()
            if pairs:
                found += streaks.stagnation(seen, prints, look.news, weight)
                found += streaks.unknown_tool(seen, prints, weight)
                found += streaks.cascade(seen, prints)
            found += repeats.near(seen, prints, look.dried, weight)
            found += novelty.findings(seen, look) if look.dried else ()
            found += streaks.unseen(seen, prints, now)
        else:
            seen.storm = 0.0
            if shown:
                repeats.stood(seen)
        found += self._of_texts(seen, step, prints, weight, worded=look.worded)
        found += repeats.reword(seen, step, prints)
        found += streaks.thrash(seen, step)
        if changed:
            streaks.eased(seen)
            seen.epoch = seen.epoch + 1 & 0xFFFF
        return found

    def _of_texts(
        self, seen: SessionWindow, step: Step, prints: StepFingerprints, weight: float, *, worded: bool
    ) -> Sequence[Finding]:
        kept = texts.growing(seen, prints)
        found = texts.monologue(seen, step, prints, kept, weight)
        if not prints.users:
            return found
        found = [*found, *texts.nested(seen, step, self._printer, weight)]
        found += texts.continued(seen, prints, kept, worded, weight)
        if prints.pairs or not worded or len(prints.words) < texts.CHAPTER:
            found += texts.rejected(seen, step, prints, kept, weight)
        return found

    def _tail(self, step: Step, prints: StepFingerprints) -> bytes:
        ids = step.call_ids
        if not step.calls and is_answer_elsewhere(step):  # with `previous_response_id` that is all there is
            ids = tuple([one.call_id for one in step.results])
        if ids and len(min(ids, key=len)) >= _ID_MIN:
            return self._printer.of(b"ids", "\0".join(ids).encode("utf-8", "surrogatepass"))
        counted = b"" if step.calls else "\0".join(ids).encode("utf-8", "surrogatepass")
        return self._printer.of(step.messages.to_bytes(4, "little"), prints.said, prints.round, *prints.users, counted)

    def _users(self, prints: StepFingerprints) -> bytes:
        users = prints.users
        return users[0] if len(users) == 1 else self._printer.of(*users)

    def _again(
        self, seen: SessionWindow, step: Step, tail: tuple[bytes, bytes], now: float, view: RequestContext
    ) -> StepEvaluation:
        """Judge a tail that was counted: no step, but the newest one again is what a standing block denies. With
        another system prompt, or other tools, it is somebody else who looks at it: a judge, a summary. With another
        length there is something else before it: the last question of a list, asked of each item."""
        other = tail != (seen.tail, seen.tail_users) or step.size != seen.size
        if other or (seen.level and _speaker(step, view) != seen.tail_tools):
            return StepEvaluation(self._unpacked.keep(seen), NOTHING)
        choice = choose(self._thresholds, streaks.storm(seen, now, view.tracked))
        if choice.level > seen.level:
            return self._told(seen, step, choice, now, view)
        if not seen.level:
            return StepEvaluation(self._unpacked.keep(seen), NOTHING)
        evidence, identity = seen.evidence.decode(errors="ignore"), seen.identity.hex()
        mixed = _mixed(seen, now)
        return StepEvaluation(
            self._unpacked.keep(seen), seen.level, KIND_NAMES[seen.kind], evidence, identity, False, seen.count, mixed
        )

    def _told(
        self, seen: SessionWindow, step: Step, choice: KindChoice, now: float, view: RequestContext
    ) -> StepEvaluation:
        finding = choice.finding
        seen.level = choice.level
        if finding is None:
            seen.kind, seen.evidence = 0, b""
            return _new(StepEvaluation, (self._unpacked.keep(seen), *_QUIET))
        identity = self._printer.of(b"loop", finding.key)
        known = identity == seen.identity
        fresh = not known or choice.level > seen.told_level or finding.hits >= 2 * seen.told
        if fresh:
            seen.told, seen.told_level = min(finding.hits, COUNT_MAX), choice.level
        seen.identity, seen.kind, seen.count = identity, KIND_IDS[finding.kind], min(finding.hits, COUNT_MAX)
        evidence = finding.evidence.encode()[:EVIDENCE_MAX].decode(errors="ignore")
        seen.evidence = evidence.encode()
        seen.tail_tools = _speaker(step, view)
        mixed = _mixed(seen, now)
        return StepEvaluation(
            self._unpacked.keep(seen), choice.level, finding.kind, evidence, identity.hex(), fresh, seen.count, mixed
        )


def weight_of(gap_s: float) -> float:
    """Return what a repeat weighs, by the time since the last one: slow ones live long, not forever."""
    return 1.0 if gap_s < SLOW_S else 0.5 if gap_s < SLOWER_S else 0.25


def _speaker(step: Step, view: RequestContext) -> bytes:
    """Return four bytes that stand for who asks: model, system prompt and the set of tools that it declares."""
    names = "\0".join([view.voice(), *sorted(set(step.tools))])
    return zlib.crc32(names.encode("utf-8", "surrogatepass")).to_bytes(4, "little")


def _is_known(seen: SessionWindow, prints: StepFingerprints, *, tracked: bool) -> bool:
    """Tell whether it is known what calls returned: where results go elsewhere (MCP), their answers must be heard. One
    that never came has ended the cycle then."""
    return not streaks.hidden(prints) or (tracked and seen.heard != NONE)


def _strange(seen: SessionWindow, step: Step, body: bytes) -> bool:
    """Tell whether a conversation does not go on from the last step: two that open alike have one name. Then it has
    not grown, and shows no id of that step. A client that only ever sends the last messages looks the same."""
    if step.messages > seen.messages or step.messages < _HISTORY_MIN or is_answer_elsewhere(step):
        return False
    if step.size * 2 < seen.size:
        return False  # it was cut
    return not seen.last_id or body.rfind(seen.last_id) < 0


def _shown_again(seen: SessionWindow, step: Step, prints: StepFingerprints) -> bool:
    """Tell whether calls stand where they stood, and only what a person says behind them is new: examples before each
    item of a batch. Their ids would tell, but not every API has ids."""
    return bool(step.users) and step.messages <= seen.messages and prints.round == repeats.newest(seen)


def _mixed(seen: SessionWindow, now: float) -> bool:
    return bool(seen.mixed_at) and now - seen.mixed_at < RUN_IDLE_S


def _person(seen: SessionWindow, step: Step) -> None:
    """Void what was counted: a person has said something new."""
    if not step.said:
        seen.texts.clear()  # another task from its beginning: it may come to the same questions
    seen.said_count = 0.0
    seen.epoch = seen.epoch + 1 & 0xFFFF
    repeats.forget(seen)
    seen.bad = 0
    seen.unknown = seen.near_count = 0.0
