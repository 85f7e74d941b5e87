"""Compressed bodies at the decision service: judged by what is in them, or counted as what stays packed."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import uvloop
import zstandard

from breakloop.app import build
from breakloop.config.settings import Limits, Settings
from breakloop.gateway.http_request import Request
from breakloop.gateway.server import Server
from breakloop.model.call import Chat, Message
from breakloop.model.events import BODY_NOT_UNPACKED
from breakloop.observe.log import LogEvents
from breakloop.policy.descriptors import Descriptors
from tests.builders import CHAT, SECRET, Json, about, bundle, chat_body, exact, policy, request, user, world

MB = 1024 * 1024
BODY = chat_body(user("again"))
# The same body as clients with other settings send it: no two of these are the same bytes.
PACKED: list[tuple[str, bytes]] = [
    ("gzip", gzip.compress(BODY, 1, mtime=1)),
    ("gzip", gzip.compress(BODY, 9, mtime=2)),
    ("deflate", zlib.compress(BODY, 1)),
    ("br", brotli.compress(BODY, quality=1)),
    ("zstd", zstandard.ZstdCompressor(level=1).compress(BODY)),
    ("zstd", zstandard.ZstdCompressor(level=19, write_checksum=True).compress(BODY)),
]


def ask(coding: str, body: bytes, uri: str = CHAT, **more: Any) -> Request:
    return about(uri, "POST", {"authorization": "Bearer sk-one", "content-encoding": coding}, body=body, **more)


def test_compression_hides_no_loop() -> None:
    """Six times the same chat, never the same bytes, is a loop; the denial speaks the chat's dialect (C-9, LD-2)."""
    here = world()
    statuses = [here.door(ask(*packed)) for packed in PACKED]
    assert [reply.status for reply in statuses] == [200] * 5 + [429]
    content = json.loads(statuses[-1].body)
    assert content["detail"]["kind"] == "tail"
    assert content["error"]["code"] == "recursive_loop_detected"
    assert here.engine.tally.not_unpacked == {}


def test_plain_and_packed_are_one_loop() -> None:
    """`exact` sees the same JSON, packed, plain, in another order and through every door (C-9, LD-1)."""
    here = world(bundle(policy("p", loop=exact(4))))
    spelled = b'{"b": 1, "a": [2]}'
    packed = gzip.compress(b'{"a":[2],"b":1}')
    fields = {"x-original-uri": "/x", "x-original-method": "POST"}
    assert here.door(request(headers=fields, body=spelled)).status == 200
    assert here.door(request(headers={**fields, "content-encoding": "gzip"}, body=packed)).status == 200
    assert here.door(request("/v1/decision/envoy/x", {"content-encoding": "gzip"}, body=packed)).status == 200
    last = here.door(request("/v1/decision/nginx", {**fields, "content-encoding": "gzip"}, body=packed))
    assert last.status == 403


def test_a_field_that_came_twice_is_a_list() -> None:
    """Two lines of it mean the same as one with a comma (C-9)."""
    here = world()
    body = brotli.compress(gzip.compress(BODY))
    asked = ask("gzip", body, repeated=(("x-other", b"1"), ("content-encoding", b"br")))
    assert here.ask(asked, 6).status == 429
    assert here.engine.tally.not_unpacked == {}


@pytest.mark.parametrize(
    ("coding", "body", "reason"),
    [
        ("gzip", gzip.compress(BODY)[:-1], "broken"),
        ("zstd", gzip.compress(BODY), "broken"),
        ("compress", zlib.compress(BODY), "unknown_coding"),
        ("gzip,gzip,gzip,gzip", gzip.compress(BODY), "too_many_codings"),
        ("gzip", gzip.compress(bytes(8 * MB)), "ratio"),
        ("gzip", gzip.compress(b'{"model":"m","messages":[' + b"[]," * 60_000 + b"0]}"), "too_many_values"),
    ],
    ids=["cut off", "another coding", "unknown", "too many", "ratio", "values"],  # and not bytes with a time in them
)
def test_what_stays_packed(coding: str, body: bytes, reason: str) -> None:
    """`tail` does not apply, `exact` counts the bytes as they came; counted, and told without the body (C-9)."""
    here = world()
    assert here.ask(ask(coding, body), 7).status == 200
    assert here.engine.tally.not_unpacked == {reason: 7}
    assert here.named(BODY_NOT_UNPACKED) == [{"why": reason}] * 7
    here = world(bundle(policy("p", loop=exact(3))))
    assert here.ask(ask(coding, body), 3).status == 429


@pytest.mark.parametrize(("coding", "reason"), [("gzip", "broken"), ("compress", "unknown_coding")])
def test_a_false_field_hides_nothing(coding: str, reason: str) -> None:
    """Servers that do not unpack read plain JSON as it is, whatever is said about it, and so is it judged (C-9)."""
    here = world()
    assert here.ask(ask(coding, BODY), 6).status == 429
    assert here.engine.tally.not_unpacked == {reason: 6}


