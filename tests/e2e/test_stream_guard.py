"""The stream guard in the real `breakloop serve`: answers that repeat themselves end well for the real SDKs and at once
for the upstream, and answers that repeat things for good reasons pass."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseIncompleteEvent

from breakloop.dialects.framing import SseParser
from breakloop.testing import Answer, ThreadedLLM, body, say
from tests.deadlines import DEADLINE_S
from tests.e2e.proxied import Proxied, one_test, proxied, stream_request
from tests.e2e.served import Caller, Served, eventually

pytestmark = pytest.mark.e2e

UNIT = "I should check the configuration file again before I go on with the migration. "
REPEATS = 60
POLICY = """\
bundle_version: 1
policies:
  - id: guarded
    spec:
      selector: {pathPrefix: /}
      loop_detection: {similarity: steps}
"""
SHADOW = POLICY.replace("    spec:\n", "    spec:\n      mode: shadow\n")
CUT = ("openai_chat", "openai_responses", "openai_completions", "anthropic_messages", "gemini")

# The model repeats itself, and then hangs: whoever is not cut waits for ever.
STUCK = say(UNIT * REPEATS).stall(700)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("guard")
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


def check_text(text: str) -> None:
    """The guard waited for 1,200 characters, and not for the end. How much came in one piece depends on the machine."""
    assert text == (UNIT * REPEATS)[: len(text)]
    assert 1200 <= len(text) < len(UNIT) * REPEATS


def check_freed(caller: Caller) -> None:
    """The upstream has seen the connection end while it still had something to say."""
    assert caller.wait_freed().outcome == "aborted"


# -- SDKs


def test_openai_chat(openai_client: OpenAI, caller: Caller) -> None:
    """An answer that ran into its limit, for the SDK; its connection is used again (LD-8)."""
    caller.next(STUCK, say("Fine."))
    chunks = list(
        openai_client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go on"}], stream=True)
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
    check_text("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    check_freed(caller)
    again = openai_client.chat.completions.create(model="m", messages=[{"role": "user", "content": "And now?"}])
    assert again.choices[0].message.content == "Fine."


def test_openai_chat_by_its_helper(openai_client: OpenAI, caller: Caller) -> None:
    """The SDK's own way to say so is an error of its own, with the answer in it (LD-8)."""
    caller.next(STUCK)
    messages: Any = [{"role": "user", "content": "Go on like that"}]
    with openai_client.chat.completions.stream(model="m", messages=messages) as stream:
        assert [event.type for event in stream][-1] == "content.done"
        with pytest.raises(openai.LengthFinishReasonError) as cut_short:
            stream.get_final_completion()
    check_text(cut_short.value.completion.choices[0].message.content or "")
    check_freed(caller)


def test_openai_chat_async(served: Served, caller: Caller) -> None:
    """The asynchronous client (LD-8)."""
    caller.next(STUCK)

    async def ask() -> tuple[str, str | None]:
        async with AsyncOpenAI(
            api_key=caller.key, base_url=f"{served.url}/v1", timeout=DEADLINE_S, max_retries=0
        ) as client:
            messages: Any = [{"role": "user", "content": "Go on, I wait"}]
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return text, chunks[-1].choices[0].finish_reason

    text, finish = asyncio.run(ask())
    check_text(text)
    assert finish == "length"
    check_freed(caller)


def test_openai_responses(openai_client: OpenAI, caller: Caller) -> None:
    """Every event in its turn, and at last the response as far as it came (LD-8)."""
    caller.next(STUCK)
    got = list(openai_client.responses.create(model="m", input="Go on", stream=True))
    assert [event.sequence_number for event in got] == list(range(len(got)))
    last = got[-1]
    assert isinstance(last, ResponseIncompleteEvent)
    response = last.response
    assert response.incomplete_details is not None
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    check_text(response.output_text)
    check_freed(caller)


def test_openai_responses_by_its_helper(openai_client: OpenAI, caller: Caller) -> None:
    """The SDK puts it together (LD-8)."""
    caller.next(STUCK)
    with openai_client.responses.stream(model="m", input="Go on like that") as stream:
        kinds = [event.type for event in stream]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    check_freed(caller)


def test_anthropic(anthropic_client: anthropic.Anthropic, caller: Caller) -> None:
    """The SDK's own gathering comes to its end; its connection is used again (LD-8)."""
    caller.next(STUCK, say("Fine."))
    with anthropic_client.messages.stream(
        model="m", max_tokens=9000, messages=[{"role": "user", "content": "Go on"}]
    ) as stream:
        message = stream.get_final_message()
    (block,) = message.content
    assert block.type == "text"
    check_text(block.text)
    assert message.stop_reason == "max_tokens"
    assert (len(block.text) - 256) // 4 < message.usage.output_tokens <= len(block.text) // 4
    check_freed(caller)
    again = anthropic_client.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "And now?"}]
    )
    assert [block.text for block in again.content if block.type == "text"] == ["Fine."]


