"""A connection: requests one after the other, each answered before the next, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from breakloop.testing.answer import body, raw, say, stall
from breakloop.testing.llm import StandInLLM
from tests.unit.testing.talking import connected, one_answer, post

Run = Callable[[Coroutine[Any, Any, None]], None]
RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


@RUNNERS
def test_a_connection_serves_many_requests(run: Run) -> None:
    async def main() -> None:
        async with StandInLLM() as llm, connected(llm.port) as (reader, writer):
            for number in range(3):
                writer.write(post(f"/{number}"))
                _, told = await one_answer(reader)
                assert f'"path":"/{number}"'.encode() in told
            assert [seen.connection for seen in llm.requests] == [1, 1, 1]
            assert (llm.opened, llm.closed, llm.open) == (1, 0, 1)

    run(main())


@RUNNERS
def test_requests_behind_each_other_are_answered_in_order(run: Run) -> None:
    """Sent in one go, with a slow answer first."""

    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(body(b"1").delayed(0.01), body(b"2"), body(b"3"))
            async with connected(llm.port, post("/a") + post("/b") + post("/c")) as (reader, _):
                assert [(await one_answer(reader))[1] for _ in range(3)] == [b"1", b"2", b"3"]

    run(main())


def test_a_client_is_told_to_continue() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            whole = post("/a", None, "Expect: 100-continue", body=b"abc")
            async with connected(llm.port, whole[:-3]) as (reader, writer):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(whole[-3:])
                _, told = await one_answer(reader)
                assert b'"body_bytes":3' in told

    asyncio.run(main())


@RUNNERS
def test_an_answer_before_the_body(run: Run) -> None:
    """The rest of the body is read, and the connection goes on."""

    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(body(b"no", status=413).early())
            async with connected(llm.port, post("/a", body=b"x" * 1000)[:-900]) as (reader, writer):
                head, _ = await one_answer(reader)
                assert head.startswith(b"HTTP/1.1 413 ")
                assert (llm.requests[0].complete, llm.requests[0].outcome) == (False, "sent")
                writer.write(b"x" * 900 + post("/b"))
                _, told = await one_answer(reader)
                assert b'"path":"/b"' in told
                assert llm.requests[0].body == b"x" * 1000

    run(main())


def test_an_answer_before_the_body_that_lasts_longer_than_it() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            gate = llm.stepped(body([b"1", b"2"]).early())
            async with connected(llm.port, post("/a", body=b"abc")[:-3]) as (reader, writer):
                await gate.release()
                writer.write(b"abc" + post("/b"))
                await llm.wait_until(lambda: llm.requests[0].complete)
                assert llm.request_count == 1
                await gate.finish()
                await llm.wait_for_requests(2)
                assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"1\r\n1\r\n1\r\n2\r\n0\r\n\r\n")
                await one_answer(reader)

    asyncio.run(main())


def test_a_body_that_is_never_read() -> None:
    """The client's sending comes to a stop: nobody takes what it sends."""

    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(stall().early(drain=False))
            async with connected(llm.port, post("/a", body=b"x" * 50_000_000)) as (_, writer):
                await llm.wait_until(lambda: llm.request_count == 1)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(writer.drain(), 0.05)
                assert len(llm.requests[0].body) < 10_000_000

    asyncio.run(main())


@RUNNERS
def test_a_client_that_does_not_read_holds_the_answer_up(run: Run) -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(body([b"x" * 100_000] * 500))
            async with connected(llm.port) as (reader, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(post("/a"))
                await llm.wait_for_requests()
                for _ in range(20):
                    await asyncio.sleep(0)
                assert llm.requests[0].chunks_sent < 500
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                total = 0
                while total < 50_000_000:
                    total += len(await reader.read(1_000_000))
                await llm.wait_until(lambda: llm.requests[0].outcome == "sent")
                assert llm.requests[0].chunks_sent == 500

    run(main())


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", post("/x") + b"nonsense\r\n\r\n"])
def test_what_is_no_http_is_refused_and_noted(sent: bytes) -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(say("x"))
            async with connected(llm.port, sent) as (reader, _):
                answer = await reader.read(-1)
                assert answer.endswith(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            assert len(llm.malformed) == 1
            assert llm.malformed[0].startswith("connection 1: ")

    asyncio.run(main())


def test_a_client_that_half_closes_has_left() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(stall())
            async with connected(llm.port, post("/x")) as (reader, writer):
                await llm.wait_for_requests()
                writer.write_eof()
                assert await reader.read(-1) == b""
            assert (await llm.wait_for_disconnect()).outcome == "aborted"

    asyncio.run(main())


def test_a_client_that_leaves_while_it_sends() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            async with connected(llm.port, post("/x", body=b"abc")[:-1]):
                await llm.wait_until(lambda: llm.request_count == 1)
            await llm.wait_until_idle()
            assert (llm.requests[0].outcome, llm.requests[0].complete) == ("aborted", False)

    asyncio.run(main())


def test_after_raw_bytes_the_connection_may_stay_open() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(raw(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nleft over", close=False))
            async with connected(llm.port, post("/x")) as (reader, writer):
                assert await reader.readuntil(b"left over")
                writer.write(post("/y"))
                await one_answer(reader)
                assert llm.opened == 1

    asyncio.run(main())
