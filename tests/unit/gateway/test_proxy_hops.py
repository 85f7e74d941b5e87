"""What the proxy sends on about the tree of agents, so that agents that call each other over A2A or MCP are one tree."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from breakloop.model.upstream import parse_upstream
from tests.builders import CHAT, bundle, chat_body, user
from tests.unit.gateway.fake_client import get, read_replies
from tests.unit.gateway.fake_upstream import UP, Proxy, ok

OPENAI = parse_upstream("openai", "https://api.openai.com")
TOOL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "search", "arguments": {"q": "x"}}}
STEPS = bundle(defaults={"loop_detection": {"similarity": "steps"}})
CHAT_ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Done."}}]}).encode()


def message(text: str = "Find the harbour.", method: str = "message/send", **more: Any) -> dict[str, Any]:
    part = {"role": "user", "messageId": "m", "parts": [{"kind": "text", "text": text}], **more}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": part}}


def post(target: str, body: Any, *fields: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return get(target, f"Content-Length: {len(raw)}", "Content-Type: application/json", *fields, method="POST") + raw


def forwarded(proxy: Proxy, sent: bytes, name: str = "up") -> dict[str, str]:
    """Send a request, and return the header fields that the upstream got."""
    proxy.send(sent)
    connection = proxy.upstream(name=name)
    head = connection.wire.sent.rpartition(b" HTTP/1.1\r\n")[2].partition(b"\r\n\r\n")[0]
    connection.says(ok(b"{}"))
    pairs = [line.partition(b": ") for line in head.split(b"\r\n")]
    return {key.decode().lower(): value.decode() for key, _, value in pairs}


def place(fields: dict[str, str]) -> tuple[str, str, str]:
    return tuple(fields.get(f"x-agent-{name}", "") for name in ("root", "parent", "depth"))  # type: ignore[return-value]


def carried(fields: dict[str, str]) -> tuple[str, str, str]:
    """The same from `baggage`, as tracing libraries pass it on."""
    entries = dict(entry.split("=", 1) for entry in fields.get("baggage", "").split(",") if entry)
    return tuple(unquote(entries.get(f"breakloop.{name}", "")) for name in ("root", "parent", "depth"))  # type: ignore[return-value]


def test_a_message_to_another_agent_is_sent_with_its_place() -> None:
    """In every version and binding of A2A; the body is not changed (C-10)."""
    plain = {"message": {"role": "ROLE_USER", "parts": [{"text": "x"}], "contextId": "talk"}}
    with Proxy() as proxy:
        for target, body in (
            ("/up/a2a", message()),
            ("/up/a2a", message(method="message/stream")),
            ("/up", message(method="SendMessage")),
            ("/up", message(method="SendStreamingMessage")),
            ("/up/message:send", plain),
            ("/up/v1/message:stream", plain),
        ):
            fields = forwarded(proxy, post(target, body, "X-Agent-Session: lead"))
            assert place(fields) == carried(fields) == ("lead", "lead", "2"), (target, body)
            assert fields["x-agent-session"] == "lead"
        assert proxy.upstream().wire.sent.endswith(json.dumps(plain).encode())


def test_each_hop_adds_one() -> None:
    """An agent that passes on what it got is where it is: what it sends to the next one is one deeper (C-10)."""
    with Proxy() as proxy:
        fields = forwarded(proxy, post("/up/a2a", message(), "X-Agent-Session: lead"))
        for depth in range(3, 7):
            own = f"agent-{depth - 1}"
            sent = post("/up/a2a", message(), f"baggage: {fields['baggage']}", f"X-Agent-Session: {own}")
            fields = forwarded(proxy, sent)
            assert place(fields) == carried(fields) == ("lead", own, str(depth))


def test_agents_that_name_nothing_are_counted() -> None:
    """By baggage alone, which tracing libraries pass on; the context of a message names the tree (C-10)."""
    with Proxy() as proxy:
        fields = forwarded(proxy, post("/up/a2a", message()))
        assert carried(fields) == ("", "", "2")
        fields = forwarded(proxy, post("/up/a2a", message(), f"baggage: {fields['baggage']}"))
        assert carried(fields) == ("", "", "3")
        fields = forwarded(proxy, post("/up/a2a", message(contextId="talk, 1")))
        assert place(fields) == carried(fields) == ("talk, 1", "talk, 1", "2")


def test_metadata_of_a_message_names_the_sender() -> None:
    """Root, parent and depth, in the metadata of the request or of the message (C-10)."""
    with Proxy() as proxy:
        body = message(metadata={"breakloop.root": "r", "breakloop.depth": 4})
        assert place(forwarded(proxy, post("/up/a2a", body, "X-Agent-Session: s"))) == ("r", "s", "5")
        body = message()
        body["params"]["metadata"] = {"baggage": "breakloop.root=q,breakloop.depth=2"}
        assert place(forwarded(proxy, post("/up/a2a", body, "X-Agent-Session: s"))) == ("q", "s", "3")


def test_entries_of_others_in_baggage_are_kept() -> None:
    """What the client carries for itself, and nothing of ours twice (C-10, P-2)."""
    with Proxy() as proxy:
        given = "tenant=a;ttl=3, breakloop.depth=2 , breakloop.root=r"
        fields = forwarded(proxy, post("/up/a2a", message(), f"Baggage: {given}", "X-Agent-Session: s"))
        assert fields["baggage"] == "tenant=a;ttl=3,breakloop.root=r,breakloop.parent=s,breakloop.depth=3"


def test_a_place_that_names_the_receiver_is_passed_on() -> None:
    """The client has added one already, or another gateway has (C-10)."""
    with Proxy() as proxy:
        stated = ("X-Agent-Session: s", "X-Agent-Parent: s", "X-Agent-Root: r", "X-Agent-Depth: 4")
        assert place(forwarded(proxy, post("/up/a2a", message(), *stated))) == ("r", "s", "4")
        passed = ("X-Breakloop-Hop: other", "X-Agent-Root: r", "X-Agent-Depth: 4")
        fields = forwarded(proxy, post("/up/a2a", message(), *passed))
        assert (place(fields), "baggage" in fields) == (("r", "", "4"), False)


def test_calls_of_tools_are_sent_with_their_place() -> None:
    """A tool may be an agent, too. Without any name of a session or a tree, it is only a tool (C-10)."""
    for policy in (None, STEPS):
        with Proxy(policy) as proxy:
            assert place(forwarded(proxy, post("/up/mcp", TOOL, "Mcp-Session-Id: m"))) == ("m", "m", "2")
            stated = ("X-Agent-Session: b", "X-Agent-Parent: a")
            assert place(forwarded(proxy, post("/up/mcp", {**TOOL, "id": 8}, *stated))) == ("a", "b", "3")
            bare = forwarded(proxy, post("/up/mcp", {**TOOL, "id": 9}))
            assert "baggage" not in bare
            assert place(bare) == ("", "", "")


def test_nothing_is_added_for_providers_and_other_requests() -> None:
    """LLM requests, whoever serves them, plain HTTP, and everything that goes to a provider (C-10, P-2)."""
    with Proxy(STEPS, named=(UP, OPENAI)) as proxy:
        session = "X-Agent-Session: s"
        for sent, name in (
            (post(f"/up{CHAT}", chat_body(user("jsonrpc")), session), "up"),
            (post("/up/orders", {"jsonrpc": "2.0", "method": "tools/list"}, session), "up"),
            (post("/up/orders", {"message": {"text": "x"}}, session), "up"),
            (post("/up/orders", b'{"jsonrpc": broken', session), "up"),
            (post("/openai/v1/files", message(), session), "openai"),
        ):
            fields = forwarded(proxy, sent, name)
            assert place(fields) == ("", "", "")
            assert "baggage" not in fields


def test_ids_of_a_body_cannot_add_header_lines() -> None:
    """A context with line breaks is escaped in baggage, and no header field (P-2)."""
    with Proxy() as proxy:
        proxy.send(post("/up/a2a", message(contextId="a\r\nX-Evil: 1", metadata={"breakloop.root": "b\nc"})))
        head = proxy.upstream().wire.sent.partition(b"\r\n\r\n")[0].lower()
        assert b"\nx-evil" not in head
        assert b"x-agent-root" not in head
        assert b"breakloop.depth=3" in head


def test_four_agents_that_call_each_other_are_one_tree() -> None:
    """Each asks an LLM, then sends a message to the next one, and knows nothing but the baggage that it got. The ninth
    in the chain is not started (C-10, LD-12)."""
    with Proxy(STEPS) as proxy:
        baggage: list[str] = []
        for hop in range(12):
            name = "abcd"[hop % 4]
            own = (f"X-Agent-Session: {name}-{hop}", *baggage)
            before = len(proxy.sent())
            proxy.send(post(f"/up{CHAT}", chat_body(user(f"Step {hop} of the plan, by {name}: go through it.")), *own))
            if len(proxy.sent()) > before:
                break
            proxy.upstream().says(ok(CHAT_ANSWER, "Content-Type: application/json"))
            fields = forwarded(proxy, post("/up/a2a", message(f"part {hop}"), *own))
            baggage = [f"baggage: {fields['baggage']}"]
        status, body, _ = read_replies(proxy.sent())[-1]
        assert (hop, status) == (8, 429)
        assert json.loads(body)["detail"]["evidence"].startswith("agents start agents, 9 deep")