def test_anthropic_thinking(anthropic_client: anthropic.Anthropic, caller: Caller) -> None:
    """Thoughts that repeat themselves are cut, too (LD-8)."""
    usage = {"input_tokens": 3, "output_tokens": 1}
    begun = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": usage}
    sent: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun | {"stop_reason": None, "stop_sequence": None}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        *[{"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": UNIT}}] * REPEATS,
    ]
    events = [b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in sent]
    caller.next(body(events, content_type="text/event-stream").stall(40))
    with anthropic_client.messages.stream(
        model="m", max_tokens=9000, messages=[{"role": "user", "content": "Think"}]
    ) as stream:
        message = stream.get_final_message()
    (block,) = message.content
    assert block.type == "thinking"
    check_text(block.thinking)
    assert message.stop_reason == "max_tokens"
    check_freed(caller)


# -- bytes


def payloads(content: bytes) -> list[Any]:
    return [data.decode() if data == b"[DONE]" else json.loads(data) for data in SseParser().feed(content)]


def test_gemini(proxy: Proxied) -> None:
    """The last piece says why, in the line ends of the stream; there is no end mark (LD-8)."""
    proxy.llm.next(STUCK)
    with proxy.client() as client:
        client.send(stream_request("gemini"))
        found = client.answer()
        assert found.body.endswith(b"\r\n\r\n")
        assert b"\n" not in found.body.replace(b"\r\n", b"")
        *pieces, last = payloads(found.body)
        check_text("".join(piece["candidates"][0]["content"]["parts"][0]["text"] for piece in pieces))
        assert last["candidates"][0]["finishReason"] == "MAX_TOKENS"
        assert last["modelVersion"] == pieces[-1]["modelVersion"]
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"
        client.send(stream_request("gemini"))
        assert client.answer().status == 200


def test_it_is_cut_at_once(proxy: Proxied) -> None:
    """With the very piece that makes it a loop; what came before it has passed as it came (LD-8)."""
    gate = proxy.llm.stepped(say(chunks=[UNIT] * REPEATS))
    with proxy.client() as client:
        client.send(stream_request("openai_chat"))
        assert client.head().status == 200
        for number in range(1, 18):  # the role, and 16 times the text: 1,264 characters, at the fourth look
            assert gate.release() == number
            event = client.chunk()
            assert (UNIT.encode() in event, b"length" in event) == (number > 1, False)
        ending = client.chunk()
        assert b'"finish_reason":"length"' in ending
        assert ending.endswith(b"data: [DONE]\n\n")
        assert client.exactly(5) == b"0\r\n\r\n"
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"
        assert gate.sent == 17


@pytest.mark.parametrize("dialect", CUT)
@pytest.mark.parametrize("manner", ["chunked", "close", "in pieces", "HTTP/1.0"])
def test_every_framing(proxy: Proxied, dialect: str, manner: str) -> None:
    """Chunks of events, chunks of anything, until the connection ends; and what a 1.0 client gets (LD-8, D-1)."""
    answer = say(UNIT * REPEATS).stall(300)
    if manner == "close":
        answer = answer.framed("close")
    elif manner == "in pieces":
        # More than a busy machine reads at once: the guard cuts at the end of an event, and the last piece is in one.
        answer = say(UNIT * 400).pieces_of(97).stall(5000)
    proxy.llm.next(answer)
    with proxy.client() as client:
        version = "1.0" if manner == "HTTP/1.0" else "1.1"
        client.send(stream_request(dialect, version=version))
        found = client.answer()
        assert (found.status, found.framing) == (200, "close" if version == "1.0" else "chunked")
        assert payloads(found.body)
        assert b"ength" in found.body or b"max_" in found.body or b"MAX_TOKENS" in found.body
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"


def test_a_client_that_is_slow(proxy: Proxied) -> None:
    """It reads nothing until there is more than fits in between; then all of it, up to the proper end (LD-8, D-1)."""
    gate = proxy.llm.stepped(say(chunks=["x" * 300_000, *[UNIT] * REPEATS]))
    proxy.llm.next(say("Fine."))
    with proxy.client(small=True) as client:
        client.send(stream_request("openai_chat"))
        found = client.head()
        gate.release(20)
        client.body_of(found)
        assert payloads(found.body)[-2]["choices"][0]["finish_reason"] == "length"
        assert len(found.body) > 300_000
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"
        client.send(stream_request("openai_chat"))
        assert b"Fine." in client.answer().body


def test_a_client_that_leaves_at_that_moment(proxy: Proxied) -> None:
    """Whoever is first, the upstream is freed and the next client is served (LD-8, D-1)."""
    proxy.llm.next(*[STUCK] * 6)
    for number in range(6):
        with proxy.client() as client:
            client.send(stream_request("openai_chat"))
            client.until(b"migration" if number % 2 else b"data: ")
            if number % 3:
                client.reset()
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"
    proxy.llm.next(say("Fine."))
    with proxy.client() as client:
        client.send(stream_request("openai_chat"))
        assert b"Fine." in client.answer().body


