"""One request on its way to an upstream, and the answer on its way back (SPEC D-1).

What comes is passed on at once and read afterwards; nothing is held back. An exchange that cannot be completed ends in
a 502 or 504 as long as the client has seen nothing, and in an aborted connection after that: never in a clean end of a
cut answer. Judging the request, and what to say when it fails, is the door's.

What is kept of a request's body while its answer is on the way: all of it while it may have to be sent again, and
little once nobody will. When that is, the exchange knows.

`Pending`: what a door returns when its decision has to be waited for. Made when the decision is there; where the
client has left meanwhile, it ends what would have begun.

Streams that are asked for their count of tokens, because a policy needs it exactly and the client did not ask (SPEC
D-1, L-3): who may be asked, and what becomes of the answer. What is written and taken out is `wire.usage_request`'s.

An upstream that does not know the question refuses the request. Then it gets the client's own, once, and is not asked
again for that model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from breakloop.dialects.denial import rpc_stub
from breakloop.dialects.usage_request import UsageStrip, ask
from breakloop.gateway.http_request import CLOSE, Reply, Request
from breakloop.gateway.http_response import (
    AS_IT_CAME,
    BODY_UNTIL_CLOSE,
    UNTIL_CLOSE,
    ResponseHead,
    Upload,
    head_out,
    reframed,
)
from breakloop.gateway.stream_guard import AnswerTap, ExchangeClient, ExchangeHandler, cut
from breakloop.gateway.upstream import UpstreamConnection, UpstreamPool, unreachable
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, Chat
from breakloop.model.counters import Tally
from breakloop.policy.cache import TwoGenerationCache

KEPT_BYTES: Final = 64 * 1024  # a body up to here may stay


def forget_body(request: Request, call: Call) -> None:
    """Nobody will send it again: a thousand streams must not hold a thousand long conversations.

    The id of a call of a tool stays: an error in its stead has to carry it.
    """
    if len(request.body) > KEPT_BYTES:
        request.body = b""
        call.release_body(rpc_stub(call.body))


_REFUSALS: Final = frozenset((400, 422))
_REMEMBERED: Final = 1000
_MODEL_MAX: Final = 100
_STREAM: Final = b"text/event-stream"
_PLAIN: Final = frozenset((b"", b"identity"))


class UsageInjector:
    """Knows who refused. One per door."""

    __slots__ = ("_refused", "_tally")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._refused: TwoGenerationCache[str, bool] = TwoGenerationCache(_REMEMBERED)

    def body(self, request: Request, call: Call, *, steered: bool) -> bytes | None:
        """Return the body that asks; None where the client's own is sent."""
        chat = call.parsed.chat
        if not isinstance(chat, Chat) or not chat.stream or request.streamed or self._refused.get(_key(call, chat)):
            return None
        found = ask(chat.dialect, request.body if steered else call.body)
        if found is not None:
            self._tally.asked_usage += 1
        return found

    def refused(self, call: Call) -> None:
        """Remember that it does not work there: the same request without the question was taken."""
        self._tally.refused_usage += 1
        chat = call.parsed.chat
        if isinstance(chat, Chat):
            self._refused.put(_key(call, chat), True)


class UsageInjection:
    """One request that asks for more than its client did. `head` and `body` are those without the question."""

    __slots__ = ("_asking", "_call", "_plainly", "_strip", "body", "head")

    def __init__(self, asking: UsageInjector, call: Call, head: bytes, body: bytes) -> None:
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

    def begins(self, head: ResponseHead) -> ResponseHead:
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
        return msgspec.structs.replace(head, length=BODY_UNTIL_CLOSE)

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


_AT_ONCE_S: Final = 1  # a connection that dies later than this after it got a request did not die of idleness


