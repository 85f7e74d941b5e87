"""Listening, stopping, and what can be seen."""

from __future__ import annotations

import asyncio

import pytest

from breakloop.clock import FakeClock
from breakloop.testing.answer import stall
from breakloop.testing.llm import REMEMBERED, StandInLLM
from tests.unit.testing.talking import connected, one_answer, post, seen


def test_it_listens_on_a_port_of_its_own_and_stops() -> None:
    async def main() -> None:
        server = StandInLLM()
        with pytest.raises(RuntimeError, match="not started"):
            _ = server.loop
        await server.stop()
        async with server:
            port = server.port
            assert server.url == f"http://127.0.0.1:{port}"
            async with StandInLLM() as other:
                assert other.port != port
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)
        again = StandInLLM(port=port)
        async with again:
            assert again.port == port

    asyncio.run(main())


def test_stopping_drops_what_is_open() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(stall())
            async with connected(llm.port, post("/x")) as (reader, _):
                await llm.wait_for_requests()
                await llm.stop()
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            assert (llm.opened, llm.closed, llm.open) == (1, 1, 0)
            assert [request.outcome for request in llm.requests] == ["aborted"]

    asyncio.run(main())


def test_what_is_seen_of_a_request() -> None:
    async def main() -> None:
        clock = FakeClock(100.0)
        async with StandInLLM(clock=clock) as llm:
            for path in ("/a", "/b"):
                async with connected(llm.port, post(path, {"x": 1}, "X-Odd:  two  words ")) as (reader, _):
                    await one_answer(reader)
                    clock.advance(5)
            first, second = llm.requests
            assert [(one.number, one.connection, one.received_at) for one in (first, second)] == [
                (1, 1, 100),
                (2, 2, 105),
            ]
            assert (b"X-Odd", b"two  words") in first.headers
            assert first.json() == {"x": 1}
            assert llm.request_count == 2

    asyncio.run(main())


def test_waiting_for_a_client_to_leave() -> None:
    """The proof that a proxy frees its upstream connection."""

    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(stall("head"), stall("head"))
            async with connected(llm.port, post("/1")) as (first, _):
                await first.readuntil(b"\r\n\r\n")
                async with connected(llm.port, post("/2")) as (second, _):
                    await second.readuntil(b"\r\n\r\n")
                    with pytest.raises(TimeoutError):
                        await llm.wait_for_disconnect(timeout_s=0.01)
                    assert llm.aborted == []
                left = await llm.wait_for_disconnect()
                assert (left.path, left.outcome) == ("/2", "aborted")
                assert llm.aborted == [left]
                assert [llm.is_connected(one) for one in llm.requests] == [True, False]
            assert (await llm.wait_for_disconnect(llm.requests[0])).path == "/1"
            await llm.wait_until_idle()
            assert (llm.opened, llm.closed, llm.open) == (2, 2, 0)

    asyncio.run(main())


def test_waiting_for_requests_counts_whole_ones() -> None:
    async def main() -> None:
        async with StandInLLM() as llm, connected(llm.port, post("/x", body=b"abc")[:-1]) as (_, writer):
            await llm.wait_until(lambda: llm.request_count == 1)
            with pytest.raises(TimeoutError):
                await llm.wait_for_requests(timeout_s=0.01)
            writer.write(b"c")
            assert (await llm.wait_for_requests()).body == b"abc"

    asyncio.run(main())


@pytest.mark.slow
def test_it_forgets_old_requests_but_counts_them() -> None:
    """As a target of a load test it must not grow."""
    server = StandInLLM()
    assert REMEMBERED >= 1000
    for number in range(REMEMBERED + 10):
        request = seen(f"/{number}")
        server.heard_head(request, None)  # type: ignore[arg-type]
    assert (server.request_count, len(server.requests), server.requests[0].path) == (REMEMBERED + 10, REMEMBERED, "/10")


def test_stalled_answers_can_be_resumed() -> None:
    async def main() -> None:
        async with StandInLLM() as llm:
            llm.next(stall())
            async with connected(llm.port, post("/x")) as (reader, _):
                await llm.wait_for_requests()
                llm.resume()
                assert (await one_answer(reader))[0].startswith(b"HTTP/1.1 200 ")

    asyncio.run(main())
