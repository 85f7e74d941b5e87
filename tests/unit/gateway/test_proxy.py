"""The reverse proxy as a door: who is let through, what a denial looks like, what is changed and what is not."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from breakloop.admin.auth import open_tokens
from breakloop.gateway.connection import Phase
from breakloop.model.upstream import parse_upstream
from breakloop.policy.client import CallerKeys
from tests.builders import CHAT, bucket, bundle, chat_body, exact, policy, tail, user
from tests.unit.gateway.fake_client import Client, get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer, chunks, ok

GUARDED = bundle(defaults={})
TOOL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "search", "arguments": {"q": "x"}}}


def send(target: str, body: bytes, *fields: str, method: str = "POST") -> bytes:
    return get(target, f"Content-Length: {len(body)}", "Content-Type: application/json", *fields, method=method) + body


def last(proxy: Proxy) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
    status, body, fields = read_replies(proxy.sent())[-1]
    return status, json.loads(body), fields


def test_the_sixth_identical_request_never_reaches_the_upstream() -> None:
    """In the OpenAI dialect, with what the SDK needs not to try again (LD-2, A-3)."""
    with Proxy(GUARDED) as proxy:
        for _ in range(5):
            proxy.exchange(send(CHAT, chat_body(user("again"))))
        proxy.send(send(CHAT, chat_body(user("again"))))
        status, content, fields = last(proxy)
        assert (status, content["detail"]["error"]) == (429, "recursive_loop_detected")
        assert content["error"]["code"] == "recursive_loop_detected"
        assert (fields[b"x-should-retry"], fields[b"x-breakloop-reason"]) == (b"false", b"loop_detected")
        assert proxy.upstream().wire.sent.count(b"POST") == 5
        assert proxy.phase() is Phase.IDLE


def test_an_mcp_client_sees_a_denial_as_the_tools_error() -> None:
    """200 with isError, because a model reads that and no status (A-3)."""
    with Proxy(GUARDED) as proxy:
        for number in range(5):
            proxy.exchange(send("/mcp", json.dumps({**TOOL, "id": number}).encode()))
        proxy.send(send("/mcp", json.dumps(TOOL).encode()))
        status, content, _ = last(proxy)
        assert (status, content["id"], content["result"]["isError"]) == (200, 7, True)
        assert content["result"]["content"][0]["text"].startswith("Blocked: identical request sent 6 times")


def test_failed_requests_may_be_tried_again() -> None:
    """Repeats after an upstream 429, 5xx or time-out are free (LD-6)."""
    with Proxy(GUARDED) as proxy:
        for status in ("500 Oops", "429 Busy", "503 Gone", "529 Overloaded", "502 Bad"):
            proxy.exchange(send(CHAT, chat_body(user("again"))), ok(b"{}", status=status))
        proxy.send(send(CHAT, chat_body(user("again"))))
        proxy.upstream().says(b"HTTP")
        proxy.upstream().goes()
        assert last(proxy)[1]["detail"]["error"] == "upstream_failed"
        for _ in range(5):
            proxy.exchange(send(CHAT, chat_body(user("again"))))
            assert last_status(proxy) == 200
        proxy.send(send(CHAT, chat_body(user("again"))))
        assert last_status(proxy) == 429


def last_status(proxy: Proxy) -> int:
    return read_replies(proxy.sent())[-1][0]


def test_requests_in_flight_are_known() -> None:
    """Identical requests that start together, before the first is answered, count once (sampling) (LD-6)."""
    with Proxy(GUARDED) as proxy:
        body = send(CHAT, chat_body(user("again")))
        clients = [Client(server=proxy.server, loop=proxy.loop) for _ in range(8)]
        for client in clients:
            client.send(body)
        proxy.loop.turn(3)
        tally = proxy.world.engine.tally
        assert (len(proxy.pools["up"].made), tally.settled, tally.joined) == (8, 0, 7)
        for connection in proxy.pools["up"].made:
            connection.says(ok(b"{}"))
        assert (tally.settled, tally.denied) == (8, {})


@pytest.mark.parametrize(
    ("target", "sent", "agent", "upstream"),
    [
        ("/v1/chat/completions?a=b", b"POST /v1/chat/completions?a=b ", "", "up"),
        ("/agents/bob/v1/chat/completions", b"POST /v1/chat/completions ", "bob", "up"),
        ("/up/v1/x", b"POST /v1/x ", "", "up"),
        ("/agents/bob/anthropic/v1/messages", b"POST /v1/messages ", "bob", "anthropic"),
        ("/v1/messages", b"POST /v1/messages ", "", "anthropic"),
        ("/elsewhere", b"POST /elsewhere ", "", "up"),
        ("/v1/decisions", b"POST /v1/decisions ", "", "up"),
    ],
)
def test_upstreams_are_named_by_the_path(target: str, sent: bytes, agent: str, upstream: str) -> None:
    """And policies see the path without those names (R-3) (D-2)."""
    with Proxy() as proxy:
        calls = []
        decide = proxy.world.engine.decide

        def spy(call: Any, *more: Any) -> Any:
            calls.append(call)
            return decide(call, *more)

        proxy.door.admission.engine = type(
            "Spy", (), {"decide": staticmethod(spy), "tally": proxy.world.engine.tally}
        )()
        proxy.send(send(target, b"{}"))
        assert proxy.upstream(name=upstream).wire.sent.startswith(sent)
        assert (calls[0].path_agent, calls[0].upstream) == (agent, upstream)
        assert calls[0].path == sent.decode().split()[1].partition("?")[0]


@pytest.mark.parametrize("target", ["/livez", "/readyz", "/v1/decision", "/v1/decision?x=1", "/v1/debug/session"])
def test_our_own_paths_are_never_forwarded(target: str) -> None:
    """Our own paths are never forwarded: reserved (D-2)."""
    with Proxy() as proxy:
        proxy.send(get(target))
        assert proxy.pools["up"].made == []
        assert len(read_replies(proxy.sent())) == 1


def test_a_path_with_two_meanings_is_refused() -> None:
    """A path with two meanings is refused (R-3)."""
    with Proxy() as proxy:
        proxy.send(get("/v1%2fchat"))
        assert last_status(proxy) == 400
        assert proxy.pools["up"].made == []


def test_a_request_that_came_through_here_before_is_not_forwarded() -> None:
    """508, and the reason says why (LD-9)."""
    with Proxy() as proxy:
        proxy.exchange(send(CHAT, chat_body(user("x"))))
        token = next(line for line in proxy.upstream().wire.sent.split(b"\r\n") if b"hop" in line.lower())
        proxy.send(send(CHAT, chat_body(user("x")), token.decode()))
        status, content, fields = last(proxy)
        assert (status, content["detail"]["error"], fields[b"x-breakloop-reason"]) == (508, "proxy_loop", b"proxy_loop")
        assert fields[b"x-should-retry"] == b"false"
        assert proxy.upstream().wire.sent.count(b"POST") == 1


def test_copies_of_our_fields_stay_here() -> None:
    """In `_` spelling too (Y-3)."""
    with Proxy() as proxy:
        proxy.exchange(send(CHAT, b"{}", "X-Breakloop-Expect-Repeats: 5", "X_Breakloop_Reason: mine", "X-Kept: 1"))
        sent = proxy.upstream().wire.sent
        assert b"X-Kept: 1\r\n" in sent
        assert b"mine" not in sent
        assert b"Repeats" not in sent


def test_only_known_callers_are_let_through() -> None:
    """An error in the client's dialect for the others, and nothing reaches the upstream (Y-6)."""
    callers = CallerKeys([f"alice={sha256(b'alice-key').hexdigest()}"])
    with Proxy(callers=callers) as proxy:
        proxy.send(send(CHAT, chat_body(user("x")), "Authorization: Bearer nobody"))
        status, content, fields = last(proxy)
        assert (status, content["detail"]["error"]) == (401, "unknown_caller")
        assert content["error"]["type"] == "authentication_error"
        assert b"x-breakloop-request-id" in fields
        assert proxy.pools["up"].made == []
        proxy.exchange(send(CHAT, chat_body(user("x")), "Authorization: Bearer alice-key"))
        assert last_status(proxy) == 200