class Exchange:
    """Made by the door, started by the client's connection. `cancel` is for a client that left."""

    __slots__ = (
        "_call", "_claimed", "_client", "_client_head", "_door", "_framing_out", "_head", "_hub", "_lines", "_over",
        "_paused", "_pool", "_reading", "_request", "_reused", "_settled", "_stamp", "_status", "_task", "_upload",
        "_upstream", "asked", "delay_s", "method",
    )  # fmt: skip

    def __init__(
        self, door: ExchangeHandler, pool: UpstreamPool, request: Request, call: Call, head: bytes, lines: bytes
    ) -> None:
        self._hub = pool.hub
        self._door = door
        self._pool = pool
        self._request = request
        self._call = call
        self._head = head  # of the request, as the upstream gets it
        self._lines = lines  # ours, in the head of the answer
        self.method, self.delay_s = request.method, 0.0
        self.asked: UsageInjection | None = None  # where we ask for more than the client did
        self._claimed = len(request.body) if len(request.body) > KEPT_BYTES else 0  # of the room for bodies
        self._client = cast("ExchangeClient", None)  # comes with `start`
        self._upstream: UpstreamConnection | None = None
        self._task: asyncio.Task[UpstreamConnection] | asyncio.TimerHandle | None = None
        self._reading: AnswerTap | None = None
        self._status = NO_ANSWER
        self._client_head, self._framing_out = b"", AS_IT_CAME  # the head of the answer, until its first bytes go out
        self._stamp = 0
        self._upload = Upload(request) if request.streamed else None
        self._reused = self._settled = self._over = self._paused = False
        if self._claimed:
            self._hub.room.take(self._claimed)  # until the upstream answers

    # -- there ---------------------------------------------------------------------------------------------------

    def start(self, client: ExchangeClient) -> None:
        """Go; a throttled request goes when its time has come."""
        self._client = client
        self._stamp = self._hub.tick
        if self.delay_s > 0:
            if self._upload is not None:
                client.hold(hold=True)
            self._task = self._hub.loop.call_later(self.delay_s, self._open)
        else:
            self._open()

    def _open(self) -> None:
        self._task = None
        self._stamp = self._hub.tick
        upstream = self._pool.take()
        if upstream is None:
            self._connect()
        else:
            self._reused = True
            self._send(upstream)

    def _connect(self) -> None:
        self._reused = False
        if self._request.streamed:
            self._client.hold(hold=True)
        task = self._task = self._hub.loop.create_task(self._pool.connect())
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[UpstreamConnection]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self._over:
            if error is None:
                task.result().spare()
        elif error is None:
            self._task = None
            self._stamp = self._hub.tick
            self._send(task.result())
        else:
            if not isinstance(error, OSError):
                self._hub.handler_failed(error)
            self._fail(502, unreachable(error))

    def _send(self, upstream: UpstreamConnection) -> None:
        if upstream.transport.is_closing():  # it died between its making and now
            self._fail(502, "closed the connection")
            return
        self._upstream = upstream
        upstream.begin(self)
        if self._paused:
            upstream.pause()
        upload = self._upload
        upstream.send(self._head, self._request.body if upload is None else b"")
        if not self._reused:
            forget_body(self._request, self._call)  # a connection that is new is not tried again
        if upload is not None:
            upload.begin(lambda piece: upstream.send(piece, b""))
            self._client.hold(hold=upstream.full)

    # -- an upload that nobody needs to see whole ------------------------------------------------------------------

    @property
    def began(self) -> bool:
        """Whether the client has seen a part of the answer."""
        return self._status != NO_ANSWER and not self._client_head

    def upload(self, piece: bytes, *, done: bool) -> None:
        """Pass on a piece of the client's body."""
        self._stamp = self._hub.tick
        if self._upload is not None:
            if piece:
                self._upload.add(piece)
            if done:
                self._upload.finish()

    @property
    def _uploading(self) -> bool:
        return self._upload is not None and not self._upload.done

    def hold_upload(self, *, hold: bool) -> None:
        """The upstream does not read, or reads again."""
        if self._uploading:
            self._client.hold(hold=hold)

    # -- and back ------------------------------------------------------------------------------------------------

    def answer_begins(self, head: ResponseHead) -> None:
        """The head of the answer is here; it goes out with the first bytes of the body, which come at once."""
        request, asked = self._request, self.asked
        self._stamp = self._hub.tick
        if asked is not None:
            if asked.again(head.status):
                self._ask_plainly(asked)
                return
            head = asked.begins(head)
        self._status = head.status
        self._leave_room()
        close = self._hub.draining or (self._upload is not None and self._uploading)
        self._client_head, self._framing_out = head_out(request, head, self._lines, close=close)
        forget_body(request, self._call)
        if head.status >= 400:
            self._settle(Answer(head.status, complete=True))
        else:
            self._reading = self._door.reading(self._call, head)

    def _ask_plainly(self, asked: UsageInjection) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.discard()
        self._head, self._request.body = asked.head, asked.body
        self._connect()

    def answer_goes_on(self, data: bytes, content: list[bytes], *, done: bool) -> None:
        """Bytes of the body, as they came and as what they say."""
        self._stamp = self._hub.tick
        framing = self._framing_out
        if framing:
            passed = content if self.asked is None else self.asked.passed(content, done=done)
            data = reframed(framing, passed, done=done)
        if self._client_head:
            data, self._client_head = self._client_head + data, b""
        if data:
            self._client.relay(data)
        reading = self._reading
        if reading is not None and reading.feed(content) and not done and self._upstream is not None:
            done = cut(reading, framing, self._upstream, self._client)
        if done:
            self._complete()

    def _complete(self) -> None:
        self._over = True
        uploading = self._upload is not None and self._uploading
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.reusable = upstream.reusable and not uploading
            upstream.finish()
        if not self._settled:
            self._settle(self._read(complete=True))
        self._client.relayed(close=self._request.connection is CLOSE or uploading)

    def pause(self) -> None:
        """The client does not read its answer: stop reading the upstream's."""
        self._paused = True
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """Carry on where `pause` stopped."""
        self._paused = False
        self._stamp = self._hub.tick
        if self._upstream is not None:
            self._upstream.resume()

    # -- what can go wrong ---------------------------------------------------------------------------------------

    def upstream_ended(self) -> None:
        """The upstream sends no more."""
        if self._upstream is not None and self._upstream.until_close:
            self.answer_goes_on(b"", [], done=True)

    def upstream_lost(self, why: str, *, nonsense: bool = False) -> None:
        """The connection is gone, or is of no use any more."""
        unheard = self._upstream is not None and not self._upstream.heard and not nonsense
        self._upstream = None
        if self._over:
            return
        if self._reused and unheard and self._hub.tick - self._stamp <= _AT_ONCE_S and self._upload is None:
            # It died while it was idle, and the upstream never saw the request. The next one is not a reused one.
            self._connect()
        else:
            self._fail(502, why)

    def expire(self) -> None:
        """Look at the time; called once a second."""
        age, times = self._hub.tick - self._stamp, self._pool.times
        if isinstance(self._task, asyncio.Task):
            if age > times.connect_s:
                self._fail(504, "did not take the connection in time")
        elif (
            self._uploading and self._upstream is not None and not self._upstream.full and age > self._hub.limits.body_s
        ):
            self._hub.timeouts += 1
            self._fail(408, "waits for a request body that does not arrive")
        elif self._upstream is not None and age > times.answer_s:
            self._fail(504, "did not answer in time")

    def _fail(self, status: int, why: str) -> None:
        self._over = True
        self._stop()
        answer = self._read(complete=False)
        if status == 408:  # the client's fault, and no reason to try again for free
            answer = answer._replace(status=CLIENT_LEFT)
        self._settle(answer._replace(error=answer.error or "cut_short"))
        apology = self._apology(status, why)  # also where it cannot be sent any more: the door tells of it
        if self._status == NO_ANSWER or self._client_head:
            self._request.connection = CLOSE if self._uploading else self._request.connection
            self._client.answer(self._request, apology)
        elif self._framing_out == UNTIL_CLOSE:
            self._client.reset()
        else:
            self._client.abort()

    def _apology(self, status: int, why: str) -> Reply:
        try:
            return self._door.failed(self._call, status, why)
        except Exception as error:  # noqa: BLE001 - the outermost edge: the client must not wait for ever
            return self._hub.handler_failed(error)

    def cancel(self) -> None:
        """The client left: free the upstream at once."""
        if not self._over:
            self._over = True
            self._stop()
            self._settle(self._read(complete=False)._replace(status=CLIENT_LEFT))

    def _leave_room(self) -> None:
        self._hub.room.held -= self._claimed
        self._claimed = 0

    def _stop(self) -> None:
        self._leave_room()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            upstream.discard()

    def _read(self, *, complete: bool) -> Answer:
        read = Answer if self._reading is None else self._reading.answer
        return read(self._status, complete=complete)

    def _settle(self, answer: Answer) -> None:
        if not self._settled:
            self._settled = True
            self._door.settle(self._call, answer)


Made = Callable[[], "Reply | Exchange"]


class DeferredReply:
    """One reply to be. It may be there before anybody waits for it."""

    __slots__ = ("_deliver", "_left", "make")

    def __init__(self) -> None:
        self.make: Made | None = None  # what is decided, once it is
        self._deliver: Callable[[Made], Any] | None = None
        self._left = False

    def resolve(self, make: Made) -> None:
        """It is decided. Whoever waits calls `make`, for that may fail."""
        if self._left:
            result = make()
            if isinstance(result, Exchange):
                result.cancel()  # it was charged for and will have no answer
        elif self._deliver is None:
            self.make = make
        else:
            self._deliver(make)

    def wait(self, deliver: Callable[[Made], Any]) -> None:
        """Call `deliver` when it is decided."""
        self._deliver = deliver

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._left = True
