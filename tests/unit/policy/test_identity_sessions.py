"""Which id is the session, when clients send several, one, or none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.dialects.base import EARLIER
from breakloop.model.call import Answer, Call
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.identity import NamingFields

UUID = "0199ae1c-5f0e-7c32-9d0b-7e8a4c1f2b3d"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()


def make() -> Descriptors:
    return Descriptors(ContextSettings(secret=b"k"), FakeClock())


def chat(key: bytes = b"sk-1", headers: dict[str, bytes] | None = None, **fields: Any) -> Call:
    body = {"model": "gpt", "messages": [{"role": "user", "content": "go"}], **fields}
    return Call(
        "POST", "/v1/chat/completions", headers={"x-api-key": key, **(headers or {})}, body=json.dumps(body).encode()
    )


def response(key: bytes = b"sk-1", headers: dict[str, bytes] | None = None, **fields: Any) -> Call:
    body = {"model": "gpt", "input": "go", **fields}
    return Call("POST", "/v1/responses", headers={"x-api-key": key, **(headers or {})}, body=json.dumps(body).encode())


def mcp(headers: dict[str, bytes] | None = None, **meta: Any) -> Call:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "_meta": meta}}
    return Call("POST", "/mcp", headers=headers or {}, body=json.dumps(body).encode(), peer="203.0.113.9")


def settle(context: Descriptors, call: Call, response_id: str) -> str:
    session = context.session(call)
    context.answered(call, Answer(200, response_id=response_id, complete=True))
    return session


def test_the_order_of_ids() -> None:
    """X-Agent-Session, the client's conversation, the body's, a wider session, the chain, the cache key; the first that
    is there wins, and taking one away shows the next (C-7).
    """
    headers = {"x-agent-session": b"ours", "thread-id": b"thread", "helicone-session-id": b"wide"}
    fields: dict[str, Any] = {
        "metadata": {"session_id": "body"},
        "previous_response_id": "resp_1",
        "prompt_cache_key": UUID,
    }
    found = []
    for gone in ("x-agent-session", "thread-id", "metadata", "helicone-session-id", "previous_response_id", ""):
        found.append(make().session(response(headers=headers, **fields)))
        headers.pop(gone, None)
        fields.pop(gone, None)
    assert found == ["ours", "thread", "body", "wide", "resp_1", UUID]


def test_real_clients() -> None:
    """One request each, as the client sends it (C-7)."""
    claude_code = json.dumps({"device_id": "d", "account_uuid": "a", "session_id": "cc"})
    sent = {
        "Claude Code": Call(
            "POST",
            "/v1/messages",
            headers={"x-claude-code-session-id": b"cc"},
            body=json.dumps({"model": "c", "messages": [], "metadata": {"user_id": claude_code}}).encode(),
        ),
        "Claude Code 2.1.78": Call(
            "POST",
            "/v1/messages",
            body=json.dumps({"model": "c", "messages": [], "metadata": {"user_id": claude_code}}).encode(),
        ),
        "Codex": response(
            headers={"session-id": b"root", "thread-id": b"thread"}, prompt_cache_key="root", store=False
        ),
        "OpenCode": chat(headers={"x-session-affinity": b"ses_1", "x-session-id": b"ses_1"}),
        "LiteLLM": chat(litellm_session_id="ll"),
        "OpenHands": chat(metadata={"session_id": "oh", "trace_user_id": "u", "tags": ["app:openhands"]}),
        "Goose": mcp(headers={"mcp-session-id": b"connection"}, **{"agent-session-id": "20260809_29"}),
        "an MCP client": mcp(headers={"mcp-session-id": b"connection"}),
    }
    context = make()
    assert {name: context.session(call) for name, call in sent.items()} == {
        "Claude Code": "cc",
        "Claude Code 2.1.78": "cc",
        "Codex": "thread",
        "OpenCode": "ses_1",
        "LiteLLM": "ll",
        "OpenHands": "oh",
        "Goose": "20260809_29",
        "an MCP client": "connection",
    }


def test_users_are_no_sessions() -> None:
    """With nothing but the name of a user, the session is derived (C-7)."""
    context = make()
    assert context.session(chat(user="u", safety_identifier="u")) == context.session(chat())
    assert context.session(chat()).startswith("derived:")


def test_long_openings() -> None:
    """Each caller, agent and opening has its own session, which is the same in every process, however long a system prompt
    is (C-7).
    """
    contexts = make(), make()

    def session(context: Descriptors, key: bytes, agent: bytes, system: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "go"}]
        return context.session(chat(key, {"x-agent-id": agent}, messages=messages))

    long = "You are an agent that reads files. " * 200
    known = {(key, agent, end): session(contexts[0], key, agent, long + end)
             for key in (b"sk-1", b"sk-2") for agent in (b"a", b"b") for end in ("", "!")}  # fmt: skip
    assert len(set(known.values())) == len(known)
    for (key, agent, end), name in reversed(known.items()):
        assert session(contexts[0], key, agent, long + end) == session(contexts[1], key, agent, long + end) == name


def test_a_large_body_is_read_with_the_history_of_its_caller() -> None:
    """Messages that the caller's last request had are not decoded again; another caller's are (Q-4)."""
    context = make()
    messages = [{"role": "user", "content": f"{number} " * 2000} for number in range(20)]
    calls = [chat(key, messages=messages) for key in (b"sk-1", b"sk-1", b"sk-2")]
    bodies = [context.parsed_body(call) for call in calls]
    assert [body is not None and EARLIER in body.parts.items for body in bodies] == [False, True, False]
    assert len({context.session(call) for call in calls}) == 2
    assert [body.opening() for body in bodies if body is not None] == [f"user\n{'0 ' * 2000}"] * 3


def test_a_chain_has_the_session_of_its_first_request() -> None:
    """`previous_response_id` is resolved to the root of its chain (C-7)."""
    context = make()
    first = settle(context, response(), "resp_1")
    assert first.startswith("derived:")
    second = settle(context, response(input="more", previous_response_id="resp_1"), "resp_2")
    third = settle(context, response(input="and more", previous_response_id="resp_2"), "resp_3")
    branch = context.session(response(input="else", previous_response_id="resp_1"))
    assert {first, second, third, branch} == {first}
    assert context.session(response(input="more")) != first


def test_a_chain_that_began_elsewhere() -> None:
    """On another instance the first id that is seen names it, and it holds from there on (C-7)."""
    context = make()
    assert settle(context, response(previous_response_id="resp_7"), "resp_8") == "resp_7"
    assert settle(context, response(previous_response_id="resp_8"), "resp_9") == "resp_7"
    assert make().session(response(previous_response_id="resp_7")) == "resp_7"


def test_chains_are_the_callers_own() -> None:
    """Somebody else's answer leads nowhere (C-7)."""
    context = make()
    first = settle(context, response(b"sk-1"), "resp_1")
    assert context.session(response(b"sk-2", previous_response_id="resp_1")) == "resp_1" != first


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (response(), Answer(500)),
        (chat(), Answer(200, response_id="chatcmpl_1")),
        (Call("GET", "/v1/responses"), Answer(200, response_id="resp_1")),
    ],
)
def test_answers_that_continue_nothing(call: Call, answer: Answer) -> None:
    """Only the Responses API has chains; anything else costs nothing (C-7)."""
    context = make()
    context.session(call)
    context.answered(call, answer)
    assert len(context.sessions.chains) == 0


