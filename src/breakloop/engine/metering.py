"""Metering of tokens and cost: an estimate before a call is decided, and the actual use once it is answered.

`pricing` provides prices and token estimates, and the limiters apply them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, get_args

from breakloop.clock import Clock
from breakloop.dialects import registry
from breakloop.dialects.prompt import prompt_of
from breakloop.engine.decision_state import DecisionState, state_of
from breakloop.limits.base import NOTHING, Estimate
from breakloop.model.call import CAPPED, CLIENT_LEFT, NO_ANSWER, Answer, Call, Chat, CompletionCap, Usage
from breakloop.model.events import LIMIT_EXCEEDED, MODEL_UNKNOWN, SHADOW_WOULD_REJECT, Event, Publish
from breakloop.policy.descriptors import Descriptors
from breakloop.pricing.prices import Price, Prices
from breakloop.pricing.tokens import HINT, EstimateErrors, Estimator, answer_tokens
from breakloop.store.limit_ops import Charge
from breakloop.store.ops import ENFORCED, ActualUse, CommitResult, Op, denies

DENY: Final = "deny"
_CHARGES: Final = get_args(Charge)  # a tuple is faster than the union
_TOLD_MAX: Final = 1000
_ERROR_FROM: Final = 400


class Meter:
    """Measures calls and answers. Without `prices`, every cost is 0."""

    __slots__ = ("_clock", "_descriptors", "_prices", "_publish", "_told", "errors")

    def __init__(
        self, descriptors: Descriptors, clock: Clock, publish: Publish, prices: Callable[[], Prices] | None = None
    ) -> None:
        self._descriptors = descriptors
        self._clock = clock
        self._publish = publish
        self._prices = prices
        self._told: set[str] = set()  # unknown models, each published once
        self.errors = EstimateErrors()

    def estimate(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        """Return the estimated use of a call, or `NOTHING` if it is not an LLM call."""
        state = call.decision
        if not isinstance(state, DecisionState):
            state = state_of(call)
        known = state.estimate
        if known is not None and known[0] is estimator and known[1] >= money:
            return known[2]
        chat = self.llm(call)
        if chat is None:
            return NOTHING
        hint = call.headers.get(HINT)
        tokens = estimator.prompt_tokens(prompt_of(call), None if hint is None else hint.decode("latin-1"))
        found = Estimate(tokens, chat.max_tokens, 0, chat.answers)
        price = self._price(call, chat) if money else None
        if price is not None:
            found = found._replace(microusd=Prices.cost_microusd(price, Usage(tokens, found.completion())))
        state.estimate = (estimator, money, found)
        return found

    def reserve(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        found = self.estimate(call, estimator, money=money)
        if found is not NOTHING:
            state = state_of(call)
            state.prompt_tokens, state.estimator = found.prompt_tokens, estimator.name
        return found

    def cap(self, call: Call, cap: CompletionCap) -> None:
        state = state_of(call)
        state.caps = (*state.caps, cap)

    def denies(self, call: Call) -> bool:
        if self._prices is None or self._prices().unknown != DENY:
            return False
        chat = self.llm(call)
        return chat is not None and self._price(call, chat) is None

    def used(self, call: Call, answer: Answer, prompt_tokens: int) -> ActualUse | None:
        """Return the actual use of a call, or None if it is unknown and the estimate stays.

        For an answer that was cut off, this is the part that was passed on. An error costs nothing.
        """
        chat = self.llm(call)
        if chat is None or answer.status == NO_ANSWER:
            return None
        usage = answer.usage
        if usage is None:
            if answer.status >= _ERROR_FROM and answer.status != CLIENT_LEFT:
                return ActualUse()
            said = answer_tokens(answer.text, answer.calls, answer.unkept_chars)
            usage = Usage(prompt_tokens, said)
        else:
            self.errors.note(call.decision.estimator, prompt_tokens, usage.input_tokens)
        price = self._price(call, chat)
        cost = usage.cost_microusd
        if cost is None:
            cost = 0 if price is None else Prices.cost_microusd(price, usage)
        return ActualUse(usage.input_tokens + usage.output_tokens, cost)

    def cost_microusd(self, call: Call, usage: Usage) -> int:
        """Return the cost of the given usage: as stated, or else by the price; 0 if none is known."""
        if usage.cost_microusd is not None:
            return usage.cost_microusd
        chat = call.parsed.chat
        price = self._price(call, chat) if isinstance(chat, Chat) and registry.DIALECTS[chat.dialect].is_llm else None
        return 0 if price is None else Prices.cost_microusd(price, usage)

    def capped(self, call: Call, cap: CompletionCap, action: str) -> None:
        """Publish that a streamed answer exceeded the length that a rule allows. `action` is what was done: "cut" or
        "warn".
        """
        data: dict[str, object] = {"policy": cap.policy, "rule": cap.rule, "reason": CAPPED}
        name = SHADOW_WOULD_REJECT
        if cap.cuts:
            name, data = LIMIT_EXCEEDED, {**data, "action": action}
        self._publish(Event(name, self._clock.now(), data, call.identity.project, call.request_id))

    def llm(self, call: Call) -> Chat | None:
        """Return the chat of an LLM call, or None for other calls: a tool call costs no tokens."""
        chat = self._descriptors.head(call)
        return chat if chat is not None and registry.DIALECTS[chat.dialect].is_llm else None

    def _price(self, call: Call, chat: Chat) -> Price | None:
        if self._prices is None:
            return None
        price = self._prices().find(call.upstream or registry.DIALECTS[chat.dialect].provider, chat.model)
        if price is None and chat.model not in self._told and len(self._told) < _TOLD_MAX:
            self._told.add(chat.model)
            data: dict[str, object] = {"model": chat.model[:200], "upstream": call.upstream}
            self._publish(Event(MODEL_UNKNOWN, self._clock.now(), data, call.identity.project, call.request_id))
        return price


def adjustable_charges(ops: Sequence[Op], done: CommitResult) -> list[Charge] | None:
    """Return the charges of an allowed call that its answer adjusts: those that were made and are estimates."""
    found = [op for op in ops if isinstance(op, _CHARGES) and op.limiter.needs]
    if [op for op in found if op.group != ENFORCED]:  # a shadow policy that would have denied has charged nothing
        denied = {op.group for op, result in zip(ops, done.results, strict=True) if denies(op, result)}
        found = [op for op in found if op.group not in denied]
    return found or None
