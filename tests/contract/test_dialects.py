"""What every dialect promises, over one table: what is read, what does not count, what tells requests apart, and that
the built-in loop protection covers it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import registry
from breakloop.model.call import Call, Chat
from tests.builders import bundle, call, policy, tail, world
from tests.each import each
from tests.unit.dialects.parsing import read_chat, read_opening

Json = dict[str, Any]
# A step of an agent: what it was told, or (tool, arguments, what came back).
Step = str | tuple[str, Json, str]


@dataclass(frozen=True)
class Sample:
    """One dialect: its address, and how it writes a conversation (`ids` gives new ones at each call)."""

    name: str
    provider: str
    path: str
    write: Callable[[list[Step], Iterator[int]], Json]
    is_talk: bool = True  # has a history of messages, and calls and results in it
    limit: tuple[str, ...] = ()
    in_path: bool = False

    def body(self, *steps: Step, ids: int = 0, **more: Any) -> Json:
        body = self.write(list(steps), itertools.count(ids))
        return {**({} if self.in_path or self.name == "mcp" else {"model": "m-1"}), **body, **more}

    def read(self, body: Json | bytes, tail: int = 3) -> Chat:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        chat = read_chat("POST", self.path, raw, tail)
        assert chat is not None
        return chat

    def call(self, *steps: Step, ids: int = 0) -> Call:
        raw = json.dumps(self.body(*steps, ids=ids)).encode()
        return call(self.path, "POST", {"authorization": "Bearer sk-one"}, body=raw)


def _chat(steps: list[Step], ids: Iterator[int]) -> Json:
    messages: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            messages.append({"role": "user", "content": step})
            continue
        tool, arguments, result = step
        made = {"id": f"call_{next(ids)}", "type": "function"}
        made["function"] = {"name": tool, "arguments": json.dumps(arguments)}  # type: ignore[assignment]
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})
    return {"messages": messages}


def _responses(steps: list[Step], ids: Iterator[int]) -> Json:
    items: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            items.append({"role": "user", "content": [{"type": "input_text", "text": step}]})
            continue
        tool, arguments, result = step
        made = f"call_{next(ids)}"
        items.append({"type": "reasoning", "id": f"rs_{next(ids)}", "summary": [], "encrypted_content": str(next(ids))})
        made_call = {"type": "function_call", "id": f"fc_{made}", "call_id": made, "name": tool}
        items.append({**made_call, "arguments": json.dumps(arguments)})
        items.append({"type": "function_call_output", "call_id": made, "output": result})
    return {"input": items}


def _anthropic(steps: list[Step], ids: Iterator[int]) -> Json:
    messages: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            messages.append({"role": "user", "content": step})
            continue
        tool, arguments, result = step
        made = f"toolu_{next(ids)}"
        thinking = {"type": "thinking", "thinking": f"hm {next(ids)}", "signature": "s"}
        used = {"type": "tool_use", "id": made, "name": tool, "input": arguments}
        messages.append({"role": "assistant", "content": [thinking, used]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": made, "content": result}]})
    return {"messages": messages, "max_tokens": 100}


def _gemini(steps: list[Step], ids: Iterator[int]) -> Json:
    contents: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            contents.append({"role": "user", "parts": [{"text": step}]})
            continue
        tool, arguments, result = step
        made = f"fc-{next(ids)}"
        asked = {"functionCall": {"id": made, "name": tool, "args": arguments}, "thoughtSignature": f"{next(ids)}"}
        answer = {"functionResponse": {"id": made, "name": tool, "response": {"result": result}}}
        contents += [{"role": "model", "parts": [asked]}, {"role": "user", "parts": [answer]}]
    return {"contents": contents}


def _ollama(steps: list[Step], _ids: Iterator[int]) -> Json:
    messages: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            messages.append({"role": "user", "content": step})
            continue
        tool, arguments, result = step
        made = {"function": {"name": tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_name": tool, "content": result})
    return {"messages": messages, "stream": False}


def _cohere(steps: list[Step], ids: Iterator[int]) -> Json:
    body = _chat(steps, ids)
    for message in body["messages"]:
        if message["role"] == "tool":
            message["content"] = [{"type": "document", "document": {"data": message["content"]}}]
    return body


def _hosted(steps: list[Step], ids: Iterator[int]) -> Json:
    return {**_anthropic(steps, ids), "anthropic_version": "v"}


def _converse(steps: list[Step], ids: Iterator[int]) -> Json:
    messages: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            messages.append({"role": "user", "content": [{"text": step}]})
            continue
        tool, arguments, result = step
        used = {"toolUseId": f"tooluse_{next(ids)}", "name": tool, "input": arguments}
        thought = {"reasoningContent": {"reasoningText": {"text": f"hm {next(ids)}"}}}
        returned = {"toolUseId": used["toolUseId"], "content": [{"text": result}], "status": "success"}
        messages.append({"role": "assistant", "content": [thought, {"toolUse": used}]})
        messages.append({"role": "user", "content": [{"toolResult": returned}, {"cachePoint": {"type": "default"}}]})
    return {"messages": messages}


def _conversations(steps: list[Step], ids: Iterator[int]) -> Json:
    entries: list[Json] = []
    for step in steps:
        if isinstance(step, str):
            entries.append({"type": "message.input", "role": "user", "content": step})
            continue
        tool, arguments, result = step
        made = f"call_{next(ids)}"
        called = {"type": "function.call", "tool_call_id": made, "name": tool, "arguments": json.dumps(arguments)}
        entries += [called, {"type": "function.result", "tool_call_id": made, "result": result}]
    return {"inputs": entries}


def _completions(steps: list[Step], _ids: Iterator[int]) -> Json:
    return {"prompt": "\n".join(map(str, steps))}


def _generate(steps: list[Step], ids: Iterator[int]) -> Json:
    return {**_completions(steps, ids), "stream": False}


def _embeddings(steps: list[Step], _ids: Iterator[int]) -> Json:
    return {"input": [str(step) for step in steps]}


def _mcp(steps: list[Step], ids: Iterator[int]) -> Json:
    step = steps[-1]
    tool, arguments = ("say", {"text": step}) if isinstance(step, str) else step[:2]
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": next(ids)}}
    return {"jsonrpc": "2.0", "id": next(ids), "method": "tools/call", "params": params}


SAMPLES = [
    Sample("openai_chat", "openai", "/v1/chat/completions", _chat, limit=("max_completion_tokens",)),
    Sample("openai_responses", "openai", "/v1/responses", _responses, limit=("max_output_tokens",)),
    Sample("anthropic_messages", "anthropic", "/v1/messages", _anthropic, limit=("max_tokens",)),
    Sample(
        "gemini",
        "gemini",
        "/v1beta/models/m-1:generateContent",
        _gemini,
        limit=("generationConfig", "maxOutputTokens"),
        in_path=True,
    ),
    Sample("openai_completions", "openai", "/v1/completions", _completions, is_talk=False, limit=("max_tokens",)),
    Sample("openai_embeddings", "openai", "/v1/embeddings", _embeddings, is_talk=False),
    Sample("mcp", "mcp", "/mcp", _mcp, is_talk=False),
    Sample("ollama_chat", "ollama", "/api/chat", _ollama, limit=("options", "num_predict")),
    Sample("ollama_generate", "ollama", "/api/generate", _generate, is_talk=False, limit=("options", "num_predict")),
    Sample("cohere_chat", "cohere", "/v2/chat", _cohere, limit=("max_tokens",)),
    Sample(
        "vertex_anthropic",
        "vertex",
        "/v1/projects/p/locations/l/publishers/anthropic/models/m-1:rawPredict",
        _hosted,
        limit=("max_tokens",),
        in_path=True,
    ),
    Sample("bedrock_anthropic", "bedrock", "/model/m-1/invoke", _hosted, limit=("max_tokens",), in_path=True),
    Sample("bedrock_chat", "bedrock", "/model/m-1/invoke", _chat, limit=("max_tokens",), in_path=True),
    Sample(
        "bedrock_converse",
        "bedrock",
        "/model/m-1/converse",
        _converse,
        limit=("inferenceConfig", "maxTokens"),
        in_path=True,
    ),
    Sample(
        "mistral_conversations",
        "mistral",
        "/v1/conversations",
        _conversations,
        limit=("completion_args", "max_tokens"),
    ),
]
SEARCH = ("search", {"q": "cats", "n": 1}, "nothing found")

STREAMED = {
    "gemini": "/v1beta/models/m-1:streamGenerateContent",
    "vertex_anthropic": "/v1/projects/p/locations/l/publishers/anthropic/models/m-1:streamRawPredict",
    "bedrock_anthropic": "/model/m-1/invoke-with-response-stream",
    "bedrock_chat": "/model/m-1/invoke-with-response-stream",
    "bedrock_converse": "/model/m-1/converse-stream",
}

every = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
talks = pytest.mark.parametrize("sample", [one for one in SAMPLES if one.is_talk], ids=lambda sample: sample.name)


@every
def test_dialect_model_and_provider(sample: Sample) -> None:
    """A request is known by its address (MCP by its body), and says which model it is for (C-6, C-8)."""
    chat = sample.read(sample.body("hi"))
    assert (chat.dialect, registry.DIALECTS[chat.dialect].provider) == (sample.name, sample.provider)
    assert chat.model == ("" if sample.name == "mcp" else "m-1")
    assert chat.fallback == ""
    descriptors = world().descriptors
    assert descriptors.getter("llm:provider")(sample.call("hi")) == sample.provider


@talks
def test_the_last_messages_calls_and_results(sample: Sample) -> None:
    """The last messages, oldest first, with calls by name and arguments, and what came back (C-8, LD-2)."""
    body = sample.body("first", "second", SEARCH)
    said, asked, result = sample.read(body).tail
    assert (said.role, said.text) == ("user", "second")
    assert [(made.name, json.loads(made.arguments)) for made in asked.calls] == [("search", {"q": "cats", "n": 1})]
    assert asked.text == ""
    assert "nothing found" in result.text
    assert result.calls == ()
    assert sample.read(body, 1).tail == (result,)
    assert sample.read(body, 0).tail == ()


@every
def test_stream_flag_and_token_limit(sample: Sample) -> None:
    """Whether the answer is streamed, and how long it may get (C-8)."""
    more: Any = 77
    for name in reversed(sample.limit):
        more = {name: more}
    body = {**sample.body("hi"), **(more if sample.limit else {})}
    chat = sample.read(body)
    assert chat.max_tokens == (77 if sample.limit else None)
    assert chat.stream is False
    if sample.in_path:
        path = STREAMED[sample.name]
        streamed = read_chat("POST", path, json.dumps(body).encode(), 3)
        assert streamed is not None
        assert (streamed.stream, streamed.model) == (True, "m-1")
    elif sample.name not in {"mcp", "openai_embeddings"}:
        assert sample.read({**body, "stream": True}).stream is True


def _respelled(value: Any) -> Any:
    """The same with other key order, in arguments that are JSON texts too."""
    if isinstance(value, dict):
        return {key: _respelled(value[key]) for key in sorted(value, reverse=True)}
    if isinstance(value, list):
        return [_respelled(item) for item in value]
    if isinstance(value, str) and value.startswith("{"):
        return json.dumps(_respelled(json.loads(value)), indent=3)
    return value


def _marked(value: Any) -> Any:
    """The same with a cache mark on every object that has a type."""
    if isinstance(value, dict):
        marked = {key: _marked(item) for key, item in value.items()}
        return {**marked, "cache_control": {"type": "ephemeral"}} if "type" in value else marked
    return [_marked(item) for item in value] if isinstance(value, list) else value


@every
def test_what_is_not_identity(sample: Sample) -> None:
    """Ids, key order, white space, escapes, cache marks, metadata and thinking do not count (C-8)."""
    plain = sample.read(sample.body("naïve", SEARCH)).tail
    assert sample.read(sample.body("naïve", SEARCH, ids=900)).tail == plain
    assert sample.read(_respelled(sample.body("naïve", SEARCH))).tail == plain
    assert sample.read(_marked(sample.body("naïve", SEARCH))).tail == plain
    assert sample.read(sample.body("naïve", SEARCH, metadata={"user_id": "u"}, user="x")).tail == plain
    spelled = json.dumps(sample.body("naïve", SEARCH), ensure_ascii=False, indent=2).encode()
    assert sample.read(spelled).tail == plain


@every
def test_what_is_identity(sample: Sample) -> None:
    """Another text, argument or tool is another request; for conversations another result is too (C-8)."""
    tool, arguments, result = SEARCH
    others: list[Step] = ["other", ("find", arguments, result), (tool, {**arguments, "n": 2}, result)]
    if sample.is_talk:
        others.append((tool, arguments, "two found"))
    tails = [sample.read(sample.body("hi", step)).tail for step in (SEARCH, *others)]
    assert len(set(tails)) == len(tails)


@every
def test_byte_order_mark_and_lone_surrogate(sample: Sample) -> None:
    """The tolerant step reads them, says so, and every text can be encoded (C-9)."""
    body = json.dumps(sample.body("hi", SEARCH)).encode()
    marked = sample.read(b"\xef\xbb\xbf" + body)
    assert marked == sample.read(body)._replace(fallback="tolerant")
    broken = sample.read(json.dumps(sample.body("hi", ("search", {"q": "\ud800"}, "\ud800 x"))).encode())
    assert "?" in str(broken.tail) or "ud800" in str(broken.tail)
    str(broken.tail).encode()


@every
def test_a_wrong_type_in_one_field_blinds_nobody(sample: Sample) -> None:
    """The messages are read all the same (C-9)."""
    body = sample.body("hi", SEARCH)
    odd: Json = {"stream": "yes", "max_tokens": "9", "max_output_tokens": [], "max_completion_tokens": {}}
    odd |= (
        {"generationConfig": "x", "inferenceConfig": "x", "tools": 5}
        if sample.in_path
        else {"jsonrpc": 2}
        if sample.name == "mcp"
        else {"model": 5}
    )
    if sample.name == "openai_embeddings":
        odd["input"] = [*body["input"], None]
        assert sample.read({**body, **odd}).tail[0].text.startswith("<tokens:")
        return
    chat = sample.read({**body, **odd})
    assert chat.tail == sample.read(body).tail
    assert (chat.max_tokens, chat.fallback) == (None, "tolerant")


@every
@each("raw", [b"", b"x", b"7", b'{"a":' * 100_000, b'{"jsonrpc":"2.0","params":' + b"[" * 100_000])
def test_what_is_no_request_is_plain_http(sample: Sample, raw: bytes) -> None:
    """The last step; deep nesting does not crash (C-9)."""
    assert read_chat("POST", sample.path, raw, 3) is None
    assert read_opening("POST", sample.path, raw) == ""
    body = json.dumps(sample.body("hi")).encode()
    assert read_chat("GET", sample.path, body, 3) is None


@talks
def test_the_opening_names_a_conversation(sample: Sample) -> None:
    """The same at every later turn; another for another first message (C-7)."""

    def opening(*steps: Step, **more: Any) -> str:
        return read_opening("POST", sample.path, json.dumps(sample.body(*steps, **more)).encode())

    assert opening("plan a trip") == opening("plan a trip", SEARCH, "go on", ids=50) != ""
    assert opening("plan a trip") != opening("plan a meal")


# -- through the engine ------------------------------------------------------------------------------------------------


@every
def test_the_sixth_identical_request_is_blocked(sample: Sample) -> None:
    """The built-in protection covers every dialect, with new ids each time (B-6, LD-2)."""
    here = world()
    verdicts = [here.decide(sample.call("hi", SEARCH, ids=10 * turn)) for turn in range(6)]
    only_reported = sample.name == "openai_embeddings"
    assert [verdict.allowed for verdict in verdicts] == [True] * 5 + [only_reported]
    assert (verdicts[-1].warning or verdicts[-1].reason) == "loop_detected"
    assert [verdict.warning for verdict in verdicts[:5]] == [""] * 5


@talks
def test_a_growing_conversation_with_the_same_tail_is_blocked(sample: Sample) -> None:
    """The history grows, and what was called and came back stays; the fifth time it is blocked (B-6, LD-4, C1)."""
    here = world()
    verdicts = [here.decide(sample.call("hi", *[SEARCH] * turn)) for turn in range(2, 8)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 4 + [False] * 2
    assert verdicts[4].loop is not None
    assert verdicts[4].loop.kind == "repeat"


@talks
def test_tail_blocks_the_sixth_of_a_growing_conversation(sample: Sample) -> None:
    """By itself, the last messages being the same (LD-2)."""
    here = world(bundle(policy("p", loop=tail())))
    verdicts = [here.decide(sample.call("hi", *[SEARCH] * turn)) for turn in range(2, 8)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 5 + [False]


@every
def test_a_conversation_that_moves_on_is_never_blocked(sample: Sample) -> None:
    """New arguments and new results are progress, however many there are (B-6)."""
    here = world()
    steps: list[Step] = ["hi"]
    for turn in range(30):
        steps.append(("read", {"page": turn}, f"page {turn}"))
        assert here.decide(sample.call(*steps)).allowed


def test_results_on_a_chain_are_progress() -> None:
    """With `previous_response_id` the calls are not seen; thirty that end in "done" are no loop, a retry is (B-6)."""
    here = world()

    def answer(number: int) -> Call:
        result = {"type": "function_call_output", "call_id": f"call_{number}", "output": "done"}
        body = {"model": "m-1", "previous_response_id": f"resp_{number}", "input": [result]}
        return call("/v1/responses", "POST", body=json.dumps(body).encode())

    assert all(here.decide(answer(number)).allowed for number in range(30))
    assert not here.decide(answer(99), times=6).allowed


@pytest.mark.parametrize("path", ["/rooms/1/messages", "/forms/1/responses"])
def test_other_apis_with_such_paths_are_left_alone(path: str) -> None:
    """Posts to a chat room or answers to a form are no LLM calls (B-6)."""
    here = world()
    asked = call(path, "POST", body=b'{"text":"hello","input":"x"}')
    assert here.decide(asked, times=10).allowed


# -- whatever may come -------------------------------------------------------------------------------------------------

_KEYS = [
    "role",
    "content",
    "type",
    "text",
    "name",
    "input",
    "output",
    "arguments",
    "messages",
    "parts",
    "contents",
    "functionCall",
    "functionResponse",
    "response",
    "args",
    "tool_calls",
    "function",
    "call_id",
    "is_error",
    "status",
    "prompt",
    "params",
    "method",
    "jsonrpc",
    "inlineData",
    "thought",
    "system",
]
_WORDS = [
    "function_call",
    "function_call_output",
    "message",
    "reasoning",
    "tool_use",
    "tool_result",
    "thinking",
    "tools/call",
    "2.0",
    "user",
]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = "model messages input prompt contents instructions system systemInstruction generationConfig stream params"


@every
@given(
    st.data(),
    st.dictionaries(st.sampled_from([*_FIELDS.split(), "method", "jsonrpc", "suffix", "max_tokens"]), _VALUES),
)
def test_any_json_anywhere_does_no_harm(sample: Sample, data: st.DataObject, fields: Json) -> None:
    """Nothing raises, and what is read can be encoded (C-9)."""
    body = {**sample.body("hi", SEARCH), **fields}
    body = data.draw(st.sampled_from([body, [body], fields]))
    raw = json.dumps(body).encode()
    chat = read_chat("POST", sample.path, raw, 3)
    if chat is not None:
        chat.model.encode()
        for message in chat.tail:
            "".join([message.role, message.text, *(made.name + made.arguments for made in message.calls)]).encode()
    read_opening("POST", sample.path, raw).encode()


@every
@given(st.binary())
def test_any_bytes_do_no_harm(sample: Sample, raw: bytes) -> None:
    """Garbage is plain HTTP (C-9)."""
    read_chat("POST", sample.path, raw, 3)
    read_opening("POST", sample.path, raw)