def test_nothing_is_remembered_where_nobody_goes_by_sessions() -> None:
    """An answer to a call whose session nobody asked for is let pass (Q-1)."""
    context, call = make(), response()
    context.chat(call)
    context.answered(call, Answer(200, response_id="resp_1"))
    assert len(context.sessions.chains) == 0


def test_a_trace_is_a_session_once_it_has_recurred() -> None:
    """A trace made anew for each request is none; neither is that of somebody else (C-7)."""
    context = make()
    headers = {"traceparent": TRACEPARENT}
    first = chat(headers=headers)
    assert context.session(first).startswith("derived:")
    assert context.session(first).startswith("derived:")  # asked again about the same request
    later = {"traceparent": f"00-{TRACE}-ffffffffffffffff-01".encode()}
    assert context.session(chat(headers=later)) == f"trace:{TRACE}"
    assert context.session(first).startswith("derived:")
    assert context.session(chat(b"sk-2", headers=headers)).startswith("derived:")
    assert context.session(chat(headers={**headers, "thread-id": b"t"})) == "t"


def test_plain_requests_may_be_part_of_a_trace() -> None:
    """A tool that the agent calls over HTTP shares the trace, and has no session otherwise (C-7)."""
    context = make()
    calls = [Call("GET", "/x", headers={"traceparent": TRACEPARENT}, peer="203.0.113.9") for _ in range(2)]
    assert [context.session(call) for call in calls] == ["", f"trace:{TRACE}"]
    tool = [mcp(traceparent=TRACEPARENT.decode()) for _ in range(2)]
    assert context.session(tool[0]) == context.session(tool[1]) == f"trace:{TRACE}"


