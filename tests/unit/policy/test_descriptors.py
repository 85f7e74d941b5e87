"""Names for what a request is."""

from __future__ import annotations

import base64
import json

import jwt as pyjwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.clock import FakeClock
from breakloop.dialects import registry
from breakloop.dialects.base import ParsedBody
from breakloop.dialects.known_history import KnownHistory
from breakloop.engine.decision_state import DecisionState
from breakloop.model.call import UNREAD, Call
from breakloop.policy import descriptors
from breakloop.policy.descriptors import ContextSettings, Descriptors, canonical_header, query_for_fingerprint
from breakloop.policy.jwt import JwtKeys

SECRET = "a shared secret of more than 32 bytes, to keep it strong"
CHAT = {
    "model": "gpt-4o",
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "nothing"},
    ],
}


def make(**settings: object) -> Descriptors:
    return Descriptors(ContextSettings(secret=b"k", **settings), FakeClock())  # type: ignore[arg-type]


def get(name: str, call: Call, **settings: object) -> str | None:
    return make(**settings).getter(name)(call)


def plain(**headers: bytes) -> Call:
    return Call(
        "GET", "/x", headers={canonical_header(name): value for name, value in headers.items()}, peer="203.0.113.9"
    )


def chat_call(**more: object) -> Call:
    return Call("POST", "/v1/chat/completions", body=json.dumps(CHAT | more).encode(), peer="203.0.113.9")


def unsigned(claims: dict[str, object]) -> bytes:
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return b"Bearer " + b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts) + b".eA"


def test_every_known_name_has_a_getter() -> None:
    """Each descriptor that a bundle may name can be read (C-6)."""
    names = [f"{kind}:{name}" for kind, known in descriptors.FIXED.items() for name in known]
    assert len(names) == 16
    for name in [*names, "jwt:sub", "header:x-team", "query:a"]:
        make().getter(name)(Call("GET", "/"))


@pytest.mark.parametrize("name", ["", "x", "ip:city", "header:", "jwt:", "Header:x", "llm:tokens"])
def test_an_unknown_name_is_refused(name: str) -> None:
    """A name that is none never reads as missing (C-6)."""
    with pytest.raises(ValueError, match="descriptor"):
        make().getter(name)


_WORDS = st.lists(st.text("abcXYZ019", min_size=1, max_size=5), min_size=1, max_size=4)


@given(_WORDS, st.data())
def test_headers_resolve_in_any_spelling(words: list[str], data: st.DataObject) -> None:
    """Whatever the case, and whether written with hyphens or underscores (C-2)."""

    def spelling() -> str:
        joined = words[0] + "".join(data.draw(st.sampled_from("-_")) + word for word in words[1:])
        return "".join(data.draw(st.sampled_from((letter.lower(), letter.upper()))) for letter in joined)

    call = Call("GET", "/", headers={canonical_header(spelling()): b"value"})
    assert get(f"header:{spelling()}", call) == "value"


def test_headers_and_queries() -> None:
    """First value counts, an empty value is missing (C-6)."""
    assert get("header:x-team", plain(x_team=b"r\xe9d")) == "r\xe9d"
    assert get("header:x-team", plain(x_team=b"")) is None
    assert get("header:x-team", plain()) is None
    call = Call("GET", "/", query="a=%31&a=2&b=")
    assert (get("query:a", call), get("query:b", call), get("query:c", call)) == ("1", None, None)
    assert query_for_fingerprint(call) == "a=1&a=2&b="


def test_claims_are_not_verified_without_keys() -> None:
    """They can be matched on, and the call says that nobody checked them (C-3)."""
    call = plain(authorization=unsigned({"sub": "u", "org": {"tier": "gold"}}))
    context = make()
    assert context.getter("jwt:org.tier")(call) == "gold"
    assert call.identity.verified is False
    assert context.caller(call).startswith("key:")


def test_a_verified_subject_is_the_caller() -> None:
    """Caller = verified `sub`, else the digest of the key (C-7)."""
    settings = {"jwt": JwtKeys(secret=SECRET)}
    call = plain(authorization=b"Bearer " + pyjwt.encode({"sub": "u"}, SECRET).encode(), x_api_key=b"sk")
    context = make(**settings)
    assert context.caller(call) == "sub:u"
    assert call.identity.verified is True
    forged = plain(authorization=unsigned({"sub": "u"}))
    assert context.caller(forged).startswith("key:")
    assert context.getter("jwt:sub")(forged) is None
    assert forged.identity.verified is False
    nobody = plain(authorization=b"Bearer " + pyjwt.encode({"role": "x"}, SECRET).encode())
    assert context.caller(nobody).startswith("key:")


