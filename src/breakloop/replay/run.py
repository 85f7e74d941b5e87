"""Run recorded sessions through a real engine on a simulated clock.

Each turn is decided as a gateway would decide it, and settled with the recorded response. The recording continues
after a block, and after a request that is landed, where the agent would have answered and ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from breakloop.clock import FakeClock
from breakloop.engine.engine import Engine
from breakloop.model.call import Call
from breakloop.model.decision import LOOP, PAUSED
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.pricing.prices import Prices
from breakloop.replay.across import Across
from breakloop.replay.sessions import (
    PATH,
    Conversations,
    Pricing,
    RecordedBody,
    RecordedSession,
    RecordedTurn,
    SessionSlice,
    Spent,
    free,
    spent,
)
from breakloop.replay.timeline import Timeline, TimelineRecorder
from breakloop.store.memory import MemoryStore

SPACING_S = 3.0  # between turns without recorded times
_NOTHING = Spent()
_ENTRIES = 100_000  # of the store of a timeline
_PEER = "127.0.0.1"
_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    descriptors: Descriptors
    bundle: CompiledBundle
    start: float  # start time of every session
    pricing: Pricing = free  # prices for savings
    prices: Callable[[], Prices] | None = None  # prices for budgets; None: nothing has a cost
    recorder: Callable[[], TimelineRecorder] | None = None  # of each session; None: no timelines
    across: Across | None = None  # compares sessions with each other, after all are read

    def engine(self, clock: FakeClock) -> Engine:
        engine = Engine(MemoryStore(_ENTRIES), clock, self.descriptors, prices=self.prices)
        engine.set_bundle(self.bundle)
        return engine


@dataclass(slots=True)
class SessionOutcome:
    """The results of one session. Turns are numbered from 1."""

    session: RecordedSession
    turns: int = 0
    first_notice: int | None = None
    first_block: int | None = None
    kind: str | None = None  # of the first block or landing, or else of the first notice
    evidence: str = ""
    notices: int = 0
    blocks: int = 0
    first_land: int | None = None
    lands: int = 0
    first_pause: int | None = None  # where a person would have been asked
    saved_tokens: int = 0  # of the denied requests and of the responses they would have had
    saved_estimated: bool = False  # at least one request has no recorded tokens
    saved_usd: float | None = None  # None: no price is known
    denied: dict[str, int] = field(default_factory=dict)  # other reasons -> number of turns
    shadowed: int = 0  # turns with findings of shadow policies
    model: str = ""  # this and the following: if timelines are recorded
    spent: Spent = _NOTHING
    timeline: Timeline | None = None  # None: no findings

    @property
    def first_end(self) -> int | None:
        """The turn at which the run would have been ended or held: landed, paused or blocked."""
        turns = [turn for turn in (self.first_land, self.first_pause, self.first_block) if turn is not None]
        return min(turns, default=None)

    def take(self, verdict: Verdict, cost: Spent = _NOTHING) -> None:
        """Count one turn, with its cost if it is denied."""
        self.turns += 1
        self.shadowed += bool(verdict.shadow)
        if verdict.allowed:
            if verdict.landed:
                self.lands += 1
                if self.first_land is None:
                    self._describe(verdict)
                    self.first_land = self.turns
            elif verdict.warning:
                self.notices += 1
                if self.first_notice is None:
                    self.first_notice = self.turns
                    self._describe(verdict)
            return
        self.saved_tokens += cost.tokens
        self.saved_estimated |= cost.estimated
        if cost.money is not None:
            self.saved_usd = (self.saved_usd or 0.0) + cost.money
        if verdict.reason == LOOP:
            self.blocks += 1
            if self.first_block is None:
                self._describe(verdict)
                self.first_block = self.turns
            return
        self.denied[verdict.reason] = self.denied.get(verdict.reason, 0) + 1
        if verdict.reason == PAUSED and self.first_pause is None:
            self._describe(verdict)
            self.first_pause = self.turns

    def _describe(self, verdict: Verdict) -> None:
        """Take kind and evidence; those of what ended the run stay."""
        if verdict.loop is not None and self.first_end is None:
            self.kind, self.evidence = verdict.loop.kind, verdict.loop.evidence


class ReplayGateway:
    """One engine and its clock, shared by sessions of the same gateway."""

    __slots__ = ("_began", "_elapsed_s", "clock", "engine", "rig")

    def __init__(self, rig: ReplaySetup) -> None:
        self.clock = FakeClock(rig.start)
        self.engine = rig.engine(self.clock)
        self.rig = rig
        self._began: float | None = None
        self._elapsed_s = 0.0

    def move(self, at_s: float | None, *, first: bool) -> None:
        """Advance the clock to the next turn. Recorded times may stand still or go back; the clock does not."""
        if at_s is None:
            target = self._elapsed_s + (0.0 if first else SPACING_S)
        else:
            if self._began is None:
                self._began = at_s - self._elapsed_s
            target = at_s - self._began
        if target > self._elapsed_s:
            self.clock.advance(target - self._elapsed_s)
            self._elapsed_s = target


class SessionRun:
    __slots__ = ("_across", "_conversations", "_gateway", "_headers", "_last", "_recorder", "outcome")

    def __init__(self, session: RecordedSession, gateway: ReplayGateway) -> None:
        self._gateway = gateway
        self._conversations = Conversations(session.model)
        self._headers: dict[str, bytes] = {"content-type": _JSON}
        if session.named:
            self._headers["x-agent-session"] = _header(session.id)
        if session.agent:
            self._headers["x-agent-id"] = _header(session.agent)
        self.outcome = SessionOutcome(session)
        self._recorder = gateway.rig.recorder() if gateway.rig.recorder is not None else None
        self._across = None if session.gateway else gateway.rig.across  # those of one gateway are compared there
        self._last: Call | None = None

    def take(self, turn: RecordedTurn) -> Verdict:
        """Decide one turn, and settle it if it is allowed."""
        self._gateway.move(turn.at_s, first=not self.outcome.turns)
        call = self._call(turn)
        verdict = self._gateway.engine.decide(call)
        if verdict.allowed:
            self._gateway.engine.settle(call, turn.answer)
            self.outcome.take(verdict)
        else:
            model = self.outcome.session.model
            self.outcome.take(verdict, spent(turn.answer, model, len(call.body), self._gateway.rig.pricing))
        if self._recorder is not None:
            self._recorder.take(self.outcome.session, turn, verdict, len(call.body))
        if self._across is not None:
            self._across.take(self.outcome.session, call, turn)
            self._last = call
        if not isinstance(turn.request, RecordedBody):
            self._conversations.answered(turn.request.thread, turn.answer)
        return verdict

    def end(self, file: str) -> SessionOutcome:
        if self._across is not None and self._last is not None:
            gateway = self._gateway
            self._across.end(self.outcome.session, self._last, gateway.engine.local.store, gateway.clock.steady())
        if self._recorder is not None:
            self.outcome.model, self.outcome.spent = self._recorder.model, self._recorder.spent()
            self.outcome.timeline = self._recorder.timeline(self.outcome.session, file)
        return self.outcome

    def _call(self, turn: RecordedTurn) -> Call:
        request = turn.request
        path, body = request if isinstance(request, RecordedBody) else (PATH, self._conversations.body(request))
        call = Call("POST", path, "localhost", "", self._headers_of(turn), _PEER, body)
        call.request_id = f"replay-{self.outcome.turns + 1}"
        call.tracked = True
        return call

    def _headers_of(self, turn: RecordedTurn) -> Mapping[str, bytes]:
        if not turn.headers and not turn.agent:
            return self._headers
        headers = {**turn.headers, **self._headers}
        if turn.agent:
            headers["x-agent-id"] = _header(turn.agent)
        return headers


class Replay:
    """All sessions and engines of one bundle."""

    __slots__ = ("_file", "_gateways", "_rig", "_runs")

    def __init__(self, rig: ReplaySetup, file: str = "") -> None:
        self._rig = rig
        self._file = file
        self._runs: dict[tuple[str, str], SessionRun] = {}
        self._gateways: dict[str, ReplayGateway] = {}

    def take(self, piece: SessionSlice) -> SessionOutcome | None:
        """Run some turns. Returns the outcome if the session is complete."""
        session, turns, whole = piece
        key = (session.gateway, session.id)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = SessionRun(session, self._gateway(session.gateway))
        for turn in turns:
            run.take(turn)
        return self._runs.pop(key).end(self._file) if whole else None

    def rest(self) -> list[SessionOutcome]:
        """Return the outcomes of sessions that were not marked as complete."""
        return [run.end(self._file) for run in self._runs.values()]

    def _gateway(self, name: str) -> ReplayGateway:
        if not name:
            return ReplayGateway(self._rig)
        if name not in self._gateways:
            self._gateways[name] = ReplayGateway(self._rig)
        return self._gateways[name]


def replay(pieces: Iterable[SessionSlice], *rigs: ReplaySetup, file: str = "") -> Iterator[tuple[SessionOutcome, ...]]:
    """Run the recordings of a file through several bundles side by side and yield the outcomes of complete sessions."""
    replays = [Replay(rig, file) for rig in rigs]
    for piece in pieces:
        outcomes = [one.take(piece) for one in replays]
        if piece.whole:
            yield tuple(outcome for outcome in outcomes if outcome is not None)
    yield from zip(*[one.rest() for one in replays], strict=True)


def _header(value: str) -> bytes:
    return value.encode("utf-8", "replace")
