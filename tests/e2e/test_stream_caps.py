"""Streams that are longer than `max_completion_tokens`, in the real `breakloop serve`: the real SDKs get an ordinary end,
the upstream is hung up on, and the limit is charged with what passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from openai import OpenAI
from openai.types.responses import ResponseIncompleteEvent

from breakloop.dialects.framing import SseParser
from breakloop.testing import ThreadedLLM, say
from tests.deadlines import DEADLINE_S
from tests.e2e.proxied import Proxied, one_test, proxied, stream_request
from tests.e2e.served import KEY, Caller, Served, eventually

pytestmark = pytest.mark.e2e

CAP = 100
DAY = 5000
KEYED = f"Authorization: Bearer {KEY}raw"
POLICY = f"""\
bundle_version: 1
policies:
  - id: capped
    spec:
      selector: {{pathPrefix: /}}
      rules:
        - name: tokens
          limit_keys: [caller:key]
          algorithm: token_bucket_llm
          algorithm_config:
            {{tokens_per_minute: 60000, tokens_per_day: {DAY}, max_completion_tokens: {CAP}, enforce_mid_stream: true}}
"""
WORDS = [f"Sentence number {number:03} of a long and healthy answer. " for number in range(200)]
TEXT = "".join(WORDS)
# The model says a lot, and then hangs: whoever is not cut waits for ever.
LONG = say(chunks=WORDS).stall(100)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("caps")
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


def check(text: str, caller: Caller) -> None:
    """More than the cap came, and not all. How much came in one piece depends on the machine."""
    assert text == TEXT[: len(text)]
    assert 4 * CAP < len(text) < len(TEXT)
    assert caller.wait_freed().outcome == "aborted"


def test_openai_chat(openai_client: OpenAI, caller: Caller) -> None:
    """An answer that ran into its limit; the next one finds what did not pass given back (L-3)."""
    caller.next(LONG, say("Fine."))
    messages: Any = [{"role": "user", "content": "Go on"}]
    chunks = list(openai_client.chat.completions.create(model="m", messages=messages, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
    assert all(chunk.usage is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    check(text, caller)
    again = openai_client.chat.completions.with_raw_response.create(model="m", messages=messages, max_tokens=1)
    assert DAY - int(again.headers["ratelimit-remaining"]) == -(-len(text) // 4) + 2 + 2 + 1  # both prompts, one token


def test_openai_responses(openai_client: OpenAI, caller: Caller) -> None:
    """Every event in its turn, and at last the response as far as it came (L-3)."""
    caller.next(LONG)
    events = list(openai_client.responses.create(model="m", input="Go on", stream=True))
    last = events[-1]
    assert isinstance(last, ResponseIncompleteEvent)
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    check(last.response.output_text, caller)


def test_anthropic(anthropic_client: anthropic.Anthropic, caller: Caller) -> None:
    """The SDK's own helper, and its count, which is a guess (L-3)."""
    caller.next(LONG)
    messages: Any = [{"role": "user", "content": "Go on"}]
    with anthropic_client.messages.stream(model="m", max_tokens=9000, messages=messages) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    (block,) = message.content
    assert block.type == "text"
    check(block.text, caller)
    assert message.usage.output_tokens == len(block.text) // 4


@pytest.mark.parametrize("dialect", ["openai_completions", "gemini"])
def test_others(proxy: Proxied, dialect: str) -> None:
    """The two other APIs that stream events (L-3)."""
    proxy.llm.next(LONG)
    with proxy.client() as client:
        client.send(stream_request(dialect, KEYED))
        body = client.answer().body
    assert (b'"finish_reason":"length"' if dialect == "openai_completions" else b'"MAX_TOKENS"') in body
    assert 7 < len(list(SseParser().feed(body))) < len(WORDS)


def test_it_is_told(proxy: Proxied) -> None:
    """Whose limit, and nothing of the text (G-2, Y-1)."""
    proxy.llm.next(LONG)
    with proxy.client() as client:
        client.send(stream_request("openai_chat", KEYED))
        client.answer()
    eventually(lambda: bool(proxy.served.log("limit.exceeded")), "told")
    line = proxy.served.log("limit.exceeded")[0]
    assert [line[name] for name in ("policy", "rule", "reason", "action")] == [
        "capped",
        "tokens",
        "max_completion_tokens",
        "cut",
    ]
    assert "healthy" not in str(proxy.served.log())
