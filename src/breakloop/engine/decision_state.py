"""The engine's state of one call: what is left to settle after a decision, and in which store.

Other packages treat it as an opaque `Call.decision`. If it has to outlive its request, it is kept as a
`PendingResult`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from breakloop.detect.stateful import DetectorSlot
from breakloop.limits.base import Estimate
from breakloop.model.call import TAIL_MESSAGES, Answer, Call, Chat, CompletionCap
from breakloop.model.events import LoopKey
from breakloop.pricing.tokens import Estimator
from breakloop.store.limit_ops import Charge
from breakloop.store.ops import AdjustCharge, FingerprintSpec, Settle

Ticket = tuple[Settle, ...]


class Settlement(Protocol):
    """Settles calls in the store where they were decided."""

    def settle(self, call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        """End what was in flight, and take back what does not count."""
        ...

    def correct(self, call: Call, ops: Sequence[AdjustCharge]) -> None:
        """Replace estimated charges by the actual use."""
        ...

    def answered(self, call: Call, answer: Answer) -> None:
        """Record the answer in the detection windows."""
        ...


class DecisionState(msgspec.Struct, gc=False):
    """The state of one decision; its first part is what other layers see of it (`CallDecision`)."""

    tail_messages: int = TAIL_MESSAGES
    conversation: object = None
    alone: bool = False
    copied: bool = False
    opening: bytes = b""
    runs: tuple[object, ...] = ()
    joined: str = ""
    crowded: bool = False
    interrupted: bool = False
    guards_stream: int = 0
    caps: tuple[CompletionCap, ...] = ()
    wants_usage: bool = False
    prompt_tokens: int = 0
    estimator: str = "simple_word"
    microusd: int = 0
    awaits_result: bool = False  # it has a ticket or charges
    ticket: Ticket | None = None  # the counts that settling ends or takes back
    charges: list[Charge] | None = None  # estimated charges, which the answer corrects
    windows: Collection[tuple[str, list[DetectorSlot]]] | None = None  # the windows that record the answer
    settlement: Settlement | None = None  # where it was decided; None: in the store of this process
    estimate: tuple[Estimator, bool, Estimate] | None = None  # of the last rule, for reuse by the next one
    loop: LoopKey | None = None  # the loop that it belongs to in activity records

    granted: ClassVar[bool] = False


class GrantedState(DecisionState, gc=False):
    """The state of a call whose run goes on because a person said so. Other calls pay nothing for these fields."""

    granted: ClassVar[bool] = True

    run: tuple[str, str, str, str] = ("", "", "", "")  # key of the hold with the answer
    pause: str = ""  # id of its question


def grant(call: Call, run: tuple[str, str, str, str], pause: str) -> GrantedState:
    """Replace the state of a call that has been planned by one that is granted."""
    before = state_of(call)
    made = call.decision = GrantedState(
        **{name: getattr(before, name) for name in DecisionState.__struct_fields__}, run=run, pause=pause
    )
    return made


def state_of(call: Call) -> DecisionState:
    """Return the decision state of a call. A call without one, such as a call without a body, gets a new one."""
    decision = call.decision
    if isinstance(decision, DecisionState):
        return decision
    state = call.decision = DecisionState()
    return state


def await_result(call: Call, ticket: Ticket) -> None:
    """Set the ticket of a call. Where it is the whole state, the state is made with it, in half the time."""
    decision = call.decision
    if isinstance(decision, DecisionState):
        decision.ticket, decision.awaits_result = ticket, True
    else:
        call.decision = DecisionState(awaits_result=True, ticket=ticket)


class Reserved(NamedTuple):
    """What the result of a call corrects."""

    charges: list[Charge]
    prompt_tokens: int
    estimator: str
    chat: Chat | None  # without its messages
    upstream: str


class PendingResult(msgspec.Struct, frozen=True, gc=False):
    """An allowed call whose result may be reported later. The request itself is not kept, since it may be large.

    The first count of its ticket is in fields of its own, and more than one is rare: of many such objects, each one
    that belongs to another costs time, because it is in no cache of the processor any more when it is dropped.
    """

    kept_at: float
    caller: str
    project: str
    spec: FingerprintSpec | None  # of the first count; None: there is none
    key: str
    at: float
    flight: int
    more: Ticket
    settlement: Settlement | None
    reserved: Reserved | None

    def call(self, request_id: str, *, with_charges: bool) -> Call:
        """Return a call for `Engine.settle`. Without charges, the estimates stay."""
        reserved = self.reserved if with_charges else None
        call = Call("", "", request_id=request_id, upstream="" if reserved is None else reserved.upstream)
        call.identity.caller, call.identity.project = self.caller, self.project
        state = call.decision = DecisionState()
        if self.spec is not None:
            state.ticket = (Settle(self.spec, self.key, self.at, self.flight), *self.more)
        state.settlement = self.settlement
        if reserved is not None:
            state.charges, state.prompt_tokens, state.estimator = reserved[:3]
            call.parsed.chat = reserved.chat
        return call
