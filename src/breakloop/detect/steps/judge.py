"""`StepsDetector` (SPEC LD-4): judges one step against a session's window. It counts a tail once, lets progress and
fresh user text void what was counted, and returns the window as it is after the step. Cooldowns are the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from breakloop.detect.steps import cycles, dry, similar, streaks, table, texts
from breakloop.detect.steps.finding import Finding
from breakloop.detect.steps.ladder import KINDS, NOTHING, Choice, StepsSettings, choose
from breakloop.detect.steps.prints import Digest, Printer, Prints
from breakloop.detect.steps.window import COUNT_MAX, EVIDENCE_MAX, TAILS, Window, entry, load
from breakloop.model.step import Step

RUN_IDLE_S: Final = 600.0  # a run ends after that
SLOW_S: Final = 20.0
SLOWER_S: Final = 60.0
_ID_MIN: Final = 8  # shorter ids ("call_1", "0") are counted, not drawn: they come again in each conversation


class Judged(NamedTuple):
    """What a step means, and the window to keep."""

    window: bytes
    level: int  # 0 nothing, 1 notice, 2 block, 3 stop
    kind: str = ""
    evidence: str = ""
    identity: str = ""  # of the loop, 16 hex digits
    fresh: bool = False  # not told before at this level, nor at half the count


class StepsDetector:
    """Judges steps. One for many sessions: all that is remembered is in the windows."""

    __slots__ = ("_printer", "_settings")

    def __init__(self, settings: StepsSettings, digest: Digest) -> None:
        self._settings = settings
        self._printer = Printer(digest)

    def judge(self, window: bytes, step: Step, now: float) -> Judged:
        """Judge a request's newest step; `window` is b"" for a new session."""
        seen = load(window)
        if seen.steps and now - seen.last_at >= RUN_IDLE_S:
            seen = Window()
        prints = self._printer.step(step)
        tail = self._tail(step, prints)
        users = self._printer.of(*prints.users)
        if _counted(seen, tail):
            return self._again(seen, tail, users, now)
        choice = choose(self._settings.thresholds, self._findings(seen, step, prints, now))
        seen.tails[seen.steps % TAILS * 8 : seen.steps % TAILS * 8 + 8] = tail
        seen.steps += 1
        seen.last_at = seen.storm_at = now
        seen.storm = 0.0
        seen.tail, seen.tail_users = tail, users
        return self._told(seen, choice)

    def answered(self, window: bytes, said: str) -> bytes:
        """Return the window after an answer of the model, so that its copies in other requests are no news."""
        seen = load(window)
        dry.heard(seen, said, self._printer)
        return seen.dump()

    def _findings(self, seen: Window, step: Step, prints: Prints, now: float) -> Iterator[Finding]:
        weight = _weight(now - seen.last_at) if seen.steps else 1.0
        changed = any(pair.changes and not pair.failed and _new(seen, pair.a, pair.r) for pair in prints.pairs)
        look = dry.look(seen, step, prints, self._printer, weight)
        if look.news and step.users and not step.calls and not step.results:
            _person(seen)
        exempt = self._settings.exempt
        if not exempt or not all(pair.name in exempt for pair in prints.pairs) or not prints.pairs:
            yield from table.seen(seen, prints, weight)
            yield from cycles.seen(seen, prints.round, weight)
            yield from streaks.stagnation(seen, prints, look.news, weight)
            yield from streaks.unknown_tool(seen, prints, weight)
            yield from streaks.cascade(seen, prints)
            yield from similar.near(seen, prints, self._printer, look.dried, weight)
            yield from dry.findings(seen, look)
        kept = texts.growing(seen, prints)
        yield from texts.monologue(seen, prints, kept, weight)
        yield from texts.nested(seen, step, self._printer, weight)
        yield from texts.continued(seen, prints, kept, weight)
        yield from texts.rejected(seen, step, prints, kept, weight)
        yield from similar.reword(seen, step, prints)
        yield from streaks.thrash(seen, step)
        if changed:
            seen.epoch = seen.epoch + 1 & 0xFFFF

    def _tail(self, step: Step, prints: Prints) -> bytes:
        if step.call_ids and all(len(one) >= _ID_MIN for one in step.call_ids):
            return self._printer.of(b"ids", *(one.encode("utf-8", "surrogatepass") for one in step.call_ids))
        return self._printer.of(step.messages.to_bytes(4, "little"), prints.said, prints.round, *prints.users)

    def _again(self, seen: Window, tail: bytes, users: bytes, now: float) -> Judged:
        """Judge a tail that was counted: no step, but the newest one again is what a standing block denies."""
        if tail != seen.tail or users != seen.tail_users:
            return Judged(seen.dump(), NOTHING)
        choice = choose(self._settings.thresholds, streaks.storm(seen, now))
        if choice.level > seen.level:
            return self._told(seen, choice)
        if not seen.level:
            return Judged(seen.dump(), NOTHING)
        return Judged(seen.dump(), seen.level, KINDS[seen.kind], seen.evidence, seen.identity.hex())

    def _told(self, seen: Window, choice: Choice) -> Judged:
        finding = choice.finding
        seen.level = choice.level
        if finding is None:
            seen.kind, seen.evidence = 0, ""
            return Judged(seen.dump(), NOTHING)
        identity = self._printer.of(b"loop", finding.key)
        known = identity == seen.identity
        fresh = not known or choice.level > seen.told_level or finding.hits >= 2 * seen.told
        if fresh:
            seen.told, seen.told_level = min(finding.hits, COUNT_MAX), choice.level
        seen.identity, seen.kind, seen.count = identity, KINDS.index(finding.kind), min(finding.hits, COUNT_MAX)
        seen.evidence = finding.evidence.encode()[:EVIDENCE_MAX].decode(errors="ignore")
        return Judged(seen.dump(), choice.level, finding.kind, seen.evidence, identity.hex(), fresh)


def _weight(gap_s: float) -> float:
    return 1.0 if gap_s < SLOW_S else 0.5 if gap_s < SLOWER_S else 0.25


def _counted(seen: Window, tail: bytes) -> bool:
    return any(seen.tails[at : at + 8] == tail for at in range(0, TAILS * 8, 8))


def _new(seen: Window, a: bytes, r: bytes) -> bool:
    packed = seen.table.get(a)
    return packed is None or entry(packed).r != r


def _person(seen: Window) -> None:
    """Void what was counted: a person has said something new."""
    seen.epoch = seen.epoch + 1 & 0xFFFF
    cycles.forget(seen)
    seen.bad = 0
    seen.unknown = seen.near_count = 0.0
