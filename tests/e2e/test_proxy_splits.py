"""However an upstream's bytes are cut up on their way, the client gets the same bytes and the same is read from them.
Over real sockets, but in one process, so that every piece is known to arrive alone."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple, cast

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from breakloop.model.call import Answer, Usage
from breakloop.testing import StandInLLM, call_tool
from breakloop.testing.answer import Framing
from tests.e2e.proxied import STREAMING, stream_request
from tests.e2e.stage import gateway, turns_until

pytestmark = pytest.mark.e2e

WHAT = call_tool("read_file", {"path": "ä.txt", "lines": [1, 2]}, text="Let me see.").with_usage(11, 7)
FRAMINGS = ("chunked", "close", "length", "gzip")


class Outcome(NamedTuple):
    """What a client saw, and what was read along."""

    sent: bytes
    answer: Answer


class Upstream(asyncio.Protocol):
    """Answers every request with the pieces that it is given, one at a time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, _, content = self._heard.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length is not None and len(content) == int(length[1]):
            self._heard = b""
            self._stage.task = asyncio.get_running_loop().create_task(self._stage.play(self._transport))


class Stage:
    """A gateway and an upstream in this loop."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncIterator[Stage]:
        upstream = await asyncio.get_running_loop().create_server(lambda: Upstream(self), "127.0.0.1", 0)
        async with gateway(folder, upstream.sockets[0].getsockname()[1]) as self._gateway:
            yield self
        upstream.close()

    async def play(self, transport: asyncio.Transport) -> None:
        """Send the pieces, each when the one before has arrived at the gateway."""
        arrived = self._gateway.from_upstream
        for number, piece in enumerate(self._pieces, 1):
            transport.write(piece)
            await turns_until(lambda count=number: len(arrived) >= count)  # type: ignore[misc]
        transport.close()

    async def ask(self, request: bytes, *pieces: bytes) -> Outcome:
        """Ask once; the upstream answers so."""
        self._pieces = [piece for piece in pieces if piece]
        self._gateway.forget()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)
        writer.write(request)
        sent = await reader.read()
        writer.close()
        assert self.task is not None
        await self.task
        assert self._gateway.from_upstream == self._pieces, "the pieces did not arrive as they were sent"
        (answer,) = self._gateway.settled
        sent = re.sub(rb"(?<=X-Breakloop-Request-Id: )\S+", b"-", sent)
        return Outcome(sent if b"\r\nTransfer-Encoding: chunked" in b"".join(pieces) else without_chunks(sent), answer)


def without_chunks(sent: bytes) -> bytes:
    """Head and content of an answer; where the chunks are ours, their number depends on the cuts."""
    head, _, rest = sent.partition(b"\r\n\r\n")
    if b"\r\ntransfer-encoding: chunked" not in head:
        return sent
    content = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            assert rest == b"\r\n"
            return head + content
        content += rest[: int(size, 16)]
        assert rest[int(size, 16) :].startswith(b"\r\n")
        rest = rest[int(size, 16) + 2 :]


@functools.cache
def recorded(dialect: str, framing: Framing | Literal["gzip"]) -> tuple[bytes, bytes]:
    """A request of a dialect, and the bytes that the stand-in answers it with, head and all."""

    async def record() -> tuple[bytes, bytes]:
        async with StandInLLM() as llm:
            what = WHAT.streamed().closing()
            llm.next(what.compressed("gzip", forced=True) if framing == "gzip" else what.framed(framing))
            request = stream_request(dialect, "Connection: close")
            reader, writer = await asyncio.open_connection("127.0.0.1", llm.port)
            writer.write(request)
            answered = await reader.read()
            writer.close()
            return request, answered

    return asyncio.run(record())


def check_read(dialect: str, outcome: Outcome) -> None:
    """What was read is what the stand-in was told to say."""
    answer = outcome.answer
    assert (answer.status, answer.complete) == (200, True)
    assert answer.text == "Let me see."
    if dialect == "mcp":
        return
    if dialect != "openai_completions":
        assert [call.name for call in answer.calls] == ["read_file"]
    if dialect not in {"openai_chat", "openai_completions"}:  # those tell it only where it was asked for
        assert isinstance(answer.usage, Usage)
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)


@pytest.mark.parametrize(
    ("dialect", "framing", "first"),
    [
        *((dialect, framing, 1) for dialect in STREAMING for framing in FRAMINGS),
        *(("openai_chat", "chunked", first) for first in range(2, 8)),
    ],
)
def test_cut_in_two_at_every_byte(tmp_path: Path, dialect: str, framing: str, first: int) -> None:
    """Head, framing and events cut in two, at every place (every seventh, where the same code has read another; that
    every dialect is read alike at every place is in `property/test_answers.py`) (D-1)."""
    request, answered = recorded(dialect, framing)

    async def acts() -> None:
        async with Stage().open(tmp_path) as stage:
            whole = await stage.ask(request, answered)
            check_read(dialect, whole)
            for at in range(first, len(answered), 7):
                assert await stage.ask(request, answered[:at], answered[at:]) == whole, at

    uvloop.run(acts())


@pytest.mark.parametrize("dialect", STREAMING)
def test_byte_by_byte(tmp_path: Path, dialect: str) -> None:
    """Every byte alone (D-1)."""
    request, answered = recorded(dialect, "chunked")

    async def acts() -> None:
        async with Stage().open(tmp_path) as stage:
            whole = await stage.ask(request, answered)
            assert await stage.ask(request, *(answered[at : at + 1] for at in range(len(answered)))) == whole

    uvloop.run(acts())


@given(
    st.sampled_from([(dialect, framing) for dialect in STREAMING for framing in FRAMINGS]),
    st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=12),
)
@example(("openai_chat", "chunked"), [0.5, 0.5001, 0.5002])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_anywhere(tmp_path: Path, which: tuple[str, str], places: list[float]) -> None:
    """Into any number of pieces, at any place (D-1)."""
    request, answered = recorded(*which)
    cuts = sorted({0, len(answered), *(int(place * len(answered)) for place in places)})

    async def acts() -> None:
        async with Stage().open(tmp_path) as stage:
            whole = await stage.ask(request, answered)
            pieces = [answered[start:stop] for start, stop in itertools.pairwise(cuts)]
            assert await stage.ask(request, *pieces) == whole

    uvloop.run(acts())


def test_what_is_passed_is_what_was_sent(tmp_path: Path) -> None:
    """Chunks pass as they are, byte for byte, with their framing (D-1)."""
    request, answered = recorded("openai_chat", "chunked")

    async def acts() -> None:
        async with Stage().open(tmp_path) as stage:
            outcome = await stage.ask(request, answered)
            assert outcome.sent.partition(b"\r\n\r\n")[2] == answered.partition(b"\r\n\r\n")[2]

    uvloop.run(acts())
