"""The connections of the stand-in LLM: they read requests and send responses as steps: bytes, pauses, gates and ends.

The steps come from a plain generator, so that framing, stalls and cuts can be tested without a socket.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from breakloop.testing.answer import Gate, Manner
from breakloop.testing.http import MalformedError, RequestReader, SeenRequest, accepted, compressed, head, pieces_of

if TYPE_CHECKING:
    from breakloop.testing.llm import StandInLLM


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class HoldOpen:
    """Send nothing more until `resume()` is called."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the connection: regularly after a complete response, otherwise abruptly, with a reset if requested."""

    abrupt: bool = False
    reset: bool = False


Step = bytes | Pause | HoldOpen | Leave | Gate

_LAST_CHUNK: Final = b"0\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A response in its dialect, ready to be sent."""

    pieces: Iterable[bytes]
    content_type: str = "application/json"
    status: int = 200
    streamed: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    holds: bool = False  # the connection stays open after the last chunk


def steps(rendered: Rendered, manner: Manner, seen: SeenRequest, date: str) -> Iterator[Step]:
    """Return the steps of a response to this request; steps after a `Leave` are not executed."""
    return _limited(_Sending(rendered, manner, seen, date).steps(), manner)


def raw_steps(pieces: Iterable[bytes], manner: Manner, seen: SeenRequest) -> Iterator[Step]:
    """Return the steps of sending raw bytes; they count as chunks, and there is no head."""
    return _limited(_Sending(Rendered(pieces), manner, seen, "").raw_steps(), manner)


def _limited(sending: Iterator[Step], manner: Manner) -> Iterator[Step]:
    """End the connection after a number of bytes, if it is configured."""
    cut = manner.cut
    if cut is None or cut.after_bytes is None:
        yield from sending
        return
    left = cut.after_bytes
    for step in sending:
        if isinstance(step, bytes):
            if len(step) >= left:
                yield step[:left]
                break
            left -= len(step)
        yield step
    yield Leave(abrupt=True, reset=cut.reset)


