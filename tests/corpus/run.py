"""Runs sessions of the corpus through the engine on a simulated clock."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import NamedTuple

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.model.call import Answer, Call
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.policy.schema.bundle import Bundle
from breakloop.replay.run import ReplaySetup, SessionOutcome
from breakloop.replay.sessions import RecordedBody
from tests.corpus import healthy_chats, healthy_waiting, healthy_work, loops_of_calls, loops_of_texts, runs
from tests.corpus.answers import ANSWERS, StreamedAnswer
from tests.corpus.catalogue import CorpusSession, sessions_of
from tests.corpus.floor import KNOWN_BLOCKED, KNOWN_MISSED, reason

SECRET = b"a fixed secret for the corpus, 32"
MODULES = (loops_of_calls, loops_of_texts, healthy_work, healthy_waiting, healthy_chats, runs)


def sessions() -> list[CorpusSession]:
    """Return all sessions."""
    return [one for module in MODULES for one in sessions_of(module.CATALOGUE.scenarios)]


@cache
def parsed(policy: str) -> Bundle | None:
    """Return a bundle with one block of loop detection for every request; None for the built-in protection."""
    if not policy:
        return None
    spec = f"{{selector: {{pathPrefix: /}}, loop_detection: {policy}}}"
    text = f"bundle_version: 1\ndefaults: {{loop_detection: off}}\npolicies: [{{id: corpus, spec: {spec}}}]\n"
    return load_text(text.encode(), "corpus.yaml").bundle


def setup(policy: str) -> ReplaySetup:
    """Return an engine's parts without any memory of other sessions."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(secret=SECRET), clock)
    bundle = compile_bundle(parsed(policy), "", descriptors, SECRET, BuiltinLoopGuard())
    return ReplaySetup(descriptors, bundle, clock.now())


def outcome(session: CorpusSession) -> SessionOutcome:
    """Run one session with its policy."""
    rig = setup(session.scenario.policy)
    clock = FakeClock(rig.start)
    engine = rig.engine(clock)
    piece, open_until = session.slice(), deque[tuple[float, Call, Answer]]()
    found = SessionOutcome(piece.session)
    for turn in piece.turns:
        at_s = rig.start + (turn.at_s or 0.0)
        while open_until and open_until[0][0] <= at_s:
            due, call, answer = open_until.popleft()
            clock.advance(max(due - clock.now(), 0.0))
            engine.settle(call, answer)
        clock.advance(max(at_s - clock.now(), 0.0))
        assert isinstance(turn.request, RecordedBody)
        call = Call("POST", turn.request.path, "localhost", "", dict(turn.headers), "127.0.0.1", turn.request.body)
        call.tracked = True
        verdict = engine.decide(call)
        found.take(verdict)
        if verdict.allowed:
            open_until.append((at_s + session.scenario.takes_s, call, turn.answer))
    return found


_REMOVE = "is {} now: remove it from tests/corpus/floor.py, and state what is expected of it"


class Judged(NamedTuple):
    """One session, what the detectors did with it, and what is wrong with that."""

    id: str
    loop: bool
    dialect: str
    kind: str  # expected
    stopped: bool  # blocked, cut, or noticed where more is not expected
    known: str  # why it is known to be judged wrongly; "": it has to be judged correctly
    mistakes: tuple[str, ...]


def judge(session: CorpusSession) -> Judged:
    """Run a session and compare it with what is expected of it, and with the lists of `floor`."""
    expected, found = session.expected, outcome(session)
    only_noticed = expected.notice is not None
    stopped = found.first_block is not None or (only_noticed and found.first_notice is not None)
    known = reason(KNOWN_MISSED if expected.loop else KNOWN_BLOCKED, session.id) or ""
    mistakes = tuple(expected.mistakes(found)) if not known else ()
    if known and stopped == expected.loop:
        told = f"found ({found.kind} at turn {found.first_block or found.first_notice})" if stopped else "not blocked"
        mistakes = (_REMOVE.format(told),)
    return Judged(session.id, expected.loop, session.form.dialect or "http", expected.kind, stopped, known, mistakes)


def judge_answer(answer: StreamedAnswer) -> Judged:
    """The same for a streamed answer."""
    loop, cut = answer.cut is not None, answer.cut_at() is not None
    known = reason(KNOWN_MISSED if loop else KNOWN_BLOCKED, answer.id) or ""
    mistakes = tuple(answer.mistakes()) if not known else (_REMOVE.format("judged correctly"),) if cut == loop else ()
    return Judged(answer.id, loop, "stream", "stream" if loop else "", cut, known, mistakes)


def judge_all() -> list[Judged]:
    """Judge the whole corpus: about seven seconds."""
    return [*map(judge, sessions()), *map(judge_answer, ANSWERS)]