def test_the_limit_of_bodies_holds_for_what_comes_out() -> None:
    """Over it the body is not judged; the number is the door's, and `runtime` sets it (C-9, Y-2)."""
    here = world()
    here.door._admission.body_bytes = len(BODY) - 1
    assert here.ask(ask("gzip", gzip.compress(BODY)), 7).status == 200
    assert here.engine.tally.not_unpacked == {"too_large": 7}
    here.door._admission.body_bytes = len(BODY)
    assert here.ask(ask("gzip", gzip.compress(BODY)), 6).status == 429


def test_bodies_that_are_not_there() -> None:
    """A field about a body that was kept back, or cut by the gateway, is no failure to unpack (C-9)."""
    here = world()
    here.door(ask("gzip", b""))
    cut = {"content-encoding": "gzip", "x-envoy-auth-partial-body": "true"}
    here.door(request("/v1/decision/envoy" + CHAT, cut, body=gzip.compress(BODY)[:20]))
    assert here.engine.tally.not_unpacked == {}


def test_the_request_is_left_alone() -> None:
    """What the server holds keeps its bytes and its fields (C-9)."""
    asked = ask(*PACKED[0])
    world().door(asked)
    assert (asked.body, asked.headers["content-encoding"]) == (PACKED[0][1], b"gzip")


def test_policies_still_see_the_other_fields() -> None:
    """Only the field that spoke of the packed bytes is gone (C-9)."""
    switch = {"scope_key": "header:x-team", "scope_value": "a"}
    here = world(bundle(kill_switches=[switch]))
    packed = gzip.compress(BODY)
    assert here.door(about(CHAT, "POST", {"x-team": "a", "content-encoding": "gzip"}, body=packed)).status == 429
    assert here.door(about(CHAT, "POST", {"x-team": "b", "content-encoding": "gzip"}, body=packed)).status == 200


def zeros(mega: int) -> bytes:
    """So many megabytes, in a thousandth."""
    packing = zlib.compressobj(9, wbits=31)
    piece = bytes(MB)
    return b"".join([packing.compress(piece) for _ in range(mega)]) + packing.flush()


def wire(coding: str, body: bytes) -> bytes:
    head = f"POST /v1/decision HTTP/1.1\r\nHost: h\r\nX-Original-URI: {CHAT}\r\nX-Original-Method: POST\r\n"
    head += f"Authorization: Bearer sk-one\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.slow
def test_through_a_socket() -> None:
    """128 MB in some hundred KB pass unjudged; the loop after them is seen (C-9, Y-2)."""
    here = world()
    bombed = zeros(128)
    assert len(bombed) < 0.2 * MB

    async def main() -> list[int]:
        server = Server(here.door)
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1"))
        statuses = []
        for coding, body in [("gzip", bombed), ("gzip", bombed), *PACKED]:
            writer.write(wire(coding, body))
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(int(head.split()[1]))
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].split()[1]) if length else 0)
        writer.close()
        await writer.wait_closed()
        await server.stop(0)
        return statuses

    assert uvloop.run(main()) == [200] * 7 + [429]
    assert here.engine.tally.not_unpacked == {"too_large": 2}


def test_many_bodies_that_stay_packed_are_one_line_of_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the reasons, one line an interval; the counts tell the rest (C-9, Y-2)."""
    here = world()
    for coding in ("gzip", "br", "compress"):
        here.ask(ask(coding, b"canary"), 5)
    log = LogEvents()
    for event in here.events:
        log(event)
    assert [record.getMessage() for record in caplog.records] == ["body.not_unpacked"]
    assert here.engine.tally.not_unpacked == {"broken": 10, "unknown_coding": 5}
    assert "canary" not in str(here.events)


def test_the_configured_limit_reaches_the_door(tmp_path: Path) -> None:
    """`limits.body_bytes` (C-9)."""
    settings = Settings(data_dir=str(tmp_path), limits=Limits(body_bytes=4321))
    here = world(bundle())
    assert build.admission(settings, here.engine, here.descriptors, SECRET, here.clock).body_bytes == 4321


@pytest.mark.parametrize(
    ("dialect", "added"),
    [
        ("anthropic_messages", {"type": "error", "request_id": "t-5"}),
        ("gemini", {}),
        ("mcp", {"jsonrpc": "2.0", "id": "call-7"}),
    ],
)
def test_denials_speak_the_dialect(dialect: str, added: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our request id or the client's, read from the packed body too (A-3)."""
    chat = Chat(dialect, "m", (Message("user", "again"),), 1)
    monkeypatch.setattr(Descriptors, "chat", lambda _self, _call: chat)
    reply = world().ask(ask("gzip", gzip.compress(b'{"jsonrpc":"2.0","id":"call-7"}')), 6)
    content = json.loads(reply.body)
    assert (reply.status, content.pop("detail")["error"]) == (429, "recursive_loop_detected")
    assert "recursive_loop_detected" in content.pop("error")["message"]
    assert content == added