def test_callers_by_key_and_address() -> None:
    """The same key in another header is the same caller; without a key it is the address (C-7)."""
    context = make()
    by_bearer = context.caller(plain(authorization=b"Bearer sk-1"))
    assert by_bearer == context.caller(plain(x_api_key=b"sk-1")) == context.caller(Call("GET", "/", query="key=sk-1"))
    assert by_bearer != context.caller(plain(authorization=b"Bearer sk-2"))
    assert len(by_bearer) == len("key:") + 32
    assert "sk-1" not in by_bearer
    assert context.getter("caller:key")(plain(x_api_key=b"sk-1")) == by_bearer.removeprefix("key:")
    assert context.getter("caller:key")(plain()) is None
    assert context.caller(plain()) == "ip:203.0.113.9"


def test_an_escaped_query_key_is_found() -> None:
    """Spelling `key` with an escape hides nobody (C-7)."""
    assert make().caller(Call("GET", "/", query="%6bey=sk-1")) == make().caller(plain(x_api_key=b"sk-1"))


def test_the_agent() -> None:
    """The agent of the path, of X-Agent-Id, or the caller (C-7)."""
    context = make()
    in_path = Call("GET", "/", path_agent="planner", headers={"x-agent-id": b"other"})
    assert context.agent(in_path) == context.getter("agent:id")(in_path) == "planner"
    assert context.agent(plain(x_agent_id=b" writer ")) == "writer"
    assert context.agent(plain(x_agent_id=b"  ")) == "ip:203.0.113.9"
    assert len(context.agent(plain(x_agent_id=b"x" * 60_000))) < 64


def test_the_project() -> None:
    """A setting, or what a descriptor named in the settings says (C-7)."""
    assert get("project:id", plain()) == "default"
    assert get("project:id", plain(), project="shop") == "shop"
    by_header = make(project="shop", project_descriptor="header:X_Project")
    assert by_header.project(plain(x_project=b"crm")) == "crm"
    assert by_header.project(plain()) == "shop"
    for bad in ("project:id", "nonsense"):
        with pytest.raises(ValueError, match=r"project|descriptor"):
            make(project_descriptor=bad)


def test_the_client_address() -> None:
    """Behind a trusted proxy the client is who it says (C-4)."""
    call = Call("GET", "/", peer="10.0.0.1", headers={"x-forwarded-for": b"198.51.100.4", "x-country-code": b"de"})
    context = make(trusted_proxies=("10.0.0.0/8",))
    assert context.getter("ip:address")(call) == context.client_ip(call) == "198.51.100.4"
    assert context.getter("ip:country")(call) == "DE"
    assert context.caller(call) == "ip:198.51.100.4"
    assert get("ip:address", Call("GET", "/")) is None


def test_user_agents() -> None:
    """Bot or not, and which kind (C-5, C-6)."""
    bot = plain(user_agent=b"GPTBot/1.2")
    assert (get("ua:bot", bot), get("ua:bot_category", bot)) == ("true", "ai_crawler")
    human = plain(user_agent=b"Mozilla/5.0 Firefox/140.0")
    assert (get("ua:bot", human), get("ua:bot_category", human)) == ("false", None)
    assert (get("ua:bot", plain()), get("ua:bot_category", plain())) == (None, None)
    assert get("ua:bot", plain(user_agent=b"")) is None


def test_what_an_llm_call_says() -> None:
    """Model, provider, tool and upstream (C-6)."""
    call = chat_call()
    call.upstream = "openai"  # type: ignore[misc]
    context = make()
    values = {name: context.getter(name)(call) for name in ("llm:model", "llm:provider", "tool:name", "upstream:name")}
    assert values == {"llm:model": "gpt-4o", "llm:provider": "openai", "tool:name": "search", "upstream:name": "openai"}
    assert context.tools(call) == ("search",)
    for name in values:
        assert context.getter(name)(plain()) is None
    assert context.tools(plain()) == ()
    assert context.getter("llm:model")(chat_call(model="")) is None


@pytest.mark.parametrize(
    "call",
    [
        Call("GET", "/v1/chat/completions", body=b'{"messages":[]}'),
        Call("POST", "/v1/models", body=b'{"messages":[]}'),
        Call("POST", "/v1/chat/completions"),
        Call("POST", "/v1/chat/completions", body=b"not json"),
        Call("POST", "/v1/chat/completions", body=b'{"messages":[]}', headers={"content-encoding": b"zstd"}),
    ],
)
def test_what_is_no_chat(call: Call) -> None:
    """Other methods and paths, no body, garbage, and what is compressed are plain HTTP (C-8, C-9)."""
    assert make().chat(call) is None
    assert call.parsed.chat is False


