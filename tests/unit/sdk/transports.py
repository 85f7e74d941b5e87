"""One suite for the transports of httpx and httpx2: `module` is one of the two packages, `kit` ours for it."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer
from breakloop.sdk.guard import Guard
from breakloop.sdk.toolkit import toolkit_of
from tests.builders import bundle, exact, policy

URL = "https://api.openai.com/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "again"}]}
SAID = {"choices": [{"message": {"role": "assistant", "content": "hi"}}], "usage": {"prompt_tokens": 5}}
EVENTS = [b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n', b"data: [DONE]\n\n"]


class Suite:
    """The tests; a subclass says which package."""

    module: Any
    kit: Any

    def guard(self, clock: FakeClock, given: Any = None) -> Guard:
        guard = Guard(given, clock=clock)
        self.settled: list[Answer] = []
        backend = toolkit_of(guard).backend
        settle = backend.settle

        def heard(decision: Any, answer: Answer) -> None:
            self.settled.append(answer)
            settle(decision, answer)

        backend.settle = heard  # type: ignore[method-assign]
        return guard

    def client(self, guard: Guard, handle: Any = None) -> Any:
        self.seen: list[Any] = []

        def answer(request: Any) -> Any:
            self.seen.append(request)
            return handle(request) if handle else self.module.Response(200, json=SAID)

        return self.module.Client(transport=self.kit.GuardTransport(self.module.MockTransport(answer), guard=guard))

    def test_a_loop_is_answered_in_the_providers_stead(self, clock: FakeClock) -> None:
        """Five go out, the sixth does not; what was said is known (D-6) (P-3)."""
        with self.client(self.guard(clock)) as client:
            for _ in range(5):
                assert client.post(URL, json=BODY).json() == SAID
            denied = client.post(URL, json=BODY)
            assert client.post(URL, json={**BODY, "model": "n"}).status_code == 200
        assert (denied.status_code, denied.headers["x-should-retry"]) == (429, "false")
        assert denied.json()["error"]["code"] == "recursive_loop_detected"
        assert len(self.seen) == 6
        assert [(one.text, one.complete) for one in self.settled] == [("hi", True)] * 6

    def test_streams_pass_as_they_come(self, clock: FakeClock) -> None:
        """Piece by piece; left early is left early (P-3, D-6)."""

        def stream(_request: Any) -> Any:
            def pieces() -> Iterator[bytes]:
                yield from EVENTS

            return self.module.Response(200, headers={"content-type": "text/event-stream"}, content=pieces())

        with self.client(self.guard(clock), stream) as client:
            with client.stream("POST", URL, json={**BODY, "stream": True}) as answer:
                assert list(answer.iter_raw()) == EVENTS
            with client.stream("POST", URL, json={**BODY, "stream": True}) as answer:
                assert next(answer.iter_raw()) == EVENTS[0]
        assert (self.settled[0].text, self.settled[0].complete) == ("hi", True)
        assert self.settled[1].status == CLIENT_LEFT

    def test_failures_do_not_count(self, clock: FakeClock) -> None:
        """No answer, or a 503 (LD-6)."""

        def fail(_request: Any) -> Any:
            if len(self.seen) % 2:
                raise self.module.ConnectError("gone")
            return self.module.Response(503)

        with self.client(self.guard(clock), fail) as client:
            for _ in range(4):
                with pytest.raises(self.module.ConnectError):
                    client.post(URL, json=BODY)
                assert client.post(URL, json=BODY).status_code == 503
        assert [one.status for one in self.settled] == [NO_ANSWER, 503] * 4

    def test_a_note_is_put_into_the_request(self, clock: FakeClock) -> None:
        """With the right length, and the SDK's own fields (LD-5)."""
        guard = self.guard(clock, bundle(policy("p", loop=exact(2, action="steer"))))
        with self.client(guard) as client:
            for _ in range(2):
                client.post(URL, json=BODY, headers={"Authorization": "Bearer k"})
        first, second = self.seen
        assert json.loads(first.content) == BODY
        assert "[breakloop] You have sent" in json.loads(second.content)["messages"][-1]["content"]
        assert second.headers["content-length"] == str(len(second.content))
        assert second.headers["authorization"] == "Bearer k"

    def test_a_landed_request_has_its_tools_switched_off(self, clock: FakeClock) -> None:
        """As at the gateway (LD-10)."""
        guard = self.guard(clock, bundle(policy("p", loop=exact(2, action="land"))))
        asked = {**BODY, "tools": [{"type": "function", "function": {"name": "search"}}]}
        with self.client(guard) as client:
            for _ in range(3):
                client.post(URL, json=asked)
            assert client.post(URL, json=asked).status_code == 429
        assert [json.loads(one.content).get("tool_choice") for one in self.seen] == [None, "none", "none"]

    def test_uploads_and_other_requests_pass_unread(self, clock: FakeClock) -> None:
        """Bodies of unknown length are not gathered, and no loop is seen where there is none (P-3, Y-2)."""

        def pieces() -> Iterator[bytes]:
            yield b"one"
            yield b"two"

        with self.client(self.guard(clock)) as client:
            for _ in range(8):
                client.get("https://example.com/")
                client.post("https://example.com/up", content=pieces())
        assert len(self.seen) == 16
        assert self.seen[1].read() == b"onetwo"

    def test_packed_answers(self, clock: FakeClock) -> None:
        """Unpacked beside the client, who gets what he got (D-6)."""
        packed = gzip.compress(json.dumps(SAID).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        with self.client(
            self.guard(clock),
            lambda _request: self.module.Response(200, headers=headers, content=iter([packed])),
        ) as client:
            assert client.post(URL, json=BODY).json() == SAID
        assert self.settled[0].text == "hi"

    def test_async_is_the_same(self, clock: FakeClock) -> None:
        """In an event loop (P-3)."""
        guard = self.guard(clock)
        seen: list[Any] = []

        async def answer(request: Any) -> Any:
            seen.append(request)
            if len(seen) == 6:
                raise self.module.ReadError("gone")

            async def pieces() -> AsyncIterator[bytes]:
                for piece in EVENTS:
                    yield piece

            return self.module.Response(200, headers={"content-type": "text/event-stream"}, content=pieces())

        async def agent() -> Any:
            transport = self.kit.AsyncGuardTransport(self.module.MockTransport(answer), guard=guard)
            async with self.module.AsyncClient(transport=transport) as client:
                for _ in range(5):
                    async with client.stream("POST", URL, json={**BODY, "stream": True}) as got:
                        assert [piece async for piece in got.aiter_raw()] == EVENTS
                denied = await client.post(URL, json={**BODY, "stream": True})
                with pytest.raises(self.module.ReadError):
                    await client.post(URL, json={**BODY, "model": "n"})
                return denied

        denied = asyncio.run(agent())
        assert denied.status_code == 429
        assert len(seen) == 6
        assert [one.text for one in self.settled] == ["hi"] * 5 + [""]
        assert self.settled[5].status == NO_ANSWER

    def test_a_throttle_waits(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the request goes out, blocking and on an event loop (LD-5)."""
        slept: list[tuple[str, float]] = []

        async def asleep(seconds: float) -> None:
            slept.append(("async", seconds))

        monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(("sync", seconds)))
        monkeypatch.setattr(asyncio, "sleep", asleep)
        guard = self.guard(clock, bundle(policy("p", loop=exact(2, action="throttle"))))
        with self.client(guard) as client:
            for _ in range(2):
                assert client.post(URL, json=BODY).status_code == 200

        async def later() -> None:
            answer = self.module.MockTransport(lambda _request: self.module.Response(200, json=SAID))
            transport = self.kit.AsyncGuardTransport(answer, guard=guard)
            async with self.module.AsyncClient(transport=transport) as client:
                await client.post(URL, json=BODY)

        asyncio.run(later())
        assert slept == [("sync", 0.2), ("async", 0.3)]

    def test_without_anything_it_makes_its_own(self) -> None:
        """`transport=GuardTransport()` is all that is needed (P-3)."""
        own = self.kit.GuardTransport()
        assert isinstance(own.guard, Guard)
        own.close()

        async def later() -> None:
            other = self.kit.AsyncGuardTransport()
            assert isinstance(other.guard, Guard)
            await other.aclose()

        asyncio.run(later())
