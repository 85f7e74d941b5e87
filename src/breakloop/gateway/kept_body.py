"""What is kept of a request's body while its answer is on the way: all of it while it may have to be sent again, and
little once nobody will. When that is, the exchange knows."""

from __future__ import annotations

from typing import Final

from breakloop.gateway.head import Request
from breakloop.model.call import Call, Chat
from breakloop.wire.denial import rpc_stub

KEPT_BYTES: Final = 64 * 1024  # a body up to here may stay


def forget_body(request: Request, call: Call) -> None:
    """Nobody will send it again: a thousand streams must not hold a thousand long conversations.

    The id of a call of a tool stays: an error in its stead has to carry it.
    """
    if len(request.body) > KEPT_BYTES:
        request.body = b""
        call.body = rpc_stub(call.body)
        call.taken_cache = None
        chat = call.chat_cache
        if isinstance(chat, Chat):
            call.chat_cache = chat._replace(tail=())