def test_long_ids_are_digested() -> None:
    """Whatever a client sends is short enough to be carried around (C-7)."""
    long = "x" * 60_000
    context = make()
    for call in (
        chat(headers={"x-agent-session": long.encode()}),
        chat(session_id=long),
        chat(headers={"mcp-session-id": long.encode()}),
        response(previous_response_id=long),
        chat(litellm_trace_id=long),
    ):
        assert len(context.session(call)) < 64
    assert len(context.session(chat(litellm_trace_id=long))) < 64
    assert settle(context, response(), long) == context.session(response(previous_response_id=long))


def test_a_session_is_worked_out_once() -> None:
    """Kept on the call (Q-1)."""
    context = make()
    call = chat(session_id="s-1")
    assert context.session(call) == "s-1"
    call.body = b""
    call.parsed.chat = None
    assert context.session(call) == "s-1"


def test_a_compressed_body_is_not_searched() -> None:
    """What cannot be read has no ids; header fields count all the same (C-9)."""
    call = chat(headers={"content-encoding": b"zstd", "helicone-session-id": b"h"}, session_id="s")
    assert make().session(call) == "h"


def test_which_sessions_have_no_name() -> None:
    """Those that go by their opening, and no others (C-7)."""
    context = make()
    assert context.derived(chat())
    assert not context.derived(chat(session_id="s-1"))
    assert not context.derived(Call("GET", "/x"))
    calls = [chat(headers={"traceparent": TRACEPARENT}) for _ in range(2)]
    assert [context.derived(call) for call in calls] == [True, False]


def test_model_and_system_prompt() -> None:
    """The same whatever is asked and whoever asks; another for another program (LD-4)."""
    context = make()

    def of(system: str, user: str, key: bytes = b"sk-1", model: str = "gpt") -> str:
        said = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return context.model_and_system(chat(key, model=model, messages=said))

    known = of("Answer in JSON.", "one")
    assert known == of("Answer in JSON.", "two", b"sk-2")
    assert len({known, of("Answer in XML.", "one"), of("Answer in JSON.", "one", model="o")}) == 3
    without = context.model_and_system(chat())
    assert without == context.model_and_system(chat(messages=[{"role": "user", "content": "other"}])) != known
    assert context.model_and_system(Call("GET", "/x")) == ""
    assert context.model_and_system(mcp()) == "\0"  # a call of a tool has neither
    anthropic = json.dumps({"model": "c", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]})
    assert "Be brief." in context.model_and_system(Call("POST", "/v1/messages", body=anthropic.encode()))


def test_parents() -> None:
    """As the client names them, and short enough to be carried around (C-7)."""
    context = make()
    assert context.parent(chat(headers={"x-agent-parent": b"planner"})) == "planner"
    assert context.parent(chat()) == ""
    long = chat(headers={"x-agent-parent": b"x" * 60_000})
    assert len(context.parent(long)) < 64
    assert context.parent(long) == context.session(chat(headers={"x-agent-session": b"x" * 60_000}))