def test_the_body_is_read_once() -> None:
    """A body is decoded once a request, in as many messages as the bundle needs (Q-1)."""
    call = chat_call()
    call.headers = {"content-encoding": b"Identity"}
    context = make()
    chat = context.chat(call)
    assert chat is not None
    assert len(chat.tail) == 3
    assert context.chat(call) is chat
    more = chat_call()
    more.decision = DecisionState()
    more.decision.tail_messages = 4
    wider = context.chat(more)
    assert wider is not None
    assert len(wider.tail) == 4


def test_sessions() -> None:
    """The client's id, else derived from caller, agent and how the conversation opens; none for plain HTTP (C-7)."""
    context = make()
    assert context.session(plain(x_agent_session=b"s-1")) == "s-1"
    assert context.session(plain()) == ""
    assert context.getter("agent:session")(plain()) is None
    first, later = chat_call(), chat_call(messages=[*CHAT["messages"], {"role": "user", "content": "more"}])
    assert context.session(first) == context.session(later) != ""
    assert context.session(chat_call(messages=[{"role": "user", "content": "else"}])) != context.session(first)
    other_caller = chat_call()
    other_caller.headers = {"x-api-key": b"sk"}
    other_agent = chat_call()
    other_agent.path_agent = "planner"  # type: ignore[misc]
    assert len({context.session(call) for call in (first, other_caller, other_agent)}) == 3


def test_answers_are_kept_on_the_call() -> None:
    """Who calls is worked out once a request (Q-1)."""
    call = plain(x_api_key=b"sk")
    context = make()
    caller, agent, address = context.caller(call), context.agent(call), context.client_ip(call)
    call.headers, call.peer = {}, "1.1.1.1"  # type: ignore[misc]
    assert (context.caller(call), context.agent(call), context.client_ip(call)) == (caller, agent, address)


def test_a_body_is_taken_apart_once_for_all_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat, step, session, model and system prompt read the same parts; nothing else is taken apart at all (Q-1)."""
    taken: list[str] = []
    parse = registry.parse

    def counted(method: str, path: str, body: bytes, history: KnownHistory | None = None) -> ParsedBody | None:
        taken.append(path)
        return parse(method, path, body, history)

    monkeypatch.setattr(registry, "parse", counted)
    context, call, other = make(), chat_call(), plain()
    assert context.session(call).startswith("derived:")
    assert context.step(call) is not None
    assert context.model_and_system(call) == "gpt-4o\0system\nbe kind"
    assert context.chat(call) is not None
    assert taken == ["/v1/chat/completions"]
    for _ in range(2):
        assert (context.step(other), context.parsed_body(other)) == (None, None)
    assert taken == ["/v1/chat/completions", "/x"]


def test_a_head_is_completed_when_its_messages_are_wanted() -> None:
    """Whoever needs none of them does not pay for them, and takes nothing from those who do (L-3)."""
    call = Call("POST", "/v1/chat/completions", body=json.dumps(CHAT).encode())
    made = make()
    head = made.head(call)
    assert head is not None
    assert (head.model, head.tail, call.parsed.chat) == ("gpt-4o", UNREAD, head)
    chat = made.chat(call)
    assert chat is not None
    assert [message.role for message in chat.tail] == ["user", "assistant", "tool"]
    assert made.head(call) is chat
    assert made.chat(call) is chat
    assert made.head(Call("GET", "/x")) is None


def test_loopback_is_trusted_where_gateways_ask() -> None:
    """The proxy on a loopback address has loopback peers for clients, who could name any address; what is remembered of
    a sender at one door is not used at the other (C-4).
    """
    context = make(trusted_proxies=("127.0.0.0/8",), proxy_trusts=False)
    senders = descriptors.CallerProfiles(context, ())
    headers = {"x-forwarded-for": b"203.0.113.9", "x-country-code": b"NO"}
    for upstream, address, country in (("", "203.0.113.9", "NO"), ("openai", "127.0.0.1", None)) * 2:
        call = Call("POST", "/", headers=headers, peer="127.0.0.1", upstream=upstream)
        senders.find(call, 0.0)
        assert (context.client_ip(call), context.getter("ip:country")(call)) == (address, country)
