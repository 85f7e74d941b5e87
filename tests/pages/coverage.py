"""How each block of the pages is tested. A block is run or validated by its language; the tables below have what a reader
does between the blocks, and the blocks that are not run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from tests.pages.blocks import Block

Value = TypeVar("Value")

# Blocks that cannot be run here, by page and beginning, and why. The commands in them are still parsed, and the names in
# them are still checked. The number below may only become smaller.
EXCEPTED: Final = {
    ("ARCHITECTURE.md", "flowchart"): "a diagram",
    ("CONTRIBUTING.md", "make   "): "the list of make targets: this test is part of them",
    ("CONTRIBUTING.md", "make mutants"): "runs for minutes",
    ("CONTRIBUTING.md", "$ make site"): "tests/test_doc_site.py builds the site",
    ("CONTRIBUTING.md", "$ make photograph"): "two minutes for each record",
    ("README.md", "$ make test"): "this test is part of it",
    ("bench/README.md", "make bench"): "takes twenty minutes",
    ("docs/how-to/docker.md", "$ docker build"): "needs a Docker engine",
    ("docs/how-to/docker.md", "$ printf"): "needs a Docker engine",
    ("docs/how-to/kubernetes.md", "$ kubectl create namespace"): "needs a Kubernetes cluster",
    ("docs/how-to/kubernetes.md", "$ kubectl -n agents port-forward"): "needs a Kubernetes cluster",
    ("docs/how-to/kubernetes.md", "$ TOKEN="): "needs a Kubernetes cluster",
    ("docs/how-to/python-guard.md", "$ pip install --target"): "writes into the Python installation",
    ("docs/how-to/run-as-a-service.md", "# python3 -m venv /opt"): "needs root and systemd",
    (
        "docs/how-to/claude-code-and-codex.md",
        "from langchain_anthropic",
    ): "langchain-anthropic is not among our packages",
    ("docs/how-to/claude-code-and-codex.md", "LLM("): "crewai[anthropic] is not among our packages",
    ("docs/explanation/proxy.md", "client -> breakloop"): "a diagram",
    ("docs/explanation/request.md", "bytes ->"): "a diagram",
    ("docs/how-to/upgrade.md", "# /opt"): "needs root and systemd",
    ("docs/how-to/upgrade.md", "$ kubectl"): "needs a Kubernetes cluster",
    ("docs/how-to/webhooks.md", "import { Webhook }"): "standardwebhooks for Node is not among our packages",
    ("docs/how-to/workers.md", "$ ps"): "lists the processes of the whole machine",
}
EXCEPTED_AT_MOST: Final = 22

# What a reader does before the first command of a page (""), or before the command that begins like this.
_SERVING = ["breakloop serve"]
_APPLICATION = ["python3 -m http.server 9000 --bind 127.0.0.1"]
_REDIS = ["redis-server --port 6379 --save '' --dir ."]
_CERTIFICATE = (
    "openssl req -x509 -newkey ed25519 -nodes -keyout key.pem -out cert.pem -subj /CN=gateway "
    "-addext subjectAltName=IP:127.0.0.1"
)
_MCP_CALL = (
    "curl -s http://127.0.0.1:8787/agents/nightly/tools/mcp -H 'Content-Type: application/json' "
    """-d '{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"}}}'"""
)
_TREE = (
    "curl -s -o /dev/null http://127.0.0.1:8787/v1/chat/completions -H 'X-Agent-Session: part-1' "
    "-H 'X-Agent-Parent: run-0815' -H 'Content-Type: application/json' "
    """-d '{"model":"gpt-4.1-mini","messages":[{"role":"user","content":"Read the report."}]}'"""
)
_UNTIL_LISTED = (  # sums per agent are passed on once a second
    'until curl -s http://127.0.0.1:8788/api/v1/trees -H "Authorization: Bearer $BREAKLOOP_ADMIN_TOKEN" '
    "| grep -q run-0815; do sleep 0.1; done"
)
BEFORE: Final[dict[tuple[str, str], list[str]]] = {
    ("README.md", "breakloop init"): ["mkdir own && cp sessions.jsonl own && cd own"],
    ("docs/how-to/claude-code-and-codex.md", ""): _SERVING,
    ("docs/how-to/claude-code-hooks.md", "breakloop init"): ["mkdir project && cd project"],
    ("docs/how-to/hold-provider-keys.md", "OPENAI_BASE_URL="): [
        _CERTIFICATE,
        'HASH=$(printf %s "$KEY" | sha256sum | cut -c1-64)',
        "printf 'callers: [alice=%s]\\ntls: {cert_file: cert.pem, key_file: key.pem}\\n' $HASH >breakloop.yaml",
        *_SERVING,
        "printf 'import openai\\nprint(openai.OpenAI().models.list())\\n' >agent.py",
        "export SSL_CERT_FILE=cert.pem",
    ],
    ("docs/how-to/kill-switch.md", "breakloop switch set"): _SERVING,
    ("docs/how-to/kill-switch.md", "breakloop kill --tree"): [_TREE, _UNTIL_LISTED],
    ("docs/how-to/mcp.md", "curl"): [f"for i in 1 2 3 4 5; do {_MCP_CALL}; done"],
    ("docs/how-to/metrics.md", ""): [*_SERVING, "curl -s http://127.0.0.1:8787/v1/models"],
    ("docs/how-to/remote-bundles.md", ""): [
        "sed -i 's/bundle_version: 1/bundle_version: 7/' policy.yaml",
        *_APPLICATION,
        *_REDIS,
    ],
    ("docs/how-to/replay.md", ""): [
        "mkdir logs healthy && cp sessions.jsonl logs && cp sessions.jsonl healthy && cp policy.yaml new.yaml",
        "gzip -c sessions.jsonl >yesterday.jsonl.gz",
    ],
    ("docs/how-to/run-an-agent.md", ""): ["echo 'print(1)' >agent.py"],
    ("docs/how-to/scan-transcripts.md", ""): [
        "mkdir runs logs && cp sessions.jsonl runs && cp sessions.jsonl logs/agent.jsonl"
    ],
    ("docs/how-to/set-up-a-client.md", "breakloop setup codex --verify"): _SERVING,
    ("docs/how-to/several-instances.md", ""): _REDIS,
    ("docs/how-to/split-a-bundle.md", ""): [
        "mkdir policies && cp policy.yaml policies/10-common.yaml",
        "echo 'policies: []' >policies/20-llm.yaml && echo 'policies: []' >policies/30-tools.yaml",
    ],
    ("docs/how-to/upgrade.md", "breakloop replay"): ["gzip -c sessions.jsonl >yesterday.jsonl.gz"],
    ("docs/how-to/webhooks.md", ""): _SERVING,
    ("docs/how-to/why-denied.md", ""): _SERVING,
    ("docs/how-to/workers.md", ""): _REDIS,
    ("docs/reference/admin-api.md", ""): _SERVING,
    ("docs/reference/proxy-errors.md", ""): ["breakloop serve --upstream down=http://127.0.0.1:1"],
    ("docs/tutorial/first-loop.md", "breakloop validate"): ["sed -i 's/max_hits: 5/max_hit: 3/' policy.yaml"],
    ("docs/tutorial/first-loop.md", "breakloop test"): ["sed -i 's/max_hit: 3/max_hits: 3/' policy.yaml"],
    ("examples/caddy/README.md", ""): _APPLICATION,
    ("examples/haproxy/README.md", ""): _APPLICATION,
    ("examples/nginx/README.md", ""): _APPLICATION,
}
# Commands that fail, as the page says.
FAIL: Final = {
    ("docs/tutorial/first-loop.md", "OPENAI_BASE_URL="),
    ("docs/tutorial/first-loop.md", "breakloop validate"),
    ("docs/tutorial/first-loop.md", "breakloop test"),
    ("examples/drop-in-clients/README.md", "python openai_agent.py"),
}
# Texts of a page that stand for something of the reader's.
REPLACED: Final = {
    "docs/how-to/hold-provider-keys.md": {"https://gateway.example:": "https://127.0.0.1:"},
    "docs/how-to/one-machine.md": {"/var/lib/": "var/lib/"},
    "docs/how-to/remote-bundles.md": {
        "https://policy.example.com/agents/": "http://127.0.0.1:9000/",
        "10.0.0.5:6379": "127.0.0.1:6379",
    },
    "docs/how-to/run-an-agent.md": {"claude -p": "echo"},
    "docs/how-to/several-instances.md": {"/var/lib/": "var/lib/", "10.0.0.5:6379": "127.0.0.1:6379"},
    "docs/how-to/webhooks.md": {"https://hooks.example.com": "https://192.0.2.1"},  # no name needs to be resolved
}
# Environment variables that a page asks for.
_TOKEN = {"BREAKLOOP_ADMIN_TOKEN": "token-of-the-operator-0123456789"}
VARIABLES: Final[dict[str, dict[str, str]]] = {
    "docs/how-to/kill-switch.md": _TOKEN,
    "docs/how-to/set-up-a-client.md": {"BREAKLOOP_URL": "http://127.0.0.1:8787"},
    "docs/how-to/webhooks.md": _TOKEN,
    "docs/how-to/why-denied.md": {"BREAKLOOP_DEBUG_SECRET": "secret-of-the-operator"},
    "docs/reference/admin-api.md": _TOKEN,
    "examples/drop-in-clients/README.md": {"BREAKLOOP_URL": "http://127.0.0.1:8787"},
}
# Pages whose framework has an environment of its own (requirements/).
APART: Final = {
    "examples/claude-agent-sdk/README.md": "claude",
    "examples/crewai/README.md": "crewai",
    "examples/litellm/README.md": "litellm",
}
_IMPORTED: Final = {
    "(?:claude_agent_sdk|breakloop.integrations.claude_agent)": "claude",
    "crewai": "crewai",
    "breakloop.integrations.(?:agent_framework|agno|autogen|dspy|google_adk|haystack|llama_index|smolagents|strands)": "frameworks",
    "breakloop.integrations.(?:ag2|semantic_kernel)": "semantic-kernel",
}

# Python that a reader writes before the block that begins like this.
_CREW = """
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from breakloop.testing import call_tool, say