def test_what_is_known_to_be_so_long_or_is_packed_passes(tmp_path: Path) -> None:
    """Such an answer cannot be ended; that it repeats itself is told (LD-8)."""
    (tmp_path / "bundle.yaml").write_text(POLICY)
    # An instance of its own: after many loops within a few seconds, the log would only count this one.
    with proxied(tmp_path, "--policy", "bundle.yaml") as proxy, proxy.client() as client:
        for number, answer in enumerate((say(UNIT * 30).framed("length"), say(UNIT * 30).compressed(forced=True)), 1):
            proxy.llm.next(answer)
            client.send(stream_request("openai_chat"))
            found = client.answer()
            assert found.status == 200
            if number == 1:
                assert payloads(found.body)[-1] == "[DONE]"
                assert payloads(found.body)[-2]["choices"][0]["finish_reason"] == "stop"
        eventually(lambda: any(line["action"] == "warn" for line in loops(proxy)), "told")


def loops(proxy: Proxied) -> list[dict[str, Any]]:
    return [line for line in proxy.served.log("loop.detected") if line["kind"] == "stream"]


# -- C32: what never is cut

ROWS: dict[str, str] = {
    "base64": base64.b64encode(bytes(9000)).decode(),
    "a zero matrix": "[0, 0, 0, 0, 0, 0, 0, 0],\n" * 300,
    "dot leaders": "Chapter one . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . .\n" + ". " * 4000,
    "a table": "| item | state | what to do |\n|---|---|---|\n"
    + "| one | done | nothing more to be done here |\n" * 400,
    "JSON": '{"name": "the same words in every row", "done": true},\n' * 200,
    "code": "```python\n" + "        result.append(check(value))\n" * 200,
    "prose, seven times": UNIT * 7 + "And that is all that can be said about it, in so many words. " + UNIT * 7,
}


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic_messages"])
def test_what_repeats_for_good_reasons_is_never_cut(proxy: Proxied, dialect: str, what: str) -> None:
    """base64, a zero matrix, dot leaders, a table of 400 rows, JSON, code (LD-8, C32)."""
    text = ROWS[what]
    proxy.llm.next(say(chunks=[text[at : at + 12] for at in range(0, len(text), 12)]))
    with proxy.client() as client:
        client.send(stream_request(dialect))
        found = payloads(client.answer().body)
    if dialect == "openai_chat":
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in found[:-1])
        finish = found[-2]["choices"][0]["finish_reason"]
    else:
        said = "".join(event["delta"].get("text", "") for event in found if event["type"] == "content_block_delta")
        finish = found[-2]["delta"]["stop_reason"]
    assert said == text
    assert finish in {"stop", "end_turn"}


# -- what is told, and shadow


def test_it_is_told(proxy: Proxied) -> None:
    """Who, what and how often, and nothing of the text (G-2, Y-1)."""
    proxy.llm.next(STUCK)
    with proxy.client() as client:
        client.send(stream_request("openai_chat"))
        client.answer()
    eventually(lambda: any(line["action"] == "cut" for line in loops(proxy)), "told")
    line = next(line for line in loops(proxy) if line["action"] == "cut")
    assert line["evidence"] == f"the same {len(UNIT)} characters {line['hit_count']} times in one answer"
    assert line["hit_count"] >= 8
    assert not line["shadow"]
    assert "configuration" not in json.dumps(proxy.served.log())


def test_in_shadow_nothing_is_cut(tmp_path: Path) -> None:
    """A policy in shadow tells what it would have done (LD-8, E-1)."""
    (tmp_path / "bundle.yaml").write_text(SHADOW)
    built_in = {"LOOP_GUARD_MAX_HITS": "0"}  # which guards what no policy does
    with proxied(tmp_path, "--policy", "bundle.yaml", **built_in) as proxy, proxy.client() as client:
        proxy.llm.next(say(UNIT * REPEATS))
        client.send(stream_request("openai_chat"))
        found = payloads(client.answer().body)
        assert found[-2]["choices"][0]["finish_reason"] == "stop"
        eventually(lambda: len(loops(proxy)) == 1, "told once")
        (line,) = loops(proxy)
        assert (line["shadow"], line["action"]) == (True, "cut")


def test_off_nothing_is_looked_at(tmp_path: Path) -> None:
    """`stream_guard: false` (LD-8)."""
    (tmp_path / "bundle.yaml").write_text(POLICY.replace("steps}", "steps, stream_guard: false}"))
    with proxied(tmp_path, "--policy", "bundle.yaml") as proxy, proxy.client() as client:
        answer: Answer = say(UNIT * REPEATS)
        proxy.llm.next(answer)
        client.send(stream_request("openai_chat"))
        assert payloads(client.answer().body)[-2]["choices"][0]["finish_reason"] == "stop"
        assert loops(proxy) == []
