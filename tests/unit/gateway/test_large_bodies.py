"""What one request may cost in one turn of the event loop, counted: bytes that are decompressed, counted or decoded, and
lines of Python. The rest of its work is done in later turns, after that of others, or left out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from breakloop.dialects import content
from breakloop.gateway.connection import Connection
from tests.builders import CHAT, bundle, policy, tail
from tests.growth import lines_run
from tests.unit.gateway.fake_client import FakeTransport, get
from tests.unit.gateway.fake_upstream import Proxy

MB = 1024 * 1024
GUARDED = bundle(policy("p", prefix="/", loop=[tail(), {"similarity": "steps"}]))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": lambda body: brotli.compress(body, quality=4),
    "zstd": zstandard.ZstdCompressor().compress,
}


def asks(body: bytes, *fields: str) -> bytes:
    return get(CHAT, f"Content-Length: {len(body)}", *fields, method="POST") + body


def chat(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


class Work:
    """The bytes that are counted and unpacked, in each turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = [0]
        for owner, name in ((content, "_separators"), (content._OutsideStrings, "add"), (content.ValueCounter, "add")):
            monkeypatch.setattr(owner, name, self._noting(getattr(owner, name)))

    def _noting(self, done: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            self.turns[-1] += len(given[-1])
            return done(*given)

        return noted

    def run(self, proxy: Proxy) -> None:
        """Let the proxy work until it has connected to the upstream."""
        for _ in range(1000):
            if proxy.pools["up"].made:
                return
            self.turns.append(0)
            proxy.loop.turn()
        raise AssertionError("not forwarded")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("coding", ["", *PACK])
def test_a_turn_has_a_bounded_part_of_a_large_body(coding: str, work: Work) -> None:
    """A body of 6 MB is decompressed and counted piece by piece, also if the commas in its texts have to be told from
    others (Y-2)."""
    plain = chat("".join(f"[{number}, {{{number * 7919 % 10007}}}], " for number in range(300_000)))
    body, fields = (PACK[coding](plain), [f"Content-Encoding: {coding}"]) if coding else (plain, [])
    with Proxy(GUARDED) as proxy:
        sent = asks(body, *fields)
        for at in range(0, len(sent), 256 * 1024):
            work.turns.append(0)
            proxy.connection.data_received(sent[at : at + 256 * 1024])
        work.run(proxy)
        assert proxy.world.engine.tally.unjudged == 1  # too many commas for one message of this size
        assert sum(work.turns) > len(plain)
        # A step of decompressing, whose pieces are counted twice, or the message of the decision.
        assert max(work.turns) < 3 * MB, sorted(work.turns)[-5:]
        assert proxy.server.body_memory.held == len(body)  # the upstream has not answered
        assert (proxy.door.admission._unpacked, proxy.world.descriptors.counted) == (None, None)


def slow_request() -> bytes:
    return asks(gzip.compress(chat("a, [" * MB), 1), "Content-Encoding: gzip")


def test_other_requests_are_served_between_two_steps() -> None:
    """A client with a small request does not wait until a large one is decompressed and counted (Y-2)."""
    with Proxy(GUARDED) as proxy:
        other = Connection(proxy.server)
        other.connection_made(FakeTransport())
        proxy.connection.data_received(slow_request())
        proxy.loop.turn(3)
        other.data_received(asks(chat("small")))
        proxy.loop.turn(3)
        (served,) = proxy.pools["up"].made
        assert b"small" in served.wire.sent


def test_a_request_of_a_client_that_left_is_given_up() -> None:
    """Between two steps: the rest is not decompressed, and nothing is decided (Y-2)."""
    with Proxy(GUARDED) as proxy:
        proxy.connection.data_received(slow_request())
        proxy.loop.turn(3)
        assert proxy.server.body_memory.held > 0
        proxy.connection.connection_lost(None)
        proxy.loop.turn(2)
        assert proxy.server.body_memory.held == 0
        assert (proxy.pools["up"].made, proxy.world.engine.tally.not_unpacked) == ([], {})


def test_a_fault_while_a_body_is_prepared_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is decided without, and counted as a fault (LD-7)."""

    def fails(*_: object) -> Any:
        raise RuntimeError("secret")

    with Proxy(GUARDED) as proxy:
        monkeypatch.setattr("breakloop.gateway.admission.unpack_steps", fails)
        proxy.connection.data_received(slow_request())
        proxy.loop.turn(6)
        assert len(proxy.pools["up"].made) == 1
        assert proxy.world.engine.tally.faults == 1


USER = '{"role":"user","content":"hi"}'
HOSTILE = {
    "null messages": f'{{"model":"m","messages":[{USER},' + "null," * 150_000 + f"{USER}]}}",
    "empty messages": f'{{"model":"m","messages":[{USER},' + "{}," * 150_000 + f"{USER}]}}",
    "tiny messages": f'{{"model":"m","messages":[{USER},' + f"{USER}," * 50_000 + f"{USER}]}}",
    "tool messages": f'{{"model":"m","messages":[{USER},' + '{"role":"tool","content":""},' * 50_000 + f"{USER}]}}",
    "empty parts": '{"model":"m","messages":[{"role":"user","content":[' + "[]," * 45_000 + '""]}]}',
    "surrogate": '{"model":"m","messages":[{"role":"user","content":"\\ud800"}],"metadata":{'
    + ",".join(f'"k{number}":1' for number in range(20_000))
    + "}}",
    "tools": f'{{"model":"m","messages":[{USER}],"tools":[' + '{"function":{"name":"a"}},' * 45_000 + "{}]}",
    "calls": f'{{"model":"m","messages":[{USER},{{"role":"assistant","tool_calls":['
    + '{"id":"c","function":{"name":"f","arguments":"{}"}},' * 9_000
    + f"{{}}]}},{USER}]}}",
    "nesting": f'{{"model":"m","messages":[{USER}],"metadata":' + "[" * 100_000 + "]" * 100_000 + "}",
    "escapes": '{"model":"m","messages":[{"role":"user","content":"' + "\\n" * 400_000 + '"}]}',
    "lines": '{"model":"m","messages":[{"role":"user","content":"' + "a\\n" * 400_000 + '"}]}',
    "actions": '{"model":"m","messages":[{"role":"user","content":"'
    + "Action: a\\nObservation: b\\n" * 40_000
    + '"}]}',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_turn_runs_much_python(name: str) -> None:
    """Whatever a body of half a megabyte is made of: what is read value by value has a limit in number (Y-2)."""
    with Proxy(GUARDED) as proxy:
        proxy.connection.data_received(asks(HOSTILE[name].encode()))
        lines = [lines_run(proxy.loop.turn) for _ in range(8)]
        assert len(proxy.pools["up"].made) == 1
        assert max(lines) < 120_000, lines


RESPONSES = {
    "reasoning": '{"type":"reasoning"},',
    "results": '{"type":"function_call_output","call_id":"c","output":""},',
}


@pytest.mark.parametrize("name", RESPONSES)
def test_no_more_items_are_decoded_than_the_last_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasoning between two messages of the Responses API is no message, and a thousand results are one (Y-2)."""
    number, decode = 0, content.decode

    def counted(raw: Any) -> Any:
        nonlocal number
        number += 1
        return decode(raw)

    monkeypatch.setattr(content, "decode", counted)
    body = f'{{"model":"m","input":[{USER},{RESPONSES[name] * 20_000}{USER}]}}'.encode()
    with Proxy(GUARDED) as proxy:
        proxy.send(get("/v1/responses", f"Content-Length: {len(body)}", method="POST") + body)
        proxy.loop.turn(10)
        assert len(proxy.pools["up"].made) == 1
    assert number < 3000