@tool("search")
def search(query: str) -> str:
    "Look something up."
    return f"no results for {query!r}"

search.cache_function = lambda *_: False
model = LLM(model="openai/stand-in", base_url=f"{llm.url}/v1", api_key="none")
agent = Agent(role="Support", goal="Help", backstory="Patient.", tools=[search], llm=model)
crew = Crew(agents=[agent], tasks=[Task(description="Refunds?", expected_output="One sentence.", agent=agent)])
llm.next(say("Done."))
"""
_APP = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})
"""
BEFORE_PYTHON: Final = {
    ("CONTRIBUTING.md", ""): """
from tests.corpus.catalogue import Catalogue, sessions_of
from tests.corpus.run import judge
from tests.corpus.script import Script
from tests.corpus.words import text

catalogue = Catalogue()
loop, healthy = catalogue.loop, catalogue.healthy
""",
    ("docs/how-to/asgi.md", ""): _APP,
    ("docs/how-to/crewai.md", "from breakloop.integrations"): _CREW,
    ("docs/how-to/crewai.md", "from breakloop import"): """
hooks = GuardCrewHooks()
hooks.__enter__()
llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
""",
    ("docs/how-to/google-adk.md", ""): """
import os

os.environ |= {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": llm.url}
""",
    ("docs/how-to/smolagents.md", ""): """
import os

import smolagents

smolagents.OpenAIModel = lambda name: smolagents.models.OpenAIModel(name, api_base=os.environ["OPENAI_BASE_URL"])
""",
    ("docs/how-to/llama-index.md", ""): """
import os

os.environ["OPENAI_API_BASE"] = f"{llm.url}/v1"
""",
    ("docs/how-to/dspy.md", ""): """
import os

os.environ["OPENAI_API_BASE"] = f"{llm.url}/v1"
""",
    ("docs/how-to/openai-agents.md", ""): """
import agents
import openai

agents.set_default_openai_client(openai.AsyncOpenAI())
""",
    ("docs/how-to/openai-anthropic-clients.md", "from breakloop.openai"): """
messages = [{"role": "user", "content": "Is it done?"}]
""",
}
# What must be true after it.
AFTER_PYTHON: Final = {
    ("CONTRIBUTING.md", ""): """
judged = [judge(session) for session in sessions_of(catalogue.scenarios)]
assert len(judged) == 14 and not any(one.mistakes for one in judged), judged
""",
    ("docs/how-to/asgi.md", ""): """
import asyncio
import httpx

async def statuses():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tools") as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Again."}]}
        return [(await client.post("/v1/chat/completions", json=body)).status_code for _ in range(6)]

assert asyncio.run(statuses()) == [200] * 5 + [429]
""",
    ("docs/how-to/claude-agent-sdk.md", "from breakloop.integrations"): 'assert "PreToolUse" in options.hooks\n',
    ("docs/how-to/claude-code-and-codex.md", "from agents"): """
from agents import Agent, Runner

assert Runner.run_sync(Agent(name="support-bot"), "Hello.").final_output
""",
    ("docs/how-to/claude-agent-sdk.md", "from breakloop import"): 'assert "PreToolUse" in hooks\n',
    ("docs/how-to/crewai.md", "from breakloop import"): """
assert "repeat `search` returned the same" in printed(), printed()
""",
    ("docs/how-to/httpx.md", "import httpx2"): "client.models.list()\n",
    ("docs/how-to/langchain.md", "from langchain.agents"): """
from breakloop.testing import say

llm.next(say("It is done."))
assert agent.invoke({"messages": "Is it done?"})["messages"][-1].text == "It is done."
""",
    ("docs/how-to/openai-agents.md", ""): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/google-adk.md", ""): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "recursive_loop_detected Blocked: `search` returned the same 10 bytes" in printed(), printed()
""",
    ("docs/how-to/agent-framework.md", ""): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/strands.md", ""): """
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
main()
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/smolagents.md", ""): """
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
main()
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/llama-index.md", ""): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/agno.md", ""): """
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
main()
assert "ERROR Blocked: `search` returned the same 10 bytes" in printed(), printed()
""",
    ("docs/how-to/dspy.md", ""): """
from breakloop.testing import say

step = {"next_thought": "I look.", "next_tool_name": "search", "next_tool_args": '{"query": "refunds"}'}
llm.next(*[say("".join(f"[[ ## {name} ## ]]\\n{value}\\n\\n" for name, value in step.items()))] * 8)
main()
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/autogen.md", ""): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/ag2.md", ""): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/semantic-kernel.md", "from breakloop import"): """
import asyncio
from breakloop.testing import call_tool

