"""The stand-in as a client sees it: dialects over real sockets, every way to fail, stepping, threads, TLS."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import breakloop.testing
from breakloop.clock import FakeClock
from breakloop.testing.answer import Answer, call_tool, cut, fail, nonsense, raw, say, stall
from breakloop.testing.factories import PATHS, Conversation, chat_request, mcp_call
from breakloop.testing.llm import StandInLLM, ThreadedLLM
from breakloop.testing.mcp import McpServer
from tests.deadlines import DEADLINE_S
from tests.unit.testing.talking import (
    CHAT,
    connected,
    one_answer,
    parse_events,
    post,
    read_for,
    read_with_h11,
    tls_contexts,
)

Run = Callable[[Coroutine[Any, Any, None]], None]
RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


class Asking:
    """A plain client of the standard library."""

    def __init__(self, llm: ThreadedLLM) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", llm.port, timeout=DEADLINE_S)

    def __call__(
        self, path: str, fields: Any = None, method: str = "POST", **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, None if fields is None else json.dumps(fields), named)
        response = self.connection.getresponse()
        return response, response.read()


def test_everything_is_exported() -> None:
    """`breakloop.testing` is the public door."""
    assert breakloop.testing.StandInLLM is StandInLLM
    assert breakloop.testing.FakeClock is FakeClock
    for name in breakloop.testing.__all__:
        assert getattr(breakloop.testing, name) is not None


def test_every_dialect_answers_a_growing_conversation() -> None:
    """One connection, all dialects, whole and streamed."""
    with StandInLLM.in_thread() as llm:
        ask = Asking(llm)
        for dialect in ("openai_chat", "openai_responses", "anthropic_messages", "gemini"):
            talk = Conversation(dialect=dialect).work(3)
            llm.next(say("All is well."))
            response, body = ask(PATHS[dialect], talk.request())
            assert (response.status, response.headers["content-type"].partition(";")[0]) == (200, "application/json")
            assert b"All is well." in body
            llm.next(call_tool("read_file", {"path": "a"}, text="All is well."))
            path = PATHS[dialect]
            if dialect == "gemini":
                path = path.replace(":generate", ":streamGenerate") + "?alt=sse"
            response, body = ask(path, talk.request(stream=True))
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["transfer-encoding"] == "chunked"
            assert len(parse_events(body)) >= 4
            assert b"read_file" in body
        assert llm.llm.opened == 1
        assert llm.malformed == []
        ask.connection.close()


def test_other_endpoints() -> None:
    with StandInLLM.in_thread() as llm:
        ask = Asking(llm)
        assert json.loads(ask("/v1/models", method="GET")[1])["object"] == "list"
        assert json.loads(ask("/v1/embeddings", {"input": "x"})[1])["data"][0]["index"] == 0
        assert json.loads(ask("/v1/messages/count_tokens", {"messages": []})[1]) == {"input_tokens": 4}
        assert json.loads(ask("/readyz", method="GET")[1])["path"] == "/readyz"
        response, body = ask(CHAT, chat_request(), method="HEAD")
        assert (response.status, body) == (200, b"")
        ask.connection.close()


def test_mcp_from_the_handshake_to_the_end() -> None:
    """The script is for tool calls; the rest does not use it up."""
    with StandInLLM.in_thread(tools={"add": lambda given: str(given["a"] + 1)}) as llm:
        ask = Asking(llm)
        llm.next(say("scripted"))
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
        response, _ = ask("/mcp", hello)
        session = {"mcp_session_id": response.headers["mcp-session-id"]}
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert ask("/mcp", told, **session)[0].status == 202
        listed = json.loads(ask("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **session)[1])
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["add"]
        texts = [
            json.loads(ask("/mcp", mcp_call("add", {"a": 1}), **session)[1])["result"]["content"][0]["text"]
            for _ in range(2)
        ]
        assert texts == ["scripted", "2"]
        assert ask("/mcp", method="DELETE", **session)[0].status == 204
        assert ask("/mcp", mcp_call("add"), **session)[0].status == 404
        assert [request.is_housekeeping for request in llm.requests] == [True, True, True, False, False, True, False]
        ask.connection.close()


def test_answers_are_the_same_every_time() -> None:
    """Ids, times and counts come from counters; the clock may be given."""

    def answers(**options: Any) -> list[bytes]:
        with StandInLLM.in_thread(**options) as llm:
            ask = Asking(llm)
            found = [ask(CHAT, chat_request("x"))[1] for _ in range(2)]
            ask.connection.close()
            return found

    assert answers() == answers()
    assert [json.loads(body)["created"] for body in answers()] == [1_800_000_001, 1_800_000_002]
    assert [json.loads(body)["created"] for body in answers(clock=FakeClock(5.5))] == [5, 5]


def test_a_callable_answers_too() -> None:
    with StandInLLM.in_thread(respond=lambda request: say(f"number {request.number}"), default=say("x")) as llm:
        ask = Asking(llm)
        llm.script([say("queued"), fail(503, retry_after=7)])
        assert llm.llm.left == 2
        assert b"queued" in ask(CHAT, {})[1]
        response, _ = ask(CHAT, {})
        assert (response.status, response.headers["retry-after"]) == (503, "7")
        assert b"number 3" in ask(CHAT, {})[1]
        llm.llm.respond = None
        assert llm.llm.respond is None
        assert b'"content":"x"' in ask(CHAT, {})[1]
        ask.connection.close()


async def what_comes(answer: Answer, *, stream: bool = True) -> tuple[bytes, BaseException | None, StandInLLM]:
    """Everything a raw client gets, and how the connection ended."""
    async with StandInLLM() as llm:
        llm.next(answer)
        got = b""
        error: BaseException | None = None
        async with connected(llm.port, post(CHAT, {"stream": stream})) as (reader, _):
            try:
                while data := await asyncio.wait_for(reader.read(65536), DEADLINE_S):
                    got += data
            except ConnectionError as ended:
                error = ended
        return got, error, llm


@RUNNERS
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("place", "chunks"),
    [({"at": "start"}, None), ({"at": "head"}, 0), ({"at": 2}, 2), ({"at": 2, "mid_chunk": True}, 2)],
)
def test_connections_cut_short(run: Run, reset: bool, place: Any, chunks: int | None) -> None:
    """Closed or reset: before the head, after it, between chunks, in the middle of one."""

    async def main() -> None:
        got, error, llm = await what_comes(say("one two three").cut(**place, reset=reset))
        assert isinstance(error, ConnectionResetError) is reset
        assert llm.requests[0].outcome == "cut"
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK") is (chunks is not None)
        assert body.count(b"}\n\n\r\n") == (chunks or 0)
        assert b"\r\n0\r\n" not in body
        assert llm.requests[0].chunks_sent == (chunks or 0)
        if "mid_chunk" in place:
            assert not body.endswith(b"\r\n")

    run(main())


@RUNNERS
def test_cut_after_some_bytes(run: Run) -> None:
    async def main() -> None:
        for size in (0, 1, 17, 300):
            got, _, llm = await what_comes(cut(after_bytes=size), stream=False)
            assert (len(got), llm.requests[0].outcome) == (size, "cut")

    run(main())


@RUNNERS
@pytest.mark.parametrize(("place", "chunks"), [("start", None), ("head", 0), (2, 2)])
def test_stalls(run: Run, place: Any, chunks: int | None) -> None:
    """Nothing comes after the place, until the client leaves: then the connection is free, and that is recorded."""

    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(say("one two three").stall(place))
            async with connected(llm.port, post(CHAT, {"stream": True})) as (reader, _):
                got = await read_for(reader, 0.05)
                assert got.startswith(b"HTTP/1.1 200") is (chunks is not None)
                assert got.count(b"\ndata: ") == (chunks or 0)
                assert llm.requests[0].outcome == "answering"
            assert (await llm.wait_for_disconnect()).outcome == "aborted"

    run(main())


def test_a_stall_may_end_by_itself() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(say("x").stall("start", for_s=0.01), say("x").stall("head", for_s=0.01), stall(for_s=0.01))
            async with connected(llm.port) as (reader, writer):
                for _ in range(3):
                    writer.write(post(CHAT))
                    await one_answer(reader)

    asyncio.run(main())


def test_nonsense_and_raw_bytes() -> None:
    async def main() -> None:
        got, error, _ = await what_comes(nonsense(b"\x00\x01 no HTTP"))
        assert (got, error) == (b"\x00\x01 no HTTP", None)
        got, _, llm = await what_comes(raw([b"HTTP/1.1 200 OK\r\n", b"content-length: 0\r\n\r\n"]))
        assert got == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        assert llm.requests[0].outcome == "sent"

    asyncio.run(main())


def test_other_framings_over_the_wire() -> None:
    """What a client of the standard library makes of them."""
    with StandInLLM.in_thread() as llm:
        text = "one two three"
        for answer in (
            say(text).framed("close"),
            say(text).http10(),
            say(text).closing(),
            say(text).framed("length"),
            say(text).with_trailers(("x-sum", "1")),
            say(text).pieces_of(3),
            say(text).realistic(),
        ):
            ask = Asking(llm)
            llm.next(answer)
            response, body = ask(CHAT, {"stream": True})
            assert body.endswith(b"data: [DONE]\n\n")
            assert b" three" in body
            assert response.version == (10 if answer.manner.version == "1.0" else 11)
            ask.connection.close()


def test_paced_chunks_come_one_by_one() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(say(chunks=["x"] * 8).paced(0.005))
            loop = asyncio.get_running_loop()
            begun = loop.time()
            async with connected(llm.port, post(CHAT, {"stream": True})) as (reader, _):
                await reader.readuntil(b"0\r\n\r\n")
            assert loop.time() - begun >= 0.05  # 10 pauses between 11 events
            assert llm.requests[0].chunks_sent == 11

    asyncio.run(main())


@RUNNERS
def test_stepping(run: Run) -> None:
    """A chunk is there before the next is released; the head needs no release."""

    async def main() -> None:
        async with StandInLLM() as llm:
            step = llm.stepped(say(chunks=["a", "b"]))
            async with connected(llm.port, post(CHAT, {"stream": True})) as (reader, _):
                await reader.readuntil(b"\r\n\r\n")
                for number in range(1, 6):
                    assert step.sent == number - 1
                    assert await step.release() == number
                    await reader.readuntil(b"\n\n\r\n")
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(reader.readexactly(1), 0.005)
                    if number == 4:
                        break
                await step.finish()
                assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    run(main())


def test_stepping_from_another_thread() -> None:
    with StandInLLM.in_thread() as llm:
        step = llm.stepped(say(chunks=["a", "b"]))
        connection = http.client.HTTPConnection("127.0.0.1", llm.port, timeout=DEADLINE_S)
        connection.request("POST", CHAT, json.dumps({"stream": True}))
        response = connection.getresponse()
        for number in range(1, 4):
            assert step.release() == number
            line = response.readline()
            assert line.startswith(b"data: {")
            assert response.readline() == b"\n"
            assert step.sent == number
        step.finish()
        assert response.read().endswith(b"data: [DONE]\n\n")
        connection.close()


def test_from_another_thread_a_leaving_client_is_seen() -> None:
    with StandInLLM.in_thread() as llm:
        llm.next(stall("head"), stall())
        connection = http.client.HTTPConnection("127.0.0.1", llm.port, timeout=DEADLINE_S)
        connection.request("POST", CHAT, "{}")
        response = connection.getresponse()
        assert llm.wait_for_requests().path == CHAT
        assert llm.open == 1
        response.close()
        connection.close()
        assert llm.wait_for_disconnect().outcome == "aborted"
        assert llm.aborted == llm.requests
        with pytest.raises(TimeoutError):
            llm.wait_until(lambda: False, timeout_s=0.001)
        again = http.client.HTTPConnection("127.0.0.1", llm.port, timeout=DEADLINE_S)
        again.request("POST", CHAT, "{}")
        llm.wait_for_requests(2)
        llm.resume()
        assert again.getresponse().status == 200
        again.close()


@RUNNERS
def test_tls(run: Run, tmp_path: Path) -> None:
    """An answer, a stream cut without a goodbye, and one that ends properly."""
    server, client = tls_contexts(tmp_path)

    async def main() -> None:
        async with StandInLLM(tls=server) as llm:
            assert llm.url == f"https://127.0.0.1:{llm.port}"
            async with connected(llm.port, post(CHAT), tls=client) as (reader, _):
                head, body = await one_answer(reader)
                assert head.startswith(b"HTTP/1.1 200 OK")
                assert json.loads(body)["object"] == "chat.completion"
            llm.next(say("one two").framed("close"), say("one two").framed("close").cut(2))
            for ending in (b"[DONE]\n\n", b"null}]"):
                async with connected(llm.port, post(CHAT, {"stream": True}), tls=client) as (reader, _):
                    got = b""
                    try:
                        while data := await reader.read(65536):
                            got += data
                    except (ssl.SSLError, ConnectionError):
                        assert ending != b"[DONE]\n\n"
                    assert ending in got[-120:]

    run(main())


def test_framing_of_a_whole_answer_as_h11_reads_it() -> None:
    async def main() -> None:
        for answer in (say("one two"), say("one two").compressed("gzip", forced=True), fail(500), call_tool("f")):
            got, _, _ = await what_comes(answer.closing())
            response, body, _ = read_with_h11(got, closed=True)
            assert response.status_code == answer.status
            assert body

    asyncio.run(main())


def test_many_clients_at_once() -> None:
    """A load target: 300 paced streams side by side, all complete."""

    async def main() -> None:
        async with StandInLLM(default=say(chunks=["x"] * 5).paced(0.01)) as llm:

            async def one() -> int:
                async with connected(llm.port, post(CHAT, {"stream": True})) as (reader, _):
                    return (await reader.readuntil(b"\r\n0\r\n\r\n")).count(b"data: ")

            assert await asyncio.gather(*(one() for _ in range(300))) == [8] * 300
            assert {request.outcome for request in llm.requests} == {"sent"}
            assert llm.opened == 300

    uvloop.run(main())


def test_an_mcp_server_of_another_age() -> None:
    with StandInLLM.in_thread() as llm:
        llm.llm.mcp = McpServer(versions=("2025-03-26",))
        ask = Asking(llm)
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
        assert json.loads(ask("/mcp", hello)[1])["result"]["protocolVersion"] == "2025-03-26"
        ask.connection.close()
