"""`retry_thoughts` in the real `breakloop serve`: a thought that repeats itself is ended, the model is asked once more, and
the SDKs get one response with an answer. The model hangs after its thoughts: whoever is not helped waits for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from openai import OpenAI

from breakloop.testing import Answer, ThreadedLLM, body, call_tool, cut, fail, say
from tests.deadlines import DEADLINE_S
from tests.e2e.proxied import Proxied, one_test, proxied, stream_request
from tests.e2e.served import Caller, Served, eventually
from tests.redis_servers import Server

pytestmark = pytest.mark.e2e

UNIT = "I should check the configuration file again before I go on with the migration. "
REPEATS = 60
POLICY = """\
bundle_version: 1
policies:
  - id: guarded
    spec:
      selector: {pathPrefix: /}
      loop_detection: {similarity: steps, retry_thoughts: true}
"""
NOTE = "Your last thought repeated itself (the same 79 characters"
TOOL: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


def events(*sent: dict[str, Any]) -> list[bytes]:
    names = [f"event: {one['type']}\n" if "type" in one else "" for one in sent]
    return [f"{name}data: {json.dumps(one)}\n\n".encode() for name, one in zip(names, sent, strict=True)]


def stream(*sent: dict[str, Any]) -> Answer:
    return body(events(*sent), content_type="text/event-stream").stall(len(sent) - 20)


def thinking(text: str = UNIT, *, times: int = REPEATS) -> Answer:
    usage = {"input_tokens": 300, "output_tokens": 1}
    begun = {"id": "m1", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": usage}
    block = {"type": "thinking", "thinking": "", "signature": ""}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}}
    return stream(
        {"type": "message_start", "message": begun | {"stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *[piece] * times,
    )


def reasoning(times: int = REPEATS) -> Answer:
    """As open models send it over the chat API."""
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    piece = {**chunk, "choices": [{"index": 0, "delta": {"reasoning_content": UNIT}, "finish_reason": None}]}
    return stream(*[piece] * times)


def summary(*, store: bool) -> Answer:
    """As the Responses API sends it."""
    made = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "output": [], "parallel_tool_calls": True}
    begun = {**made, "status": "in_progress", "tool_choice": "auto", "tools": [], "store": store}
    item = {"id": "rs_1", "type": "reasoning", "summary": []}
    piece = {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0, "summary_index": 0}
    sent: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *[{**piece, "delta": UNIT} for _ in range(REPEATS)],
    ]
    return stream(*[{**one, "sequence_number": number} for number, one in enumerate(sent)])


def thoughts_of_gemini() -> Answer:
    content = {"role": "model", "parts": [{"text": UNIT, "thought": True}]}
    return stream(*[{"candidates": [{"content": content, "index": 0}], "responseId": "g1"}] * REPEATS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("thoughts")
    (folder / "bundle.yaml").write_text(POLICY)
    with proxied(folder, "--policy", "bundle.yaml") as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


@pytest.fixture
def served(proxy: Proxied) -> Served:
    return proxy.served


@pytest.fixture
def llm(running: Proxied) -> ThreadedLLM:
    return running.llm


@pytest.fixture
def openai_client(served: Served, caller: Caller) -> Iterator[OpenAI]:
    with OpenAI(api_key=caller.key, base_url=f"{served.url}/v1", timeout=DEADLINE_S, max_retries=0) as made:
        yield made


@pytest.fixture
def anthropic_client(served: Served, caller: Caller) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key=caller.key, base_url=served.url, timeout=DEADLINE_S, max_retries=0) as made:
        yield made


def test_anthropic(anthropic_client: anthropic.Anthropic, caller: Caller) -> None:
    """The second response is the rest of the message, a tool call included; the next request has no trace of the thought,
    whose signature the API would refuse (LD-13)."""
    caller.next(thinking(), call_tool("look", {"at": "the file"}).with_usage(310, 20), say("It is empty."))
    asked: list[Any] = [{"role": "user", "content": "Is the file empty?"}]
    wanted: dict[str, Any] = {"model": "m", "max_tokens": 9000, "tools": [TOOL]}
    with anthropic_client.messages.stream(messages=asked, **wanted) as stream:
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens > 20 + 1200 // 4
    first, second = caller.seen
    assert NOTE in json.dumps(second.fields["messages"][-1])
    assert {**second.fields, "messages": 0} == {**first.fields, "messages": 0}

    result = {"type": "tool_result", "tool_use_id": message.content[1].id, "content": "0 bytes"}  # type: ignore[union-attr]
    content = [block.model_dump(exclude_none=True) for block in message.content]
    asked += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    answer = anthropic_client.messages.create(messages=asked, **wanted)
    assert [block.text for block in answer.content if block.type == "text"] == ["It is empty."]
    assert [block["type"] for block in caller.seen[-1].fields["messages"][1]["content"]] == ["tool_use"]


def test_openai_chat(openai_client: OpenAI, caller: Caller) -> None:
    """One completion, with a reason to finish (LD-13)."""
    caller.next(reasoning(), say("It is empty."))
    messages: Any = [{"role": "user", "content": "Is the file empty?"}]
    chunks = list(openai_client.chat.completions.create(model="m", messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is empty."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.id for chunk in chunks} == {"c1"}
    assert NOTE in json.dumps(caller.seen[-1].fields["messages"])


def test_openai_responses(openai_client: OpenAI, caller: Caller) -> None:
    """Numbers go on; the item of the thought is not in the response, because a later request could not refer to it
    (LD-13)."""
    caller.next(summary(store=False), say("It is empty."))
    with openai_client.responses.stream(model="m", input="Is the file empty?", store=False) as stream:
        got = list(stream)
        response = stream.get_final_response()
    assert [event.sequence_number for event in got] == list(range(len(got)))
    assert [event.type for event in got].count("response.created") == 1
    assert (response.output_text, response.status) == ("It is empty.", "completed")
    assert [item.type for item in response.output] == ["message"]

    # Clients that collect items send this one, too.
    items = [event.item.model_dump(exclude_none=True) for event in got if event.type == "response.output_item.done"]
    assert [item["type"] for item in items] == ["reasoning", "message"]
    openai_client.responses.create(model="m", input=[*items, {"role": "user", "content": "And now?"}], store=False)  # type: ignore[list-item]
    assert [item.get("type") for item in caller.seen[-1].fields["input"]] == ["message", None]


def test_a_response_that_the_provider_stores(openai_client: OpenAI, caller: Caller) -> None:
    """Is cut: the next request would name it, and it was never completed (LD-13)."""
    caller.next(summary(store=True))
    got = list(openai_client.responses.create(model="m", input="Is the file empty?", stream=True))
    assert got[-1].type == "response.incomplete"
    assert len(caller.seen) == 1


def test_gemini(proxy: Proxied) -> None:
    """Chunks of the second response follow (LD-13)."""
    proxy.llm.next(thoughts_of_gemini(), say("It is empty."))
    with proxy.client() as client:
        client.send(stream_request("gemini"))
        found = client.answer()
    pieces = [json.loads(line[6:]) for line in found.body.decode().splitlines() if line.startswith("data: ")]
    parts = [part for piece in pieces for part in piece["candidates"][0].get("content", {}).get("parts", [])]
    assert "".join(part["text"] for part in parts if not part.get("thought")) == "It is empty."
    assert pieces[-1]["candidates"][0]["finishReason"] == "STOP"


ENDS = {
    "repeated": (thinking(), "max_tokens", ["thinking", "thinking"]),
    "failed": (fail(500), "max_tokens", ["thinking"]),
    "refused": (fail(400), "max_tokens", ["thinking"]),
    "cut off": (cut("start"), "max_tokens", ["thinking"]),
    "of known length": (say("It is empty.").framed("length"), "end_turn", ["thinking", "text"]),
    "until the connection ends": (say("It is empty.").framed("close"), "end_turn", ["thinking", "text"]),
}


@pytest.mark.parametrize("end", ENDS)
def test_how_the_second_response_ends(anthropic_client: anthropic.Anthropic, caller: Caller, end: str) -> None:
    """There is no third. If the second repeats itself, fails or is refused, the message ends as one that was cut (LD-8,
    LD-13)."""
    second, stop_reason, blocks = ENDS[end]
    caller.next(thinking(), second, say("Fine."))
    messages: Any = [{"role": "user", "content": f"Think: {end}"}]
    with anthropic_client.messages.stream(model="m", max_tokens=9000, messages=messages) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, [block.type for block in message.content]) == (stop_reason, blocks)
    assert len(caller.seen) == 2
    again = anthropic_client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": end}])
    assert [block.text for block in again.content if block.type == "text"] == ["Fine."]


def test_the_second_request_is_decided(tmp_path: Path) -> None:
    """It is charged to every limit; where it does not pass, the first response is cut (LD-13)."""
    rule = (
        "{name: one, limit_keys: [], algorithm: token_bucket, algorithm_config: {tokens_per_second: 0.001, burst: 3}}"
    )
    (tmp_path / "bundle.yaml").write_text(f"{POLICY}      rules: [{rule}]\n")
    with proxied(tmp_path, "--policy", "bundle.yaml") as proxy, proxy.client() as client:
        for answers, end in (((reasoning(), say("It is empty.")), b'"stop"'), ((reasoning(),), b'"length"')):
            proxy.llm.next(*answers)
            client.send(stream_request("openai_chat"))
            assert end in client.answer().body
        eventually(lambda: len(proxy.served.log("loop.detected")) == 2, "told")
        assert len(proxy.llm.requests) == 3


@pytest.mark.parametrize("manner", ["in pieces", "close", "HTTP/1.0"])
def test_every_framing(proxy: Proxied, manner: str) -> None:
    """Chunks of anything, until the connection ends, and what a 1.0 client gets (LD-13, D-1)."""
    # In pieces: more than a busy machine reads at once, and the last piece is in an event.
    pieces = reasoning(400).pieces_of(97).stall(700)
    first = {"in pieces": pieces, "close": reasoning().framed("close")}.get(manner, reasoning())
    proxy.llm.next(first, say("It is empty."))
    with proxy.client() as client:
        client.send(stream_request("openai_chat", version="1.0" if manner == "HTTP/1.0" else "1.1"))
        found = client.answer()
    assert found.body.endswith(b"data: [DONE]\n\n")
    chunks = [json.loads(line[6:]) for line in found.body.decode().splitlines() if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks) == "It is empty."


def test_a_client_that_leaves(proxy: Proxied) -> None:
    """While the second response is awaited: the upstream is freed (LD-13, D-1)."""
    proxy.llm.next(reasoning(), say("Hello.").stall("start"))
    before = len(proxy.llm.requests)
    with proxy.client() as client:
        client.send(stream_request("openai_chat"))
        proxy.llm.wait_until(lambda: len(proxy.llm.llm.requests) == before + 2)
    assert proxy.llm.wait_for_disconnect(proxy.llm.requests[-1]).outcome == "aborted"


def test_with_redis(tmp_path: Path, redis_server: Server) -> None:
    """The second decision arrives later (LD-13)."""
    (tmp_path / "bundle.yaml").write_text(POLICY)
    state = ("--state", f"{redis_server.url}?time_budget_ms=5000")
    with proxied(tmp_path, "--policy", "bundle.yaml", *state) as proxy, proxy.client() as client:
        proxy.llm.next(reasoning(), say("It is empty."), say("Fine."))
        client.send(stream_request("openai_chat"))
        assert b'"stop"' in client.answer().body
        client.send(stream_request("openai_chat"))
        assert b"Fine." in client.answer().body


def test_text_is_cut_as_before(openai_client: OpenAI, caller: Caller) -> None:
    """An answer that has begun cannot be taken back (LD-8)."""
    caller.next(say(UNIT * REPEATS).stall(700))
    messages: Any = [{"role": "user", "content": "Go on"}]
    chunks = list(openai_client.chat.completions.create(model="m", messages=messages, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(caller.seen) == 1


@pytest.mark.parametrize(("dialect", "thought"), [("openai_chat", reasoning()), ("anthropic_messages", thinking())])
def test_both_requests_are_charged(tmp_path: Path, dialect: str, thought: Answer) -> None:
    """What the thought has used is estimated by its length, and the second response is counted as the provider says; the
    client gets no count that it did not ask for (LD-13, L-3)."""
    config = "{tokens_per_minute: 60000, tokens_per_day: 20000}"
    rule = f"{{name: day, limit_keys: [], algorithm: token_bucket_llm, algorithm_config: {config}}}"
    (tmp_path / "bundle.yaml").write_text(f"{POLICY}      rules: [{rule}]\n")
    with proxied(tmp_path, "--policy", "bundle.yaml") as proxy, proxy.client() as client:

        def left(*answers: Answer) -> int:
            proxy.llm.next(*answers)
            client.send(stream_request(dialect))
            found = client.answer()
            assert dialect == "anthropic_messages" or b'"usage"' not in found.body
            return int(found["ratelimit-remaining"])

        before = left(say("Fine.").with_usage(10, 10))
        left(thought, say("It is empty.").with_usage(1000, 500))
        used = before - left(say("Fine.").with_usage(10, 10))
    assert 1500 + 1200 // 4 < used < 1500 + REPEATS * len(UNIT) // 4 + 500  # and the prompt, twice
