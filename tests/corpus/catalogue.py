"""The catalogue of scenarios: a function each, with what is expected of it and the shapes it is written in.

    @loop("repeat", at=6)
    def same_search(s: Script) -> None:
        \"\"\"The same search, and the same result.\"\"\"
        for _ in range(9):
            s.call("find_orders", {"customer": 7}, "There are no orders of this customer.")

A scenario in one shape is a session, `same_search/chat`. Turns are numbered from 1, the request with the task included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict, Unpack

from breakloop.replay.run import SessionOutcome
from breakloop.replay.sessions import RecordedSession, RecordedTurn, SessionLabel, SessionSlice
from tests.corpus.script import Scene, Script
from tests.corpus.wire import FORMS, Form, write
from tests.corpus.words import line

Turns = int | tuple[int, int]  # a turn, or the first and the last one allowed

TOOLS: Final = ("chat", "chat-unnamed", "chat-text", "responses", "responses-chain", "messages", "gemini")  # for calls
CLOUDS: Final = (
    *("ollama", "cohere", "vertex_anthropic"),
    *("bedrock_anthropic", "bedrock_chat", "bedrock_converse", "mistral_conversations"),
)  # for the APIs that few clients use
SOME: Final = ("chat", "messages-unnamed", "gemini")  # for variants of a scenario
ONE_MESSAGE: Final = ("dspy", "dspy-unnamed", "react", "react-unnamed")  # for runs that are one message
TALK: Final = ("chat", "chat-unnamed", "responses", "responses-chain", "messages", "gemini")  # for texts alone


@dataclass(frozen=True, slots=True)
class Expected:
    """What the detectors have to do with a session."""

    loop: bool
    kind: str = ""  # of the first block, or of the first notice if there is no block
    block: tuple[int, int] | None = None  # between which turns; None: never
    notice: tuple[int, int] | None = None  # the same for a session that is never blocked; None: not looked at
    quiet: bool = False  # not even a notice

    def mistakes(self, outcome: SessionOutcome) -> Iterator[str]:
        """Return what is wrong with an outcome, in words."""
        block, notice = outcome.first_block, outcome.first_notice
        if outcome.denied:
            yield f"denied for another reason: {outcome.denied}"
        if self.block is None:
            if block is not None:
                yield f"blocked at turn {block} ({outcome.kind}: {outcome.evidence}), and must not be"
            elif self.quiet and notice is not None:
                yield f"noticed at turn {notice} ({outcome.kind}: {outcome.evidence}), and must not be"
            elif self.notice is not None and not _within(notice, self.notice):
                yield f"noticed {_turn(notice)} ({outcome.kind}), expected {_turns(self.notice)}"
            elif self.notice is not None and outcome.kind != self.kind:
                yield f"noticed as {outcome.kind}, expected {self.kind}"
        elif not _within(block, self.block):
            yield f"blocked {_turn(block)} ({outcome.kind}), expected {self.kind} {_turns(self.block)}"
        elif self.kind and outcome.kind != self.kind:
            yield f"blocked as {outcome.kind} ({outcome.evidence}), expected {self.kind}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One pattern."""

    name: str
    about: str
    scene: Scene
    expected: Mapping[str, Expected]  # by shape
    policy: str = ""  # a `loop_detection` block; "": the built-in protection
    every_s: float = 6.0
    takes_s: float = 0.0  # how long after a request its answer comes
    task: str = ""
    tools: tuple[str, ...] | None = None

    def turns(self, form: Form) -> list[RecordedTurn]:
        """Return the session in one shape."""
        script = Script(self.name, self.every_s, tools=self.tools)
        if self.task != NO_TASK:
            script.begin(self.task or f"Please look into this: {line(self.name)}")
        self.scene(script)
        return write(script, form)


NO_TASK: Final = "-"  # the scenario begins its conversations itself


@dataclass(frozen=True, slots=True)
class CorpusSession:
    """A scenario in one shape."""

    id: str
    scenario: Scenario
    form: Form
    expected: Expected

    def slice(self) -> SessionSlice:
        """Return the session as replay takes it. Names of sessions are in the headers of its requests."""
        label = SessionLabel(self.expected.loop, "scenario", self.expected.kind)
        session = RecordedSession(self.id, self.form.dialect or "http", label=label, named=False)
        return SessionSlice(session, self.scenario.turns(self.form), whole=True)


class ScenarioOptions(TypedDict, total=False):
    """Fields of `Scenario` that a decorator sets."""

    policy: str
    every_s: float
    takes_s: float
    task: str
    tools: tuple[str, ...] | None


class Options(ScenarioOptions, total=False):
    """What every decorator takes."""

    forms: Sequence[str]
    but: Mapping[str, Expected]  # what is expected in some shapes instead


@dataclass(slots=True)
class Catalogue:
    """All scenarios of one module."""

    scenarios: list[Scenario] = field(default_factory=list)

    def loop(self, kind: str, at: Turns, **options: Unpack[Options]) -> Callable[[Scene], Scene]:
        """Add a scenario that has to be blocked."""
        return self._add(as_loop(kind, at), **options)

    def noticed(self, kind: str, at: Turns, **options: Unpack[Options]) -> Callable[[Scene], Scene]:
        """Add a loop of a kind that is only reported."""
        return self._add(as_noticed(kind, at), **options)

    def healthy(self, *, quiet: bool = True, **options: Unpack[Options]) -> Callable[[Scene], Scene]:
        """Add a scenario that must not be blocked, and not be noticed either unless `quiet` is off."""
        return self._add(Expected(False, quiet=quiet), **options)

    def _add(
        self,
        expected: Expected,
        forms: Sequence[str] = TOOLS,
        but: Mapping[str, Expected] | None = None,
        **options: Unpack[ScenarioOptions],
    ) -> Callable[[Scene], Scene]:
        by_form = dict.fromkeys(forms, expected) | dict(but or {})

        def add(scene: Scene) -> Scene:
            about = " ".join((scene.__doc__ or "").split())
            self.scenarios.append(Scenario(scene.__name__, about, scene, by_form, **options))
            return scene

        return add


def as_loop(kind: str, at: Turns) -> Expected:
    return Expected(True, kind, block=_bounds(at))


def as_noticed(kind: str, at: Turns) -> Expected:
    return Expected(True, kind, notice=_bounds(at))


NOTICED: Final = Expected(False)  # healthy, and may be noticed


def sessions_of(scenarios: Iterable[Scenario]) -> Iterator[CorpusSession]:
    """Return every scenario in each of its shapes."""
    for one in scenarios:
        for name, expected in one.expected.items():
            yield CorpusSession(f"{one.name}/{name}", one, FORMS[name], expected)


def _bounds(at: Turns) -> tuple[int, int]:
    return at if isinstance(at, tuple) else (at, at)


def _within(turn: int | None, bounds: tuple[int, int]) -> bool:
    return turn is not None and bounds[0] <= turn <= bounds[1]


def _turn(turn: int | None) -> str:
    return "never" if turn is None else f"at turn {turn}"


def _turns(bounds: tuple[int, int]) -> str:
    first, last = bounds
    return f"at turn {first}" if first == last else f"at turn {first} to {last}"
