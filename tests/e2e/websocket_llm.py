"""A stand-in for the websockets of OpenAI's Responses API and Realtime API. It calls the same tool as long as it may."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

Json = dict[str, Any]
Output = Callable[[int, Json], Json]  # the item that a response has: the number of the response, and what was asked


def calls_again(_number: int, asked: Json) -> Json:
    """Call the same tool with the same arguments, unless tools are off."""
    if asked.get("tool_choice") == "none":
        return says(0, asked)
    return {"type": "function_call", "name": "search", "arguments": '{"query": "refunds"}'}


def calls_on(number: int, _asked: Json) -> Json:
    """Call a tool with other arguments each time."""
    return {"type": "function_call", "name": "read", "arguments": json.dumps({"path": f"chapter-{number}.md"})}


def says(_number: int, _asked: Json) -> Json:
    text = {"type": "output_text", "text": "I finish with what I have.", "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [text]}


@dataclass
class WebSocketLLM:
    """One that runs, and what reached it."""

    output: Output
    hold: threading.Event = field(default_factory=threading.Event)  # set: responses begin, and do not end
    seen: list[Json] = field(default_factory=list)  # the events of clients
    heads: list[dict[str, str]] = field(default_factory=list)
    closed: list[int | None] = field(default_factory=list)  # codes
    url: str = ""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.heads.append({name.lower(): value for name, value in socket.request.headers.raw_items()})
        realtime = "/realtime" in socket.request.path
        try:
            if realtime:
                self._send(socket, {"type": "session.created", "session": {"model": "gpt-realtime"}})
            for message in socket:
                event = json.loads(message)
                self.seen.append(event)
                if event["type"] == "response.create":
                    self._respond(socket, event, realtime=realtime)
        except ConnectionClosed:
            pass
        self.closed.append(socket.close_code)

    def _respond(self, socket: ServerConnection, asked: Json, *, realtime: bool) -> None:
        number = next(self._ids)
        item = {"id": f"item_{number}", "call_id": f"call_{number}", **self.output(number, asked)}
        response: Json = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "m"}
        response |= {"output": [item], "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}}
        self._send(
            socket, {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
        )
        if self.hold.is_set():
            return
        self._send(socket, {"type": "response.output_item.done", "output_index": 0, "item": item})
        self._send(socket, {"type": "response.done" if realtime else "response.completed", "response": response})

    def _send(self, socket: ServerConnection, event: Json) -> None:
        socket.send(json.dumps({"event_id": "e", "sequence_number": 1, **event}))


def _run(server: Server) -> None:
    with suppress(OSError):  # a test that is skipped at once shuts it down before it has begun
        server.serve_forever()


@contextmanager
def websocket_llm(output: Output) -> Iterator[WebSocketLLM]:
    """Run one on a free port."""
    running = WebSocketLLM(output)
    with serve(running.handle, "127.0.0.1", 0, compression=None) as server:
        assert isinstance(server, Server)
        running.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=_run, args=(server,), daemon=True)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()
