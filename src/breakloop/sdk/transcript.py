"""What a custom loop did, written as the chat request that would come next: so detectors judge it as they judge LLM
traffic. Bounded: the oldest steps are forgotten, and long results are cut and told apart by a digest."""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from breakloop.sdk.core import arguments_text

Made = tuple[str, Any]  # a tool call: its name and its arguments

RESULT_MAX_CHARS: Final = 8 * 1024
_BYTES_MAX: Final = 128 * 1024
_BYTES_KEPT: Final = 16 * 1024  # of the newest, when there are more


class Transcript:
    """One conversation as it grows."""

    __slots__ = ("_calls", "_head", "_messages", "_size", "_token")

    def __init__(self, model: str, task: str) -> None:
        opening = {"role": "user", "content": task or "Begin."}
        self._head = b'{"model":%s,"messages":[%s' % (_bytes(model or "unknown"), _bytes(opening))
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._token = secrets.token_hex(6)  # ids of calls are never those of another run
        self._calls = 0

    def add(self, calls: Sequence[Made], results: Sequence[Any], text: str, user: str) -> bytes:
        """Take in a step: what the model said and called, and what came back. Returns the whole request."""
        check_calls(calls)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        ids = [self._id() for _ in calls]
        if calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": arguments_text(arguments)}}
                for one, (name, arguments) in zip(ids, calls, strict=True)
            ]
        self._keep(message)
        for index, result in enumerate(results):
            tool = ids[index] if index < len(ids) else self._id()
            self._keep({"role": "tool", "tool_call_id": tool, "content": result_text(result)})
        if user or not results:
            self._keep({"role": "user", "content": user})
        self._forget()
        return b"%s,%s]}" % (self._head, b",".join(self._messages))

    def opening(self) -> bytes:
        """Return the request that everything begins with."""
        return self._head + b"]}"

    def _keep(self, message: dict[str, Any]) -> None:
        written = _bytes(message)
        self._messages.append(written)
        self._size += len(written)

    def _forget(self) -> None:
        """Cut rarely and deep: a context that shrinks with every step would look like one that is being lost."""
        if self._size > _BYTES_MAX:
            while self._size > _BYTES_KEPT and len(self._messages) > 1:
                self._size -= len(self._messages.popleft())
            while len(self._messages) > 1 and not self._messages[0].startswith(b'{"role":"assistant"'):
                self._size -= len(self._messages.popleft())

    def _id(self) -> str:
        self._calls += 1
        return f"call_{self._token}{self._calls}"


def check_calls(calls: Any) -> None:
    """Raise `TypeError` for what are no calls, which is a mistake in the program that tells them."""
    if not isinstance(calls, str | bytes | Mapping) and all(
        isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], str) for one in calls
    ):
        return
    raise TypeError('calls: must be a list of (name, arguments), such as [("search", {"query": "x"})]')


def result_text(result: Any) -> str:
    """Return what a tool returned (or raised) as a model would be shown it; errors in a form that says so."""
    if isinstance(result, str):
        text = result
    elif isinstance(result, BaseException):
        text = f"Error: {type(result).__name__}: {_said(result)}"
    elif isinstance(result, bytes | bytearray):
        text = f"<{len(result)} bytes {blake2b(result, digest_size=8).hexdigest()}>"
    else:
        text = arguments_text(result)
    if len(text) <= RESULT_MAX_CHARS:
        return text
    whole = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:RESULT_MAX_CHARS]}\n<{len(text) - RESULT_MAX_CHARS} more characters, {whole}>"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an outermost edge: errors of others may fail to say what they are
        return ""


def _bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