def test_no_second_credential_sheds_the_limits_of_a_caller() -> None:
    """Whoever is let in is who is charged, and not its neighbour at the same address (Y-6)."""
    callers = CallerKeys([f"{name}={sha256(name.encode()).hexdigest()}" for name in ("alice", "bob")])
    data = bundle(policy("p", bucket(rate=0.001, burst=5, keys=["caller:key"])))
    with Proxy(data, callers=callers) as proxy:
        for fields in (("X-Breakloop-Key: alice",), ("X-Breakloop-Key: alice", "Authorization: Bearer random")):
            for _ in range(3):
                proxy.exchange(send(CHAT, chat_body(user("x")), *fields))
        assert last_status(proxy) == 429
        proxy.exchange(send(CHAT, chat_body(user("x")), "X-Breakloop-Key: bob"))
        assert last_status(proxy) == 200


def test_keys_of_two_callers_are_refused() -> None:
    """It would be open who is charged; the same key in two fields is what some clients send (Y-6)."""
    callers = CallerKeys([f"{name}={sha256(name.encode()).hexdigest()}" for name in ("alice", "bob")])
    with Proxy(callers=callers) as proxy:
        proxy.send(send(CHAT, chat_body(user("x")), "Authorization: Bearer alice", "X-Api-Key: bob"))
        status, content, _ = last(proxy)
        assert (status, content["detail"]["error"]) == (400, "ambiguous_caller")
        assert "different callers" in content["detail"]["message"]
        assert proxy.pools["up"].made == []
        proxy.exchange(send(CHAT, chat_body(user("x")), "Authorization: Bearer alice", "X-Api-Key: alice"))
        assert last_status(proxy) == 200


