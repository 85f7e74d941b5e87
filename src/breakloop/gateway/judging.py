"""What the doors have in common: number a request, unpack its body, ask the engine, render a denial (SPEC A-1 to A-6).
What a door makes of an allowed request is its own business."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from breakloop.engine import Engine
from breakloop.gateway.bounds import Limits
from breakloop.gateway.debug import DebugSessions
from breakloop.gateway.head import Reply, Request
from breakloop.gateway.hub import log_fault
from breakloop.model.call import Call
from breakloop.model.histogram import Timings
from breakloop.model.traces import Traces
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import Descriptors
from breakloop.remote import Remote
from breakloop.wire import denial
from breakloop.wire.denial import VerdictHeaders
from breakloop.wire.encoding import unpack

JSON = b"Content-Type: application/json\r\n"
_PROBLEM = b"Content-Type: application/problem+json\r\n"


class Judging:
    """Judges the calls of one process."""

    __slots__ = (
        "_next_id", "_run_id", "answers", "body_bytes", "debug", "descriptors", "engine", "remote", "timings",
        "traces",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        descriptors: Descriptors,
        answers: VerdictHeaders,
        *,
        run_id: str,
        debug: DebugSessions | None = None,
        body_bytes: int = Limits().body_bytes,
        traces: Traces | None = None,
    ) -> None:
        self.engine = engine
        self.descriptors = descriptors
        self.answers = answers
        self.debug = debug
        self.remote: Remote | None = None  # with a store that has to be waited for
        self.timings = Timings()
        self.traces = traces  # None: no tracing
        self._run_id = run_id
        self._next_id = 0
        self.body_bytes = body_bytes  # of a body once it is unpacked

    def request_id(self) -> str:
        """Return an id that no other request of this process has."""
        number = self._next_id
        self._next_id = number + 1
        return f"{self._run_id}{number:x}"

    def decide(self, request: Request, call: Call) -> tuple[Verdict, bytes]:
        """Return the verdict, and the extra header lines of a debug session. A fault of ours allows the request."""
        try:
            if "content-encoding" in request.headers:
                self.unpack(call)
            if self.debug is not None and self.debug.holds(request):
                return self._in_debug(call, self.debug)
            return self.engine.decide(call), b""
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop anybody's traffic
            return self.fault(error), b""

    def ask(self, request: Request, call: Call, then: Callable[[Verdict, bytes], None]) -> None:
        """The same where the state is not in this process: `then` gets what `decide` returns, now or later."""
        try:
            assert self.remote is not None  # noqa: S101 - only asked where there is one
            if "content-encoding" in request.headers:
                self.unpack(call)
            debug = self.debug if self.debug is not None and self.debug.holds(request) else None
            if debug is None:
                self.remote.decide(call, lambda verdict: then(verdict, b""))
            else:
                self.remote.decide(call, self._debugging(call, debug, then))
        except Exception as error:  # noqa: BLE001 - the outermost edge, as in `decide`
            then(self.fault(error), b"")

    def _debugging(
        self, call: Call, debug: DebugSessions, then: Callable[[Verdict, bytes], None]
    ) -> Callable[[Verdict], None]:
        started = perf_counter_ns()

        def decided(verdict: Verdict) -> None:
            latency_us = (perf_counter_ns() - started) // 1000
            then(verdict, debug.fields(call, verdict, self.engine.bundle, latency_us))

        return decided

    def fault(self, error: Exception) -> Verdict:
        """Count and log a fault of ours, by kind and place; the request is allowed."""
        self.engine.tally.faults += 1
        log_fault(error, "allowed")
        return Verdict()

    def _in_debug(self, call: Call, debug: DebugSessions) -> tuple[Verdict, bytes]:
        started = perf_counter_ns()
        verdict = self.engine.decide(call)
        latency_us = (perf_counter_ns() - started) // 1000
        return verdict, debug.fields(call, verdict, self.engine.bundle, latency_us)

    def unpack(self, call: Call) -> None:
        """Judge a compressed body by what is in it; one that stays packed is judged as the bytes that it is."""
        why = unpack(call, self.body_bytes)
        if why:
            self.engine.not_unpacked(call, why)

    def denied(self, request: Request, call: Call, verdict: Verdict) -> Reply:
        """Return a denial for a gateway that asked: as problem+json if it wants that."""
        head = self._denial_head(call, verdict)
        if denial.PROBLEM.encode() in request.headers.get("accept", b""):
            return Reply(verdict.status, head + _PROBLEM, denial.problem(verdict), 0.0)
        return Reply(verdict.status, head + JSON, self.body(call, verdict), 0.0)

    def denied_to_client(self, call: Call, verdict: Verdict) -> Reply:
        """Return a denial for the client itself; the model behind an MCP client reads a tool's error, no status."""
        status, body = denial.for_client(verdict, call, self.dialect(call))
        return Reply(status, self._denial_head(call, verdict) + JSON, body, 0.0)

    def body(self, call: Call, verdict: Verdict) -> bytes:
        """Return an error in the words of the client's dialect."""
        return denial.for_call(verdict, call, self.dialect(call))

    def dialect(self, call: Call) -> str:
        """Return which dialect a call speaks, or "" for plain HTTP."""
        chat = self.descriptors.chat(call)
        return chat.dialect if chat else ""

    def _denial_head(self, call: Call, verdict: Verdict) -> bytes:
        return self.answers.denied(verdict, call.request_id, self.descriptors.caller(call))
