"""How a client gets an answer: the head in its version of HTTP, and the body as it came wherever that is possible."""

from __future__ import annotations

from typing import Final

from breakloop.gateway.answer_head import AnswerHead
from breakloop.gateway.head import BODYLESS, CHUNKED, CLOSE, Request
from breakloop.gateway.upload import LAST_CHUNK, as_chunk

AS_IT_CAME, IN_CHUNKS, UNTIL_CLOSE = range(3)
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
