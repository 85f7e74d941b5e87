"""How a client gets an answer: the head in its version of HTTP, and the body as it came wherever that is possible."""

from __future__ import annotations

from typing import Final

from breakloop.gateway.answer_body import Joint
from breakloop.gateway.answer_head import AnswerHead
from breakloop.gateway.head import BODYLESS, CHUNKED, CLOSE, Request
from breakloop.gateway.upload import LAST_CHUNK, as_chunk

AS_IT_CAME, IN_CHUNKS, UNTIL_CLOSE = range(3)
_FILLED_MAX: Final = 64 * 1024  # so much of a chunk that was begun may be filled up
_CHUNKED_LINE: Final = b"transfer-encoding: chunked\r\n\r\n"


def head_out(request: Request, head: AnswerHead, lines: bytes, *, close: bool) -> tuple[bytes, int]:
    """Return the head for the client, with `lines` of ours, and how its body is framed.

    `request.connection` says afterwards whether the connection ends with this answer.
    """
    length, framing_out = head.length, AS_IT_CAME
    if close:
        request.connection = CLOSE
    if length < 0:
        if request.is_1_1:
            framing = _CHUNKED_LINE
            framing_out = AS_IT_CAME if length == CHUNKED else IN_CHUNKS
        else:
            framing, framing_out = b"\r\n", UNTIL_CLOSE
            request.connection = CLOSE
    elif length or not (request.method == "HEAD" or head.status in BODYLESS):
        framing = b"content-length: %d\r\n\r\n" % length
    else:
        framing = head.announced + b"\r\n"
    return b"".join((head.line, head.lines, lines, request.connection, framing)), framing_out


def reframed(framing: int, content: list[bytes], *, done: bool) -> bytes:
    """Return content that cannot pass as it came: in chunks of ours, or plain."""
    if framing == UNTIL_CLOSE:
        return b"".join(content)
    out = b"".join(as_chunk(piece) for piece in content if piece)
    return out + LAST_CHUNK if done else out


def can_follow(framing: int, joint: Joint | None) -> bool:
    """Tell whether content of ours can follow what a client got, whose framing is at `joint`."""
    return framing != AS_IT_CAME or (joint is not None and joint.room <= _FILLED_MAX)


def ended_with(ours: bytes, framing: int, joint: Joint | None) -> bytes:
    """Return what ends an answer that consists of events: `ours` as its last content.

    A chunk that was begun gets it, as far as it has room; empty lines, which are nothing behind an event, fill it up.
    """
    if framing == UNTIL_CLOSE:
        return ours
    before = b""
    if framing == AS_IT_CAME and joint is not None:
        before, room = joint
        if room:
            ours += b"\n" * (room - len(ours))
            before, ours = ours[:room] + b"\r\n", ours[room:]
    return before + (as_chunk(ours) if ours else b"") + LAST_CHUNK