def test_a_token_of_the_admin_plane_goes_nowhere(tmp_path: Path) -> None:
    """Who takes the one port for the other does not show an operator's token to a provider (Y-3)."""
    _, token = open_tokens(tmp_path, "")
    with Proxy() as proxy:
        proxy.send(get("/api/v1/status", f"Authorization: Bearer {token}"))
        status, content, _ = last(proxy)
        assert (status, content["detail"]["error"]) == (401, "unknown_caller")
        assert "admin API" in content["detail"]["message"]
        assert proxy.pools["up"].made == []
        for key in ("sk-bl_x", "bl_somebody-elses", token.replace("bl_", "bl-")):
            proxy.exchange(get("/v1/models", f"Authorization: Bearer {key}"))
            assert last_status(proxy) == 200


def test_the_key_of_another_provider_goes_nowhere() -> None:
    """An error in the client's dialect, before a connection is opened (D-2, Y-3)."""
    with Proxy(named=[parse_upstream("openai", "https://api.openai.com")]) as proxy:
        proxy.send(send(CHAT, chat_body(user("x")), "Authorization: Bearer sk-ant-api03-1"))
        status, content, _ = last(proxy)
        assert (status, content["detail"]["error"]) == (400, "wrong_provider")
        assert content["error"]["type"] == "invalid_request_error"
        assert proxy.pools["openai"].made == []
        assert proxy.world.engine.tally.denied == {"wrong_provider": 1}
        proxy.send(send(CHAT, chat_body(user("x")), "Authorization: Bearer sk-proj-1"))
        assert len(proxy.pools["openai"].made) == 1


def test_a_head_that_recurs_is_treated_as_the_first_time(tmp_path: Path) -> None:
    """What is kept of a head changes neither where a request goes nor why it is refused (D-1, Y-3)."""
    _, token = open_tokens(tmp_path, "")
    refused = ("X-Breakloop-Hop: hop-token", 508), (f"Authorization: Bearer {token}", 401)
    with Proxy() as proxy:
        for field, status in refused:
            for number in range(4):
                proxy.transport.sent = b""
                proxy.send(send(CHAT, chat_body(user("x" * number)), field))
                assert last_status(proxy) == status, field
        assert proxy.pools["up"].made == []


def test_a_head_that_recurs_is_forwarded_as_the_first_time() -> None:
    """Only the length is another one (D-1)."""
    with Proxy() as proxy:
        proxy.exchange(send(CHAT, b"{}", "X-Kept: 1"))
        first = proxy.upstream().wire.sent
        for size in (2, 3, 4, 5):
            body = b"{" + b" " * (size - 2) + b"}"
            proxy.upstream().wire.sent = b""
            proxy.exchange(send(CHAT, body, "X-Kept: 1"))
            wanted = first.replace(b"content-length: 2\r\n", b"content-length: %d\r\n" % size)[:-2] + body
            assert proxy.upstream().wire.sent == wanted


