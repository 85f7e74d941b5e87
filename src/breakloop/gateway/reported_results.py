"""`POST /v1/decision/{request_id}/result`: gateways that forward requests themselves report the outcome here.

With reports, detectors know failed and running requests and limits know the actual usage, as behind the proxy. A report
becomes an `Answer`, which the engine settles. There is no authentication beyond that of the decision service.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from breakloop.clock import Clock
from breakloop.dialects import content, registry
from breakloop.dialects.answers import CALLS_MAX, TEXT_MAX_CHARS, tokens
from breakloop.dialects.openai_chat import openai_usage
from breakloop.engine.decision_state import PendingResult
from breakloop.engine.engine import Engine
from breakloop.errors import RequestError
from breakloop.gateway.http_request import Reply, Request
from breakloop.gateway.http_response import error_reply
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, ToolCall, Usage
from breakloop.policy.descriptors import Descriptors
from breakloop.store.memory import ExpiringTable

KEPT_S: Final = 900.0  # a result is accepted so long after the decision
REPORTER_S: Final = 600.0  # after a report, a caller is expected to report all results for so long
BODY_MAX_BYTES: Final = 1024 * 1024
_OPEN_MAX: Final = 100_000  # about 0.5 KB each
_REPORTERS_MAX: Final = 10_000
_BEFORE: Final = b"/v1/decision/"
_AFTER: Final = b"/result"
_DIGEST: Final = "<digest:"
_DIGEST_MAX: Final = 256
_ERROR_FROM: Final = 400
_NAME_SHOWN: Final = 100
_NOT_OPEN: Final = (
    b'{"detail":{"error":"not_found","message":"No result is awaited under this request id: it was told already, the '
    b'decision was a denial or is more than 15 minutes old, or nothing depends on it."}}'
)


class ReportedResults:
    """Keeps allowed requests until their results are reported. Call `expect` before a decision, `keep` after it."""

    def __init__(self, engine: Engine, descriptors: Descriptors, clock: Clock, max_open: int = _OPEN_MAX) -> None:
        self._engine = engine
        self._descriptors = descriptors
        self._clock = clock
        self._max_open = max_open
        self._open: dict[str, PendingResult] = {}
        self._oldest: deque[PendingResult] = deque()  # all open ones, and some that are closed
        self._reporters = ExpiringTable(_REPORTERS_MAX)

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, call: Call) -> None:
        """Prepare a call whose result may be reported."""
        call.reported = True
        if self._reporters:
            call.tracked = self.is_reporter(call)

    def is_reporter(self, call: Call) -> bool:
        """Return whether the caller reports results: then it is known which of its requests are running."""
        return self._reporters.live(self._descriptors.caller(call), self._clock.now()) is not None

    def keep(self, call: Call) -> None:
        """Keep a call that was allowed, if anything depends on its result."""
        pending, oldest = self._engine.pending_result(call), self._oldest
        if pending is None:
            return
        # Remove up to two for each one that is added: expired ones go faster than others come, at a bounded cost.
        for _ in (1, 2):
            if not oldest or (oldest[0].at + KEPT_S > pending.at and len(oldest) < self._max_open):
                break
            self._open.pop(oldest.popleft().request_id, None)
        self._open[pending.request_id] = pending
        oldest.append(pending)

    def handle(self, request: Request) -> Reply:
        """Handle `POST /v1/decision/{request_id}/result`."""
        if request.method != "POST":
            return Reply(405, b"Allow: POST\r\n", b"", 0.0)
        request_id = _request_id(request.target)
        now = self._clock.now()
        pending = self._open.get(request_id)
        if pending is None or pending.at + KEPT_S <= now:
            return Reply(404, b"Content-Type: application/json\r\n", _NOT_OPEN, 0.0)
        try:
            answer = read_report(request)
        except RequestError as error:
            return error_reply(error.status, str(error))
        del self._open[request_id]
        self._reporters.put(pending.caller, (now + REPORTER_S,), now)
        self._engine.settle_result(pending, answer, with_charges=_has_usage(answer))
        return Reply(204, b"", b"", 0.0)


def _has_usage(answer: Answer) -> bool:
    """Return whether a report tells what was used: by a count, by content, or by an error, which costs nothing."""
    if answer.usage is not None or answer.calls:
        return True
    if answer.status >= _ERROR_FROM and answer.status != CLIENT_LEFT:
        return True
    return bool(answer.text) and not answer.text.startswith(_DIGEST)


def is_result(path: bytes) -> bool:
    """Return whether `ReportedResults.handle` is responsible for a path without its query."""
    return path.startswith(_BEFORE) and path.endswith(_AFTER) and len(path) > len(_BEFORE) + len(_AFTER)


def _request_id(target: bytes) -> str:
    return target.partition(b"?")[0][len(_BEFORE) : -len(_AFTER)].decode("latin-1")


def read_report(request: Request) -> Answer:
    """Parse a report. The `RequestError` of an invalid one names the field and what to send instead."""
    if len(request.body) > BODY_MAX_BYTES:
        raise RequestError(413, f"a result has at most {BODY_MAX_BYTES} bytes: send a digest instead of a long text")
    if request.headers.get("content-encoding", b"identity").lower() != b"identity":
        raise _wrong("Content-Encoding", "send the result plain")
    report = content.load(request.body)
    if not isinstance(report, dict):
        raise RequestError(400, 'the body must be a JSON object such as {"status": 200}')
    status = _status(report)
    return Answer(
        status,
        text=_text(report),
        calls=_calls(report.get("tool_calls")),
        usage=_usage(report.get("usage")),
        complete=status not in {NO_ANSWER, CLIENT_LEFT},
        unkept_chars=max(0, len(report.get("text") or "") - TEXT_MAX_CHARS),
    )


def _wrong(field: str, remedy: str) -> RequestError:
    return RequestError(400, f"{field}: {remedy}")


def _status(report: dict[str, Any]) -> int:
    remedy = "send the HTTP status of the answer as a number, or 0 where none came (refused, cut short, too late)"
    if report.get("status") is None:
        raise _wrong("status", f"is missing; {remedy}")
    status = content.count(report["status"])
    if status is None or not (status == NO_ANSWER or 100 <= status <= 999):
        raise _wrong("status", f"is no status; {remedy}")
    return status


def _text(report: dict[str, Any]) -> str:
    """Return the text, or a digest in its place, in the form that media have in a conversation."""
    text, digest = report.get("text"), report.get("digest")
    if text is not None:
        if not isinstance(text, str):
            raise _wrong("text", "send what the model said as a string, or leave it out")
        return content.clean(text[:TEXT_MAX_CHARS])
    if digest is None:
        return ""
    if not isinstance(digest, str) or len(digest) > _DIGEST_MAX:
        raise _wrong("digest", f"send a string of at most {_DIGEST_MAX} characters, the same for the same answer")
    return content.clean(f"{_DIGEST}{digest}>") if digest else ""


def _calls(calls: Any) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise _wrong("tool_calls", 'send a list such as [{"name": "search", "arguments": {}}]')
    return tuple([_call(item, f"tool_calls[{number}]") for number, item in enumerate(calls[:CALLS_MAX])])


def _call(item: Any, field: str) -> ToolCall:
    """Read a call in our format, or in that of OpenAI (`function`), Anthropic (`input`) or Gemini (`functionCall`)."""
    if not isinstance(item, dict):
        raise _wrong(field, "send an object with name and arguments")
    made = item.get("function") or item.get("functionCall") or item
    name = made.get("name") if isinstance(made, dict) else None
    if not isinstance(name, str) or not name:
        raise _wrong(f"{field}.name", "send the name of the tool as a string")
    given = next((made[key] for key in ("arguments", "input", "args") if key in made), None)
    return ToolCall(content.clean(name), content.clean(content.arguments(given)))


def _usage(usage: Any) -> Usage | None:
    """Read tokens in our format, or in that of OpenAI (both APIs), Anthropic or Gemini."""
    if usage is None:
        return None
    _check_tokens(usage, "usage")
    for name, value in usage.items():
        if name.endswith("_details") and value is not None:
            _check_tokens(value, f"usage.{name}")
    dialect = registry.DIALECTS.of_usage(usage)
    if dialect is not None:
        return dialect.answer_builder().read_usage(usage)
    found = openai_usage(usage)
    if found is None:
        return None
    return found._replace(cache_write_tokens=found.cache_write_tokens or tokens(usage, "cache_write_tokens"))


def _check_tokens(counts: Any, field: str) -> None:
    """Validate token counts. Readers of responses are tolerant, but a reporting gateway gets an error."""
    if not isinstance(counts, dict):
        raise _wrong(field, 'send an object such as {"input_tokens": 100, "output_tokens": 20}')
    for name, value in counts.items():
        if not name.endswith(("_tokens", "TokenCount")) or value is None:
            continue
        number = content.count(value)
        if number is None or number < 0:
            raise _wrong(f"{field}.{name}"[:_NAME_SHOWN], "send a whole number of tokens, 0 or more")
