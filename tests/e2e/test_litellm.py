"""The guardrail in the real proxy of LiteLLM: a looping agent is told, then stopped with an error that its SDK knows; a
healthy one is left alone. One proxy for all: its guardrails are chosen by request, and each test is an agent of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from ruamel.yaml import YAML

from breakloop.testing import SeenRequest, ThreadedLLM, call_tool, fail
from tests.deadlines import DEADLINE_S
from tests.e2e.behind import free_port
from tests.e2e.environments import program_of, variables
from tests.e2e.served import KEY, SRC, Served, eventually, refusing, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = SRC.parent / "examples" / "litellm"
MASTER_KEY = f"{KEY}litellm"
SHADOW = """
bundle_version: 1
policies: []
global_shadow: {enabled: true, reason: "looking first", expires_at: 2030-01-31T18:00:00Z}
"""
CONFIG = """
model_list:
  - model_name: stand-in
    litellm_params: {{model: openai/stand-in, api_base: "{llm}/v1", api_key: none}}
  - model_name: claude
    litellm_params: {{model: anthropic/claude, api_base: "{llm}", api_key: none}}
guardrails:
  - guardrail_name: builtin
    litellm_params: {{guardrail: breakloop.integrations.litellm.BreakloopGuardrail, mode: pre_call}}
  - guardrail_name: steering
    litellm_params: {{guardrail: breakloop.integrations.litellm.BreakloopGuardrail, mode: pre_call, policy: policy.yaml}}
  - guardrail_name: answering
    litellm_params: {{guardrail: breakloop.integrations.litellm.BreakloopGuardrail, mode: pre_call, on_block: answer}}
  - guardrail_name: remote
    litellm_params: {{guardrail: breakloop.integrations.litellm.BreakloopGuardrail, mode: pre_call, api_base: "{service}", api_key: k}}
  - guardrail_name: absent
    litellm_params: {{guardrail: breakloop.integrations.litellm.BreakloopGuardrail, mode: pre_call, api_base: "{absent}"}}
  - guardrail_name: shadow
    litellm_params: {{guardrail: breakloop.integrations.litellm.BreakloopGuardrail, mode: pre_call, policy: shadow.yaml}}
router_settings: {{num_retries: 0, disable_cooldowns: true}}
general_settings: {{master_key: {key}}}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("service"), "--mode", "decision") as running:
        yield running