llm.next(*[call_tool("Shop-search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert "repeat `Shop-search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/semantic-kernel.md", "from breakloop.integrations.semantic_kernel import guard_filter"): """
agent.kernel.add_plugin(Shop(), "Shop")
llm.next(*[call_tool("Shop-search", {"query": "refunds"})] * 8)
asyncio.run(main())
assert printed().count("repeat `Shop-search` returned the same 10 bytes 5 times in a row 30") == 2, printed()
""",
    ("docs/how-to/haystack.md", ""): """
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
main()
assert "repeat `search` returned the same 10 bytes 5 times in a row 30" in printed(), printed()
""",
    ("docs/how-to/pydantic-ai.md", ""): """
from breakloop.testing import call_tool

llm.next(*[call_tool("search", {"query": "refunds"})] * 8)
main()
assert printed() == "repeat `search` returned the same 10 bytes 5 times in a row 30\\n", printed()
""",
    ("docs/how-to/python-guard.md", "from breakloop import Guard, LoopDetectedError"): """
assert printed() == "repeat 30 `search` returned the same 10 bytes 5 times in a row\\n", printed()
""",
    ("docs/index.md", ""): """
assert printed() == "repeat `search` returned the same 10 bytes 5 times in a row\\n", printed()
""",
    ("docs/how-to/webhooks.md", ""): """
from datetime import UTC, datetime

hook, now = Webhook("whsec_..."), datetime.now(UTC)
signed = {"webhook-id": "1", "webhook-timestamp": str(int(now.timestamp()))}
signed["webhook-signature"] = hook.sign("1", now, '{"event": "loop.detected"}')
assert receive(b'{"event": "loop.detected"}', signed) == {"event": "loop.detected"}
""",
}

# Blocks that show figures, timelines or output without a command, by page and beginning, and the test that holds them.
_LIMITS = "tests/contract/test_limits.py::"
_LOOPS = "tests/unit/engine/test_engine_loops.py::"
_SETTLED = "tests/unit/engine/test_engine_settle.py::"
_TIMELINES = "tests/test_page_timelines.py::"
_PAYLOADS = "tests/e2e/test_page_payloads.py::"
HELD: Final = {
    ("docs/how-to/javascript.md", "import"): "tests/e2e/test_js_package.py::test_what_pages_show_is_typed",
    ("docs/how-to/run-an-agent.md", "breakloop: $0.42"): "tests/unit/cli/test_run.py::test_the_summary_of_the_page",
    ("README.md", "openai.RateLimitError"): "tests/test_docs.py::"
    "test_the_one_line_of_the_readme_is_all_that_an_agent_needs",
    ("docs/explanation/detection-study.md", "outside ="): "tests/unit/detect/steps/test_novelty_dry.py::"
    "test_new_lines_halve_and_old_ones_count",
    ("docs/explanation/limits.md", " t       request"): "tests/unit/limits/test_token_bucket.py::test_ten_a_second",
    ("docs/explanation/limits.md", "request    used"): f"{_LIMITS}test_budget_of_a_hundred",
    ("docs/explanation/limits.md", "budget $1.00"): f"{_LIMITS}test_money_settles_to_the_micro_dollar",
    ("docs/explanation/limits.md", "t      event"): f"{_LIMITS}test_tokens_over_a_minute",
    ("docs/explanation/limits.md", "event    total"): "tests/e2e/test_stream_caps.py::test_openai_chat",
    ("docs/explanation/limits.md", "t          event"): f"{_LIMITS}test_a_breaker_over_five_minutes",
    ("docs/explanation/limits.md", "t       event"): "tests/unit/engine/test_engine_runs.py::"
    "test_the_timeline_of_the_docs",
    ("docs/explanation/limits.md", "t       agents"): "tests/unit/engine/test_engine_trees.py::"
    "test_the_timeline_of_the_docs",
    ("docs/explanation/loop-detection.md", "t        agent"): "tests/unit/detect/test_trees.py::"
    "test_the_timeline_of_the_docs",
    ("docs/how-to/scan-transcripts.md", "across sessions:"): "tests/unit/replay/test_across.py::"
    "test_fan_out_of_sub_agents_is_found",
    ("docs/how-to/trees-of-agents.md", "Not started:"): "tests/unit/detect/test_trees.py::"
    "test_agents_that_start_agents_fast",
    ("docs/how-to/trees-of-agents.md", "X-Agent-Session:"): "tests/unit/policy/test_trees.py::"
    "test_parents_lead_to_the_root",
    ("docs/how-to/trees-of-agents.md", "X-Agent-Root:"): "tests/unit/gateway/test_proxy_hops.py::"
    "test_a_message_to_another_agent_is_sent_with_its_place",
    ("docs/explanation/loop-detection.md", "window 45 s"): f"{_LOOPS}test_the_example_of_the_loop_page",
    ("docs/explanation/loop-detection.md", "max_hits 5, window 60 s, cooldown"): f"{_TIMELINES}test_tail",
    ("docs/explanation/loop-detection.md", "max_hits 5, window 60 s; one key"): f"{_TIMELINES}test_tail_of_one_key",
    ("docs/explanation/loop-detection.md", "an agent reads"): f"{_TIMELINES}test_steps",
    ("docs/explanation/loop-detection.md", "the same review"): "tests/unit/engine/test_reruns.py::"
    "test_told_then_blocked_at_the_opening",
    ("docs/explanation/loop-detection.md", "score ="): "tests/unit/detect/test_simhash_score.py::"
    "test_similar_prompts_and_answers_add_up",
    ("docs/explanation/loop-detection.md", "max_hits 5, concurrent"): f"{_SETTLED}test_the_timeline_of_the_docs",
    ("docs/explanation/loop-detection.md", "max_hits 5, window 60 s, retry"): f"{_SETTLED}"
    "test_ten_failures_then_five_pass_and_the_next_is_blocked",
    ("docs/reference/loopbench.md", "make loopbench"): "tests/e2e/test_loopbench.py::"
    "test_the_table_of_a_gateway_and_of_a_simple_detector",
    ("docs/explanation/proxy.md", "client -> {"): "tests/e2e/test_usage_asked.py::"
    "test_the_bytes_are_those_of_a_stream_that_nobody_asked",
    ("docs/explanation/proxy.md", "idle_seconds"): "tests/e2e/test_proxy_reuse.py::"
    "test_a_kept_connection_that_dies_after_a_byte_is_not_tried_again",
    (
        "docs/explanation/proxy.md",
        "answer_seconds",
    ): "tests/e2e/test_proxy_faults.py::test_an_answer_that_stalls_is_cut",
    ("docs/explanation/request.md", "10 tokens"): "tests/unit/limits/test_token_bucket.py::test_ten_a_second",
    ("docs/explanation/stream-guard.md", "upstream ->"): "tests/e2e/test_stream_guard.py::test_it_is_cut_at_once",
    ("docs/explanation/stream-guard.md", "a sentence"): f"{_TIMELINES}test_stream_guard",
    ("docs/explanation/token-estimates.md", "a user message"): "tests/unit/pricing/test_tokens_estimate.py::"
    "test_a_client_may_know_better",
    ("docs/how-to/claude-code-hooks.md", "{"): "tests/unit/cli/test_init_merge.py::"
    "test_the_same_stands_in_the_example_and_on_the_page",
    ("docs/how-to/crewai.md", "3rd"): "tests/e2e/test_crewai.py::test_a_looping_crew_is_told_then_stopped",
    ("docs/how-to/handle-denials.md", "import openai"): "tests/e2e/test_handle_denials.py::test_python",
    ("docs/how-to/handle-denials.md", "import OpenAI"): "tests/e2e/test_handle_denials.py::test_typescript",
    ("docs/how-to/handle-denials.md", "status="): "tests/e2e/test_handle_denials.py::test_curl",
    (
        "docs/how-to/install.md",
        "$ breakloop serve\nError",
    ): "tests/unit/cli/test_main.py::test_a_command_says_which_extra_it_needs",
    ("docs/how-to/kubernetes.md", "$ helm install"): "tests/deploy/test_helm.py::"
    "test_kubernetes_accepts_what_is_rendered",
    ("docs/how-to/kubernetes.md", "settings:"): "tests/deploy/test_helm.py::test_kubernetes_accepts_what_is_rendered",
    ("docs/how-to/langchain.md", "3rd"): "tests/e2e/test_langchain.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/litellm.md", "# config.yaml"): "tests/e2e/test_litellm.py::"
    "test_the_page_shows_what_the_example_runs_with",
    ("docs/how-to/litellm.md", "3rd"): "tests/e2e/test_litellm.py::test_a_looping_agent_is_told_then_stopped",
    ("docs/how-to/openai-agents.md", "3rd"): "tests/e2e/test_openai_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/google-adk.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/agent-framework.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/strands.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/smolagents.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/llama-index.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/agno.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/dspy.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/autogen.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/haystack.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/ag2.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/semantic-kernel.md", "3rd"): "tests/e2e/test_guarded_agents.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/pydantic-ai.md", "3rd"): "tests/e2e/test_pydantic_ai.py::test_a_loop_is_told_then_stopped",
    ("docs/how-to/python-guard.md", "call 1"): f"{_TIMELINES}test_guarded_tool",
    ("docs/how-to/replay.md", '{"id"'): "tests/unit/replay/formats/test_own.py::test_the_page_describes_it",
    ("docs/how-to/several-instances.md", "appendonly"): "tests/deploy/test_redis_user.py::"
    "test_it_may_do_what_is_needed",
    ("docs/how-to/several-instances.md", "ACL SETUSER"): "tests/deploy/test_redis_user.py::"
    "test_it_may_do_what_is_needed",
    ("docs/how-to/land.md", "[breakloop]"): f"{_TIMELINES}test_landing",
    ("docs/how-to/land.md", "request 1"): f"{_TIMELINES}test_landing",
    ("docs/how-to/land.md", "call 1"): "tests/e2e/test_claude_code.py::test_it_lands_with_the_hooks",
    ("docs/how-to/pause-and-ask.md", "request 1"): "tests/e2e/test_pauses.py::"
    "test_the_agent_goes_on_when_a_person_clicks",
    ("docs/how-to/pause-and-ask.md", "$ breakloop pauses"): "tests/e2e/test_pauses.py::"
    "test_the_dashboard_asks_and_the_command_line_too",
    ("docs/how-to/steer.md", "[breakloop]"): f"{_TIMELINES}test_steering",
    ("docs/how-to/steer.md", "requests with"): f"{_TIMELINES}test_steering",
    ("docs/how-to/webhooks.md", "{"): f"{_PAYLOADS}test_webhook",
    ("docs/reference/cli.md", ""): "tests/test_docs.py::test_generated_pages_are_what_the_code_says",
    ("docs/reference/decision-api.md", "POST"): f"{_PAYLOADS}test_reported_result",
    ("docs/reference/decision-api.md", "{"): f"{_PAYLOADS}test_denial",
    ("docs/reference/events.md", "{"): f"{_PAYLOADS}test_event",
    ("docs/tutorial/first-loop.md", "t=  4s"): "tests/unit/cli/test_demo.py::test_the_tutorial_shows_what_is_printed",
}


def beginning(table: Mapping[tuple[str, str], Value], page: str, text: str) -> Value | None:
    """The entry of a table for what begins like this."""
    return next((value for (name, start), value in table.items() if name == page and text.startswith(start)), None)


def environment_of(block: Block) -> str:
    """The environment of requirements/ that has what a Python block imports; empty for the usual one."""
    found = {name for module, name in _IMPORTED.items() if re.search(rf"^from {module} ", block.text, re.MULTILINE)}
    if block.page == "docs/how-to/crewai.md":
        found.add("crewai")
    return "".join(found)


def how(block: Block) -> str:
    """Which test covers a block; empty if none does."""
    if beginning(EXCEPTED, block.page, block.text):
        return "excepted"
    if beginning(HELD, block.page, block.text):
        return "held"
    if block.file or block.language in {"console", "sh"}:
        return "run"
    return {"python": "python", "yaml": "config", "yml": "config", "json": "config", "toml": "config"}.get(
        block.language, ""
    )
