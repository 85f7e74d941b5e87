"""Recorded sessions as data: turns with requests, responses and labels; their requests rebuilt from deltas; their cost.

Tokens are the recorded ones, or a quarter of the characters, marked as an estimate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from breakloop.model.call import CHARS_A_TOKEN, Answer, Usage
from breakloop.pricing.prices import Prices


@dataclass(frozen=True, slots=True)
class SessionLabel:
    """Whether a session is a loop (None: unknown), and the source of this label."""

    loop: bool | None = None
    by: str = ""  # human, outcome or heuristic
    kind: str = ""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One run of an agent, or of a team of agents working on one task."""

    id: str
    source: str = ""
    agent: str = ""
    model: str = ""
    task: str = ""
    label: SessionLabel = SessionLabel()
    named: bool = True  # the id was recorded; otherwise the engine derives the session as a gateway would
    gateway: str = ""  # sessions of the same gateway share its state; "": a gateway of its own
    parent: str = ""  # the session that started this one


class Delta(NamedTuple):
    """A request as a delta: the first `keep` messages of the thread, then new ones."""

    thread: str
    keep: int
    messages: Sequence[Mapping[str, Any]]


class RecordedBody(NamedTuple):
    """A request as it was sent."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    request: Delta | RecordedBody
    answer: Answer
    agent: str = ""
    at_s: float | None = None  # in any unit and origin; None: not recorded
    headers: Mapping[str, bytes] = field(default_factory=dict)  # sent by the client, by canonical name
    key: str = ""  # the same key for copies of this turn, such as in resumed sessions; "": unknown
    answered_at_s: float | None = None  # when the response was recorded, if that is known
    started: Sequence[str] = ()  # sessions that its calls started, as far as their results name them


class SessionSlice(NamedTuple):
    """Some turns of a session, as a file provides them. Logs provide one at a time, without marking the last one."""

    session: RecordedSession
    turns: Sequence[RecordedTurn]
    whole: bool  # no further turns of the session follow


PATH = "/v1/chat/completions"
_RESULTS = ("tool", "function")


class Conversations:
    def __init__(self, model: str) -> None:
        self._head = b'{"model":%s,"messages":[' % json_bytes(model)
        self._known: dict[str, list[bytes]] = {}  # thread -> its last request and response
        self._open: dict[str, list[str]] = {}  # thread -> ids of calls without a result
        self._calls = 0

    def body(self, delta: Delta) -> bytes:
        known = self._known.get(delta.thread, [])
        if delta.keep < len(known):
            known = known[: delta.keep]
            self._open.pop(delta.thread, None)  # the calls were removed by compaction
        messages = known + [json_bytes(message) for message in self._with_ids(delta)]
        self._known[delta.thread] = messages
        return self._head + b",".join(messages) + b"]}"

    def answered(self, thread: str, answer: Answer) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            ids = [self._id() for _ in answer.calls]
            named = zip(ids, answer.calls, strict=True)
            message["content"] = answer.text or None
            message["tool_calls"] = [_call(call_id, call.name, call.arguments) for call_id, call in named]
            self._open[thread] = ids
        self._known.setdefault(thread, []).append(json_bytes(message))

    def _with_ids(self, delta: Delta) -> Iterator[Mapping[str, Any]]:
        """Assign the ids of calls to results that were recorded without one."""
        pending = self._open.pop(delta.thread, [])
        for message in delta.messages:
            calls = message.get("tool_calls")
            if isinstance(calls, list) and calls:
                made = [dict(call) if isinstance(call, dict) else {"name": str(call)} for call in calls]
                pending = [str(call.get("id") or self._id()) for call in made]
                yield {**message, "tool_calls": [_wired(*pair) for pair in zip(pending, made, strict=True)]}
            elif message.get("role") in _RESULTS and not message.get("tool_call_id") and pending:
                yield {**message, "tool_call_id": pending.pop(0)}
            else:
                yield message

    def _id(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"


def _wired(call_id: str, call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call or "custom" in call:
        return {**call, "id": call_id}
    return _call(call_id, str(call.get("name", "")), call.get("arguments", ""))


def _call(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": spelled}}


def json_bytes(value: object) -> bytes:
    """Return compact JSON; lone surrogates become question marks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


_MILLION = 1e6
_NAMES_MAX = 1000
_CACHED_SHARE = 0.1  # share of the input price for cached tokens if no other is known, as most providers charge


class Spent(NamedTuple):
    """Tokens of one or more calls. `estimated`: at least one call has no recorded tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input
    estimated: bool = False
    money: float | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


Pricing = Callable[[str, Usage], float | None]  # model and tokens -> US dollars; None: unknown


@dataclass(frozen=True, slots=True)
class ModelPricing:
    """One price for every model, in US dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None

    def __call__(self, _model: str, usage: Usage) -> float:
        cached = self.input * _CACHED_SHARE if self.cached is None else self.cached
        fresh = max(usage.input_tokens - usage.cached_tokens, 0)
        paid = fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output
        return paid / _MILLION


class ByModel:
    """Prices by model. `unpriced`: used models without a price."""

    __slots__ = ("_prices", "unpriced")

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.unpriced: set[str] = set()

    def __call__(self, model: str, usage: Usage) -> float | None:
        """Return the cost of these tokens if the model has a price."""
        price = self._prices.find("", model) if model else None
        if price is not None:
            return self._prices.cost_microusd(price, usage) / _MILLION
        if model and any(usage) and len(self.unpriced) < _NAMES_MAX:
            self.unpriced.add(model)
        return None


def free(_model: str, _usage: Usage) -> float | None:
    return None


def spent(answer: Answer, model: str, request_bytes: int, pricing: Pricing = free) -> Spent:
    usage, estimated = answer.usage, False
    if usage is None:
        said = len(answer.text) + sum(len(call.arguments) for call in answer.calls)
        usage, estimated = Usage(request_bytes // CHARS_A_TOKEN, said // CHARS_A_TOKEN), True
    money = pricing(answer.model or model, usage)
    return Spent(usage.input_tokens, usage.output_tokens, usage.cached_tokens, estimated, money)


def total(parts: Iterable[Spent]) -> Spent:
    """Add up; the cost is known if it is known for any call."""
    asked = answered = cached = 0
    estimated, money, priced = False, 0.0, False
    for one in parts:
        asked += one.input_tokens
        answered += one.output_tokens
        cached += one.cached_tokens
        estimated = estimated or one.estimated
        if one.money is not None:
            money, priced = money + one.money, True
    return Spent(asked, answered, cached, estimated, money if priced else None)