STEER = bundle(policy("p", loop=tail(max_hits=1, action="steer")))


def test_a_steered_request_carries_the_note() -> None:
    """The model is told in its own conversation, and the length is right (LD-5)."""
    with Proxy(STEER) as proxy:
        for _ in range(2):
            proxy.exchange(send(CHAT, chat_body(user("again"))))
        head, _, body = proxy.upstream().wire.sent.rpartition(b"\r\n\r\n")
        messages = json.loads(body)["messages"]
        assert [message["role"] for message in messages] == ["user"]
        assert messages[0]["content"].startswith("again\n\n[breakloop] You have sent the same request 2 times")
        assert b"content-length: %d\r\n" % len(body) in head.rpartition(b"POST")[2]
        fields = read_replies(proxy.sent())[-1][2]
        assert fields[b"x-breakloop-warning"] == b"loop_detected"
        assert b"x-breakloop-note" not in fields
        assert proxy.world.engine.tally.steered == 1


def test_a_steered_request_that_was_packed_goes_on_unpacked() -> None:
    """A steered request that was packed goes on unpacked (LD-5, C-9)."""
    with Proxy(STEER) as proxy:
        packed = gzip.compress(chat_body(user("again")))
        for _ in range(2):
            proxy.exchange(send(CHAT, packed, "Content-Encoding: gzip"))
        first, second = proxy.upstream().wire.sent.split(b"POST ")[1:]
        assert first.endswith(packed)
        assert b"Content-Encoding" not in second
        assert "[breakloop]" in json.loads(second.partition(b"\r\n\r\n")[2])["messages"][-1]["content"]


def test_where_a_body_cannot_be_changed_the_client_is_told() -> None:
    """Warn, with the note in X-Breakloop-Note (LD-5)."""
    with Proxy(STEER) as proxy:
        for _ in range(2):
            proxy.exchange(send("/mcp", json.dumps(TOOL).encode()))
        assert b"same request 2 times" in read_replies(proxy.sent())[-1][2][b"x-breakloop-note"]
        assert proxy.upstream().wire.sent.count(json.dumps(TOOL).encode()) == 2
        assert proxy.world.engine.tally.steered == 0


LAND = bundle(policy("p", loop=tail(max_hits=1, action="land")))
TOOLS = [{"type": "function", "function": {"name": "search"}}]