class _Sending:
    """The steps of one response. Its positions are "start", "head", and the number of chunks sent."""

    def __init__(self, rendered: Rendered, manner: Manner, seen: SeenRequest, date: str) -> None:
        self._rendered = rendered
        self._manner = manner
        self._seen = seen
        self._date = date
        self._bodiless = seen.method == "HEAD" or rendered.status in {204, 304}
        self._old = manner.version == "1.0" or seen.version == "1.0"
        self._framing = self._choose_framing()
        asked_to_close = "close" in (seen.header("connection") or "").lower()
        self._close = manner.close or self._old or asked_to_close or self._framing == "close"

    def _choose_framing(self) -> str:
        chosen: str = self._manner.framing
        if chosen == "auto":
            chosen = "chunked" if self._rendered.streamed else "length"
        return "close" if chosen == "chunked" and self._old else chosen

    def steps(self) -> Iterator[Step]:
        manner = self._manner
        if manner.delay_s:
            yield Pause(manner.delay_s)
        for status, fields in manner.informational:
            yield head(status, fields)
        yield from self._at("start")
        pieces, coding = self._packed()
        first = self._head(pieces, coding)
        if self._goes_together(pieces):
            yield first + b"".join(pieces)
            self._seen.chunks_sent += 1
        else:
            yield first
            yield from self._after_head(pieces)
        if self._close:
            yield Leave()

    def raw_steps(self) -> Iterator[Step]:
        if self._manner.delay_s:
            yield Pause(self._manner.delay_s)
        yield from self._at("start")
        yield from self._at("head")
        yield from self._body(self._rendered.pieces, chunked=False)
        if self._manner.close:
            yield Leave()

    def _packed(self) -> tuple[Iterable[bytes], str]:
        """Return the chunks of the body and their encoding; a list if the length is needed."""
        manner, pieces = self._manner, self._rendered.pieces
        coding = manner.coding if manner.coding_forced or accepted(self._seen, manner.coding) else ""
        if coding:
            pieces = compressed(pieces, coding, manner.packed_by, streamed=self._rendered.streamed)
        if manner.piece_bytes:
            pieces = pieces_of(pieces, manner.piece_bytes)
        return (list(pieces) if self._framing == "length" else pieces), coding

    def _head(self, pieces: Iterable[bytes], coding: str) -> bytes:
        rendered, manner = self._rendered, self._manner
        fields = [("Date", self._date), ("Content-Type", rendered.content_type)]
        if coding:
            fields += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
        if self._framing == "chunked":
            fields.append(("Transfer-Encoding", "chunked"))
        elif self._framing == "length" and rendered.status != 204:
            fields.append(("Content-Length", str(sum(map(len, pieces)))))
        if manner.trailers and self._framing == "chunked":
            fields.append(("Trailer", ", ".join(name for name, _ in manner.trailers)))
        fields.append(("Connection", "close" if self._close else "keep-alive"))
        own = (*rendered.headers, *manner.headers)
        return head(rendered.status, fields, own, version=manner.version, realistic=manner.realistic)

    def _goes_together(self, pieces: Iterable[bytes]) -> bool:
        manner = self._manner
        plain = manner.gate is None and not manner.stalls and (manner.cut is None or manner.cut.after_bytes is not None)
        one = self._framing == "length" and isinstance(pieces, list) and len(pieces) == 1
        return plain and one and not self._bodiless and not self._rendered.holds

    def _after_head(self, pieces: Iterable[bytes]) -> Iterator[Step]:
        yield from self._at("head")
        if self._bodiless:
            return
        chunked = self._framing == "chunked"
        yield from self._body(pieces, chunked=chunked)
        if chunked:
            trailers = "".join(f"{name}: {value}\r\n" for name, value in self._manner.trailers)
            yield _LAST_CHUNK + trailers.encode("latin-1") + b"\r\n"

    def _body(self, pieces: Iterable[bytes], *, chunked: bool) -> Iterator[Step]:
        manner, seen = self._manner, self._seen
        gate, cut, interval_s = manner.gate, manner.cut, manner.interval_s
        pause = Pause(interval_s)
        eventful = cut is not None or bool(manner.stalls)
        for number, piece in enumerate(filter(None, pieces)):  # an empty chunk would end the body
            if gate is not None:
                yield gate
            if interval_s and number:
                yield pause
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
            if cut is not None and cut.mid_chunk and number == (cut.at if isinstance(cut.at, int) else 0):
                yield framed[: (len(framed) + 1) // 2]
                yield Leave(abrupt=True, reset=cut.reset)
            yield framed
            seen.chunks_sent += 1
            if gate is not None:
                gate.went()
            if eventful:
                yield from self._at(number + 1)
        if self._rendered.holds:
            yield HoldOpen()

    def _at(self, place: str | int) -> Iterator[Step]:
        for stall in self._manner.stalls:
            if stall.at == place:
                yield HoldOpen() if stall.for_s is None else Pause(stall.for_s)
        cut = self._manner.cut
        if cut is not None and cut.after_bytes is None and not cut.mid_chunk and cut.at == place:
            yield Leave(abrupt=True, reset=cut.reset)


class Player:
    """Sends one response. `ended` is called once when everything is written."""

    __slots__ = ("_ended", "_gate", "_loop", "_seen", "_steps", "_timer", "_transport", "_waits", "held", "over")

    def __init__(
        self,
        transport: asyncio.Transport,
        steps: Iterator[Step],
        seen: SeenRequest,
        ended: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport = transport
        self._steps = steps
        self._seen = seen
        self._ended = ended
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None  # during a pause
        self._gate: Gate | None = None  # waiting at a gate
        self._waits = False  # waiting for the client to read
        self.held = False  # stalled
        self.over = False

    def go(self) -> None:
        """Execute all steps that are possible now."""
        if self.over or self.held or self._waits or self._timer is not None or not self._passes():
            return
        write, is_closing = self._transport.write, self._transport.is_closing
        for step in self._steps:
            if is_closing():  # the client is disconnecting, and uvloop raises on a write
                return
            if type(step) is bytes:
                self._seen.bytes_sent += len(step)
                write(step)
                if self._must_wait():
                    return
            elif not self._goes_on(step):
                return
        self.over = True
        self._seen.outcome = "sent"
        self._ended()

    def _must_wait(self) -> bool:
        return self._waits  # may have changed while writing

    def _passes(self) -> bool:
        gate = self._gate
        if gate is not None:
            if not gate.passes(self.go):
                return False
            self._gate = None
        return True

    def _goes_on(self, step: Step) -> bool:
        if type(step) is Pause:
            self._timer = self._loop.call_later(step.seconds, self._wake)
            return False
        if isinstance(step, Gate):
            self._gate = step
            return self._passes()
        if isinstance(step, Leave):
            self._leave(step)
            return False
        self.held = True
        return False

    def _wake(self) -> None:
        self._timer = None
        self.go()

    def _leave(self, step: Leave) -> None:
        self.over = True
        self._seen.outcome = "cut" if step.abrupt else "sent"
        if step.reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if step.reset or (step.abrupt and self._transport.get_extra_info("ssl_object") is not None):
            # Not at once: uvloop writes at the end of the turn. With TLS, closing would send close_notify.
            self._loop.call_soon(self._transport.abort)
        else:
            self._transport.close()

    def resume(self) -> None:
        self.held = False
        self.go()

    def pause_writing(self) -> None:
        self._waits = True

    def resume_writing(self) -> None:
        self._waits = False
        self.go()

    def abandon(self) -> None:
        if not self.over:
            self.over = True
            self._seen.outcome = "aborted"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class StandInConnection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, host: StandInLLM) -> None:
        self.number = 0
        self.seen: SeenRequest | None = None  # the request being read or answered
        self.player: Player | None = None
        self._host = host
        self._reader = RequestReader()
        self._advancing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # TCP and TLS provide no other
        self.number = self._host.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.player is not None:
            self.player.abandon()
        elif self.seen is not None:
            self.seen.outcome = "aborted"
        self._host.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._advance()

    def pause_writing(self) -> None:
        if self.player is not None:
            self.player.pause_writing()

    def resume_writing(self) -> None:
        if self.player is not None:
            self.player.resume_writing()

    def abort(self) -> None:
        self._transport.abort()

    def _advance(self) -> None:
        """Parse further requests once the previous response is sent."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._step():
                pass
        except MalformedError as error:
            self._refuse(str(error))
        finally:
            self._advancing = False

    def _step(self) -> bool:
        seen = self.seen
        if seen is None:
            seen = self._reader.head()
            if seen is None:
                return False
            self._begin(seen)
        # After a complete request, further bytes belong to the next one, which waits.
        if seen.complete or not self._reader.body(seen):
            return False
        if self.player is None:
            self._play(seen, self._host.heard(seen))
        elif self.player.over:
            self._next()
        self._host.changed()
        return self.seen is None

    def _begin(self, seen: SeenRequest) -> None:
        self.seen = seen
        seen.connection = self.number
        early = self._host.heard_head(seen, self)
        if early is not None:
            self._play(seen, early)
        elif (seen.header("expect") or "").lower() == "100-continue":
            self._transport.write(_CONTINUE)

    def _play(self, seen: SeenRequest, steps: Iterator[Step]) -> None:
        if self._transport.is_closing():
            return
        seen.outcome = "answering"
        self.player = Player(self._transport, steps, seen, self._ended, self._host.loop)
        self.player.go()

    def _ended(self) -> None:
        seen = self.seen
        if seen is None:
            return
        self._host.changed()
        if seen.complete:
            self._next()
            self._advance()

    def _next(self) -> None:
        self.seen = self.player = None

    def stop_reading(self) -> None:
        self._transport.pause_reading()

    def _refuse(self, problem: str) -> None:
        self._host.complain(self, problem)
        if not self._transport.is_closing():
            self._transport.write(_BAD)
            self._transport.close()
