"""Streams that are asked for their count of tokens, because a policy needs it exactly and the client did not ask (SPEC
D-1, L-3): who may be asked, and what becomes of the answer. What is written and taken out is `wire.usage_request`'s.

An upstream that does not know the question refuses the request. Then it gets the client's own, once, and is not asked
again for that model.
"""

from __future__ import annotations

from typing import Final

import msgspec

from breakloop.gateway.answer_head import UNTIL_CLOSE, AnswerHead
from breakloop.gateway.head import Request
from breakloop.model.call import Call, Chat
from breakloop.model.tally import Tally
from breakloop.policy.recent import Recent
from breakloop.wire.usage_request import UsageStrip, ask

_REFUSALS: Final = frozenset((400, 422))
_REMEMBERED: Final = 1000
_MODEL_MAX: Final = 100
_STREAM: Final = b"text/event-stream"
_PLAIN: Final = frozenset((b"", b"identity"))


class Asking:
    """Knows who refused. One per door."""

    __slots__ = ("_refused", "_tally")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._refused: Recent[str, bool] = Recent(_REMEMBERED)

    def body(self, request: Request, call: Call, *, steered: bool) -> bytes | None:
        """Return the body that asks; None where the client's own is sent."""
        chat = call.chat_cache
        if not isinstance(chat, Chat) or not chat.stream or request.streamed or self._refused.get(_key(call, chat)):
            return None
        found = ask(chat.dialect, request.body if steered else call.body)
        if found is not None:
            self._tally.asked_usage += 1
        return found

    def refused(self, call: Call) -> None:
        """Remember that it does not work there: the same request without the question was taken."""
        self._tally.refused_usage += 1
        chat = call.chat_cache
        if isinstance(chat, Chat):
            self._refused.put(_key(call, chat), True)


class Asked:
    """One request that asks for more than its client did. `head` and `body` are those without the question."""

    __slots__ = ("_asking", "_call", "_plainly", "_strip", "body", "head")

    def __init__(self, asking: Asking, call: Call, head: bytes, body: bytes) -> None:
        self._asking = asking
        self._call = call
        self._strip: UsageStrip | None = None
        self._plainly = False  # it was sent again, without the question
        self.head = head
        self.body = body  # until the answer begins

    def again(self, status: int) -> bool:
        """Tell whether the request is to be sent again without the question. Nobody acted on one that is refused."""
        if self._plainly or status not in _REFUSALS:
            return False
        self._plainly = True
        return True

    def begins(self, head: AnswerHead) -> AnswerHead:
        """Return the head of the answer as it is passed on: what is rewritten has no length that is known."""
        self.body = b""
        if self._plainly:
            if head.status < 400:
                self._asking.refused(self._call)
            return head
        kind = head.headers.get("content-type", b"").partition(b";")[0].strip().lower()
        packed = head.headers.get("content-encoding", b"").lower() not in _PLAIN
        if head.status >= 400 or kind not in (_STREAM, b"") or packed:
            return head
        self._strip = UsageStrip()
        return msgspec.structs.replace(head, length=UNTIL_CLOSE)

    def passed(self, content: list[bytes], *, done: bool) -> list[bytes]:
        """Return what the client gets of this."""
        strip = self._strip
        if strip is None:
            return content
        passed = [strip.feed(piece) for piece in content]
        if done:
            passed.append(strip.finish())
        return passed


def _key(call: Call, chat: Chat) -> str:
    return f"{call.upstream} {chat.model[:_MODEL_MAX]}"