def test_a_landed_request_has_no_tools_to_call() -> None:
    """The model is asked to finish, the client is told with a stable word, and then it is denied (LD-10)."""
    with Proxy(LAND) as proxy:
        asked = chat_body(user("again"), tools=TOOLS, stream=True)
        for _ in range(3):
            proxy.exchange(send(CHAT, asked))
        first, *landed = proxy.upstream().wire.sent.split(b"POST ")[1:]
        assert first.endswith(asked)
        for sent in landed:
            head, _, body = sent.partition(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % len(body) in head
            content = json.loads(body)
            assert (content["tools"], content["tool_choice"], content["stream"]) == (TOOLS, "none", True)
            assert "tools are switched off" in content["messages"][-1]["content"]
        fields = [fields for _, _, fields in read_replies(proxy.sent())]
        assert [one.get(b"x-breakloop-action") for one in fields] == [None, b"land", b"land"]
        assert (fields[1][b"x-breakloop-warning"], fields[1].get(b"x-breakloop-note")) == (b"loop_detected", None)
        assert (proxy.world.engine.tally.landed, proxy.world.engine.tally.steered) == (2, 0)
        proxy.send(send(CHAT, asked))
        assert last(proxy)[0] == 429


def test_what_cannot_be_landed_passes_with_the_note() -> None:
    """As with steer, and no more often than it would be landed (LD-10)."""
    with Proxy(LAND) as proxy:
        for number in range(3):
            proxy.exchange(send("/mcp", json.dumps({**TOOL, "id": number}).encode()))
        fields = read_replies(proxy.sent())[-1][2]
        assert fields[b"x-breakloop-action"] == b"land"
        assert b"tools are switched off" in fields[b"x-breakloop-note"]
        assert proxy.world.engine.tally.landed == 0
        proxy.send(send("/mcp", json.dumps(TOOL).encode()))
        assert last(proxy)[1]["result"]["isError"] is True


def test_compressed_bodies_are_judged_and_pass_as_they_came() -> None:
    """Decoded for judging, the original bytes are forwarded (C-9)."""
    with Proxy(GUARDED) as proxy:
        for level in range(1, 6):
            packed = gzip.compress(chat_body(user("again")), level, mtime=level)
            proxy.exchange(send(CHAT, packed, "Content-Encoding: gzip"))
            assert proxy.upstream().wire.sent.endswith(packed)
        proxy.send(send(CHAT, gzip.compress(chat_body(user("again"))), "Content-Encoding: gzip"))
        assert last(proxy)[1]["detail"]["error"] == "recursive_loop_detected"


def test_usage_is_read_as_it_passes() -> None:
    """Streamed or not, packed or not (D-1, C-8)."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    whole = json.dumps({"id": "c", "model": "m", "choices": [], "usage": usage}).encode()
    with Proxy(GUARDED) as proxy:
        proxy.exchange(send(CHAT, chat_body(user("1"))), ok(whole, "Content-Type: application/json"))
        packed = gzip.compress(whole)
        fields = ("Content-Type: application/json", "Content-Encoding: gzip")
        proxy.exchange(send(CHAT, chat_body(user("2"))), ok(packed, *fields))
        assert proxy.sent().endswith(packed)
        proxy.send(send(CHAT, chat_body(user("3"))))
        proxy.upstream().says(answer("Content-Type: text/event-stream", "Transfer-Encoding: chunked"))
        proxy.upstream().says(chunks(b"data: " + whole + b"\n\n", b"data: [DONE]\n\n"))
        tally = proxy.world.engine.tally
        assert (tally.settled, tally.input_tokens, tally.output_tokens) == (3, 33, 21)


def test_an_answer_that_cannot_be_unpacked_passes_and_is_counted() -> None:
    with Proxy(GUARDED) as proxy:
        fields = ("Content-Type: application/json", "Content-Encoding: gzip")
        proxy.exchange(send(CHAT, chat_body(user("1"))), ok(b"not gzip", *fields))
        assert proxy.sent().endswith(b"not gzip")
        assert sum(proxy.world.engine.tally.not_read.values()) == 1


def test_a_fault_of_ours_does_not_stop_traffic() -> None:
    """A mistake while judging, reading or settling lets the request and its answer pass."""
    with Proxy(GUARDED) as proxy:
        engine = proxy.world.engine

        class Broken:
            tally = engine.tally
            bundle = engine.bundle

            def decide(self, *_: object) -> None:
                raise KeyError("a mistake")

            settle = not_read = decide

        proxy.door.admission.engine = Broken()  # type: ignore[assignment]
        proxy.exchange(send(CHAT, chat_body(user("1"))), ok(b"{}", "Content-Type: application/json"))
        assert last_status(proxy) == 200
        assert engine.tally.faults == 2


def test_a_body_that_no_policy_needs_passes_in_pieces() -> None:
    """Large uploads are streamed when no policy needs the body; JSON might be an LLM call (D-1)."""
    upload = ("Content-Type: multipart/form-data; boundary=x", "Content-Length: 1000")
    with Proxy(GUARDED) as proxy:
        proxy.send(get("/v1/files", *upload, method="POST") + b"part")
        assert proxy.upstream().wire.sent.endswith(b"part")
    with Proxy(bundle(policy("p", loop=exact()))) as proxy:
        proxy.send(get("/v1/files", *upload, method="POST") + b"part")
        assert proxy.pools["up"].made == []
        proxy.send(b"x" * 996)
        assert len(proxy.pools["up"].made) == 1


def test_nothing_is_forwarded_without_a_bundle() -> None:
    """Nothing is forwarded without a bundle (E-0)."""
    with Proxy() as proxy:
        proxy.world.engine._bundle = None
        proxy.send(send(CHAT, chat_body(user("x"))))
        assert last(proxy)[1]["detail"]["error"] == "no_bundle_loaded"