def test_traces_that_have_recurred() -> None:
    """Asked about one request as often as one likes, also of those whose session has a name (C-7)."""
    context = make()
    headers = {"traceparent": TRACEPARENT}
    first, second = (chat(headers={**headers, "thread-id": name}) for name in (b"t-1", b"t-2"))
    assert [context.trace(first), context.trace(first)] == ["", ""]
    assert [context.trace(second), context.trace(second)] == [TRACE, TRACE]
    assert context.trace(first) == ""
    assert context.session(second) == "t-2"
    assert context.trace(chat(b"sk-2", headers=headers)) == ""
    assert context.trace(chat()) == ""


def test_a_trace_in_the_body() -> None:
    """LiteLLM's, also of a request whose session the body names (C-7)."""
    context = make()
    found = [context.trace(chat(litellm_trace_id="t", session_id=f"s-{at}")) for at in range(2)]
    assert found == ["", "t"]


def test_what_the_client_names() -> None:
    """The session, or else the end user. What differs from request to request, or is derived, is no name (LD-2, C-7)."""
    context = make()
    for first, answer in ((response(headers={"x-agent-session": b"s"}), "r-named"), (response(), "r-derived")):
        context.chat(first)
        settle(context, first, answer)
    traced = {"traceparent": TRACEPARENT}
    context.session(chat(headers=traced))
    asked = {
        "s": chat(headers={"x-agent-session": b"s"}, user="u"),
        "t": chat(metadata={"thread_id": "t", "user_id": "u"}),
        "m": chat(headers={"mcp-session-id": b"m"}),
        UUID: chat(prompt_cache_key=UUID, user="u"),
        "user:a": chat(user="a"),
        "user:b": chat(user="a", safety_identifier="b"),
        "user:c": chat(metadata={"user_id": "c"}),
    }
    assert [context.sessions.named(call) for call in asked.values()] == [*asked]
    assert context.sessions.named(response(previous_response_id="r-named")) == "s"
    unnamed = [chat(), chat(headers=traced), chat(user="null"), mcp(), Call("GET", "/")]
    unnamed += [response(previous_response_id=previous) for previous in ("r-derived", "r-of-another-process")]
    assert [context.sessions.named(call) for call in unnamed] == [""] * 7


def test_a_name_and_a_session_are_found_in_any_order() -> None:
    """Looking for one first does not change the other (C-7)."""
    for asked in (chat(user="a"), chat(headers={"x-agent-session": b"s"}), chat(), Call("GET", "/")):
        first, second = make(), make()
        again = Call(asked.method, asked.path, headers=asked.headers, body=asked.body)
        named, session = first.sessions.named(asked), first.session(asked)
        assert (second.session(again), second.sessions.named(again), second.derived(again)) == (
            session,
            named,
            first.derived(asked),
        )


def test_names_that_were_not_used_before() -> None:
    """Of the same caller, and asked any number of times for one call; what has no name has no new one (LD-2)."""
    context = make()
    headers = [{"x-agent-session": b"s"}, {"x-agent-id": b"a"}, {"x-agent-id": b"a", "x-agent-session": b"s"}, {}]
    calls = [chat(headers=one) for one in headers * 2] + [chat(b"sk-2", headers=headers[0]), chat(user="u")]
    expected = [True, True, True, False, False, False, False, False, True, True]
    assert [context.sessions.is_new(call) for call in calls] == expected
    assert [context.sessions.is_new(call) for call in calls] == expected


def test_the_cache_of_header_names_is_bounded() -> None:
    """Neither many combinations of fields nor long names fill it."""
    known = NamingFields()
    for number in range(known.max_entries + 10):
        assert known["host", f"x-{number}"] == (False, False)
    assert 0 < len(known) <= known.max_entries
    known.clear()
    assert known["host", "x" * known.max_chars, "my-session-id"] == (True, True)
    assert known["host", "x" * known.max_chars, "traceparent"] == (False, True)
    assert not known