@pytest.fixture(scope="module")
def proxy(llm: ThreadedLLM, served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The proxy's URL."""
    folder = tmp_path_factory.mktemp("litellm")
    shutil.copy(EXAMPLE / "policy.yaml", folder)
    (folder / "shadow.yaml").write_text(SHADOW)
    with refusing() as absent:
        text = CONFIG.format(llm=llm.url, service=served.url, absent=absent, key=MASTER_KEY)
        (folder / "config.yaml").write_text(text)
        with running(folder) as url:
            yield url
    assert KEY not in (folder / "log").read_text(), "Y-1: a key in the log"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    command, port = program_of("litellm", "litellm"), free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [command, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=variables(folder / "home"),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: process.poll() is not None or _alive(url), "LiteLLM", within_s=250)
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield url
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _alive(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/liveliness", timeout=DEADLINE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


Make = Callable[[str, str], "Agent"]


@pytest.fixture
def agent_of(llm: ThreadedLLM, proxy: str) -> Iterator[Make]:
    with ExitStack() as opened:

        def made(name: str, guardrail: str) -> Agent:
            agent = Agent(llm, proxy, name, guardrail)
            opened.callback(agent.client.close)
            return agent

        yield made


class Agent:
    """An agent with OpenAI's SDK behind the proxy; its model wants to do the same again and again."""

    def __init__(self, llm: ThreadedLLM, proxy: str, name: str, guardrail: str) -> None:
        self.llm = llm
        self.client = openai.OpenAI(base_url=f"{proxy}/v1", api_key=MASTER_KEY, default_headers={"X-Agent-Id": name})
        self.extra = {"guardrails": [guardrail]} if guardrail else {}
        self.messages: list[Any] = [{"role": "user", "content": f"Find it for {name}."}]
        self.number = 0

    def owns(self, seen: SeenRequest) -> bool:
        return self.messages[0]["content"].encode() in seen.body

    def ask(self, *, stream: bool = False, query: str = "x") -> dict[str, str]:
        """One turn: ask, and do what the model wants, which finds nothing. Returns the header of the answer."""
        self.llm.next(call_tool("search", {"query": query}), when=self.owns)
        raw = self.client.chat.completions.with_raw_response.create(
            model="stand-in", messages=self.messages, stream=stream, extra_body=self.extra
        )
        answer = raw.parse()
        if isinstance(answer, openai.Stream):
            list(answer)  # read to its end, as the SDK would
        self.did(query)
        return dict(raw.headers.items())

    def did(self, query: str) -> None:
        """Take in a step."""
        self.number += 1
        made, name = f"call_{self.number}", {"name": "search", "arguments": json.dumps({"query": query})}
        calls = [{"id": made, "type": "function", "function": name}]
        self.messages.append({"role": "assistant", "tool_calls": calls})
        self.messages.append({"role": "tool", "tool_call_id": made, "content": f"nothing about {query}"})

    @property
    def received(self) -> Any:
        """The messages that came to the model last."""
        return json.loads(self.llm.requests[-1].body)["messages"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_looping_agent_is_told_then_stopped(llm: ThreadedLLM, agent_of: Make, *, stream: bool) -> None:
    """The note stands in the conversation; then its SDK's own error, once, with everything that is known
    (P-3, LD-5)."""
    agent = agent_of(f"looping-{stream}", "steering")
    for _ in range(3):
        agent.ask(stream=stream)
        assert len(agent.received) == len(agent.messages) - 2
    for count in ("3 times", "4 times"):
        header = agent.ask(stream=stream)
        note = agent.received[-1]
        assert note["role"] == "user"
        assert note["content"].startswith("[breakloop] You repeat yourself: `search` returned the same 15 bytes")
        assert count in note["content"]
        assert header["x-breakloop-warning"] == "loop_detected"
    seen = len(llm.requests)
    with pytest.raises(openai.RateLimitError) as caught:
        agent.ask(stream=stream)
    error = caught.value
    assert "recursive_loop_detected" in str(error)
    assert error.response.headers["x-should-retry"] == "false"
    assert error.response.headers["x-breakloop-reason"] == "loop_detected"
    assert error.response.headers["retry-after"] == "30"
    assert isinstance(error.body, dict)
    detail = error.body["provider_specific_fields"]["detail"]
    assert (detail["kind"], detail["cooldown_seconds"]) == ("repeat", 30)
    assert "5 times in a row" in detail["evidence"]
    assert len(llm.requests) == seen
    agent.did("elsewhere")
    agent.ask(stream=stream)
    assert agent.received == agent.messages[:-2]


def test_without_a_policy_the_client_is_warned_and_stopped(agent_of: Make) -> None:
    """A warning changes nothing of what was sent; it stands in the answer's header (B-6, LD-5)."""
    agent = agent_of("warned", "builtin")
    headers = []
    for _ in range(5):
        headers.append(agent.ask())
        assert agent.received == agent.messages[:-2]
    assert [header.get("x-breakloop-warning", "") for header in headers] == ["", "", "", *["loop_detected"] * 2]
    with pytest.raises(openai.RateLimitError):
        agent.ask()


def test_a_healthy_agent_is_left_alone(llm: ThreadedLLM, agent_of: Make) -> None:
    """Byte for byte what LiteLLM sends without the guardrail, and as often (P-3)."""
    seen = len(llm.requests)
    for guardrail in ("", "steering"):
        agent = agent_of("healthy", guardrail)
        for step in range(8):
            assert "x-breakloop-warning" not in agent.ask(query=f"page {step}")
    bodies = [one.body for one in llm.requests[seen:]]
    assert len(bodies) == 16
    assert bodies[:8] == bodies[8:]


def test_a_service_decides_for_several_proxies(agent_of: Make) -> None:
    """With `api_base` it is asked; LiteLLM's key stands for the caller (D-4, D-3)."""
    agent = agent_of("remote", "remote")
    for _ in range(5):
        agent.ask()
    with pytest.raises(openai.RateLimitError) as caught:
        agent.ask()
    assert "recursive_loop_detected" in str(caught.value)


def test_a_service_that_is_not_there_stops_nobody(agent_of: Make) -> None:
    """A service that is not there stops nobody: fail open (D-4)."""
    agent = agent_of("absent", "absent")
    for _ in range(7):
        agent.ask()


def test_in_shadow_nothing_changes(agent_of: Make) -> None:
    """Neither a warning nor a stop (LD-5)."""
    agent = agent_of("shadow", "shadow")
    for _ in range(7):
        assert "x-breakloop-warning" not in agent.ask()


def test_a_denial_may_be_an_answer(llm: ThreadedLLM, agent_of: Make) -> None:
    """For agents that die of an error: the model's turn says why, and calls nothing (P-3)."""
    agent = agent_of("answered", "answering")
    for _ in range(5):
        agent.ask()
    seen = len(llm.requests)
    said = agent.client.chat.completions.create(model="stand-in", messages=agent.messages, extra_body=agent.extra)
    assert (said.choices[0].message.content or "").startswith("Blocked: `search` returned")
    assert not said.choices[0].message.tool_calls
    assert len(llm.requests) == seen


def test_tries_that_failed_do_not_count(llm: ThreadedLLM, agent_of: Make) -> None:
    """The provider's failures are reported, after LiteLLM's own tries; the sixth that is answered is the first
    (D-6)."""
    client = agent_of("failing", "").client.with_options(max_retries=0)
    asked: list[Any] = [{"role": "user", "content": "Again, for the failing one."}]
    for _ in range(7):
        llm.next(fail(503), when=lambda seen: b"the failing one" in seen.body)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="stand-in", messages=asked, extra_body={"guardrails": ["builtin"]})
    client.chat.completions.create(model="stand-in", messages=asked, extra_body={"guardrails": ["builtin"]})


def test_the_other_apis(proxy: str, agent_of: Make) -> None:
    """Anthropic's messages, OpenAI's responses, Gemini's; the sixth of the same is stopped, in their own words
    (P-3, LD-2)."""
    with anthropic.Anthropic(base_url=proxy, api_key=MASTER_KEY) as client:
        said: list[Any] = [{"role": "user", "content": "The same, Claude."}]
        extra = {"guardrails": ["builtin"]}
        for _ in range(5):
            client.messages.create(model="claude", max_tokens=9, messages=said, extra_body=extra)
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(model="claude", max_tokens=9, messages=said, extra_body=extra)
    assert "recursive_loop_detected" in str(caught.value)
    openai_client = agent_of("responses", "").client
    for _ in range(5):
        openai_client.responses.create(model="stand-in", input="The same, please.", extra_body=extra)
    with pytest.raises(openai.RateLimitError):
        openai_client.responses.create(model="stand-in", input="The same, please.", extra_body=extra)
    body = {"contents": [{"role": "user", "parts": [{"text": "The same, Gemini."}]}], **extra}
    head = {"Authorization": f"Bearer {MASTER_KEY}"}
    with httpx.Client(base_url=proxy, headers=head, timeout=DEADLINE_S) as plain:
        said = [plain.post("/v1beta/models/stand-in:generateContent", json=body) for _ in range(6)]
    assert [one.status_code for one in said] == [200] * 5 + [429]


def test_the_page_shows_what_the_example_runs_with() -> None:
    """The lines that people copy, but for the policy (P-3)."""
    page = (SRC.parent / "docs" / "how-to" / "litellm.md").read_text(encoding="utf-8")
    block = page.partition("```yml\n")[2].partition("```")[0]
    read = YAML(typ="safe", pure=True).load
    shipped = read((EXAMPLE / "config.yaml").read_text(encoding="utf-8"))["guardrails"]
    assert shipped[0]["litellm_params"].pop("policy") == "policy.yaml"
    assert read(block)["guardrails"] == shipped
