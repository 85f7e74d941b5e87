"""Detectors that are libraries: how one is asked about a session, breakloop's engine, and the simple detectors of
`scripts.eval_baselines`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from bench.loopbench.suite import Answer, Request, Session
from breakloop.clock import FakeClock
from breakloop.model.call import Answer as ModelAnswer
from breakloop.model.call import Call
from breakloop.model.call import ToolCall as ModelCall
from scripts.eval_baselines import BASELINES, Baseline, Seen, message_text
from tests.corpus.run import setup


class Detector(Protocol):
    """What judges one session. A method `answered(request, answer)`, if there is one, gets each answer as well."""

    def decide(self, request: Request) -> bool:
        """Return True to allow the request, False to deny it."""
        ...


class Subject(Protocol):
    """What is measured: a library, or a gateway."""

    def stopped_at(self, session: Session) -> int | None:
        """Return the turn of the first request that is denied."""
        ...


class Library:
    """Asks a new detector about each session. The time of a request is `request.at_s`."""

    def __init__(self, detector: Callable[[], Detector]) -> None:
        self._new = detector

    def stopped_at(self, session: Session) -> int | None:
        """Return the turn of the first request that is denied."""
        detector = self._new()
        answered = getattr(detector, "answered", None)
        for number, turn in enumerate(session.turns, 1):
            if not detector.decide(turn.request):
                return number
            if answered is not None:
                answered(turn.request, turn.answer)
        return None


def load(name: str) -> Library:
    """Return the detector `module:attribute`, which is called once for each session."""
    module, _, attribute = name.partition(":")
    return Library(getattr(import_module(module), attribute))


def breakloop_engine() -> Detector:
    """Return breakloop with its built-in loop protection, in this process, on a simulated clock."""
    return _Engine()


class _Engine:
    def __init__(self) -> None:
        rig = setup("")
        self._start = rig.start
        self._clock = FakeClock(rig.start)
        self._engine = rig.engine(self._clock)
        self._call: Call | None = None

    def decide(self, request: Request) -> bool:
        self._clock.advance(max(self._start + request.at_s - self._clock.now(), 0.0))
        headers = {name: value.encode() for name, value in request.headers.items()}
        call = Call("POST", request.path, "localhost", "", headers, "127.0.0.1", request.content())
        call.tracked = True
        self._call = call
        return self._engine.decide(call).allowed

    def answered(self, _request: Request, answer: Answer) -> None:
        assert self._call is not None
        self._engine.settle(self._call, _answer(answer))


def _answer(answer: Answer) -> ModelAnswer:
    if answer.status >= 400:
        return ModelAnswer(answer.status)
    calls = tuple([ModelCall(call.name, call.arguments) for call in answer.calls])
    return ModelAnswer(200, answer.text or ("" if calls else "Very well."), calls, complete=True)


class _Simple:
    """A simple detector. It gives each request a score, and looks at the answer with the request after it."""

    def __init__(self, baseline: Baseline) -> None:
        self._threshold = baseline.threshold
        self._scores = baseline.scores(self._requests())
        self._last: Seen | None = None

    def _requests(self) -> Iterator[Seen]:
        while self._last is not None:
            yield self._last

    def decide(self, request: Request) -> bool:
        self._last = _seen(request)
        return next(self._scores) < self._threshold

    def answered(self, _request: Request, answer: Answer) -> None:
        assert self._last is not None
        self._last.answer = _answer(answer)


def _seen(request: Request) -> Seen:
    body = request.body
    given = body.get("messages") or body.get("contents") or body.get("input") or body.get("prompt") or []
    items = [_without_ids(one) for one in (given if isinstance(given, list) else [given])]
    messages = [one if isinstance(one, dict) else {"role": "user", "content": one} for one in items]
    last = max((at for at, one in enumerate(messages) if _is_answer(one)), default=-1)
    texts = tuple([message_text(one) for one in messages])
    prompts = [text for text, one in zip(texts, messages, strict=True) if one.get("role") == "user"]
    return Seen(request.at_s, texts, prompts[-1] if prompts else "", texts[last + 1 :], ModelAnswer(200))


def _is_answer(message: dict[str, Any]) -> bool:
    return message.get("role") in ("assistant", "model") or message.get("type") in ("function_call", "reasoning")


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_ids(part) for name, part in value.items() if name not in _IDS}
    return [_without_ids(part) for part in value] if isinstance(value, list) else value


_IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "encrypted_content")
SIMPLE: dict[str, Callable[[], Detector]] = {one.name: partial(_Simple, one) for one in BASELINES}
