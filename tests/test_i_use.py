"""docs/how-to/i-use.md: everything that breakloop works with is there, in five lines at most, and what it names exists."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from breakloop.cli.init import CHOICES
from tests.apart import APART
from tests.e2e.test_clients import UPSTREAMS
from tests.e2e.test_guarded_agents import RAISED
from tests.each import each

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "i-use.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT[TEXT.index("| I use") :].splitlines()[1:]
    if line.startswith("| ")
]
WANTED = [
    *(
        "OpenAI's SDK",
        "Anthropic's SDK",
        "LangChain",
        "LangGraph",
        "LiteLLM",
        "OpenAI Agents SDK",
        "Pydantic AI",
        "Haystack",
        "AutoGen",
        "AG2",
        "Semantic Kernel",
        "DSPy",
        "Agno",
        "LlamaIndex",
        "smolagents",
        "Strands Agents",
        "Microsoft Agent Framework",
        "Google ADK",
        "CrewAI",
        "Codex",
    ),
    *("Vercel AI SDK", "Mastra", "LangChain.js"),
    *("OpenCode", "Cline", "Goose", "aider", "Cursor"),
    *("Claude Code", "Claude Agent SDK", "MCP", "httpx", "ASGI", "a loop of my own"),
    *("nginx", "Envoy", "Traefik", "Caddy", "HAProxy", "Kong", "Docker", "Kubernetes"),
]

# What a row may promise, in this order.
PROMISES = ("blocks", "steers", "lands", "streams", "counts money")
E2E, UNIT = "tests/e2e/test_", "tests/unit/"


def five(file: str, *names: str) -> dict[str, str]:
    """The tests of one file, by what they hold."""
    return {promise: f"{file}.py::{name}" for promise, name in zip(PROMISES, names, strict=True) if name}


TOLD, LANDED = "test_a_loop_is_told_then_stopped", "test_it_lands_with_an_answer"
CLIENTS = five(
    f"{E2E}clients", "test_a_loop_is_stopped", "", "test_a_landed_agent_answers", "test_a_loop_is_stopped", ""
)
CLIENTS |= {"steers": f"{UNIT}dialects/test_late_dialects.py::test_a_note_follows_the_results"}
CLIENTS |= {"counts money": f"{E2E}clients.py::test_tokens_are_counted"}
# An agent of each is a function of guarded_agents.py, and a parameter of these tests.
GUARDED = five(f"{E2E}guarded_agents", TOLD, TOLD, LANDED, TOLD, "test_limits_and_budgets_hold")
GATEWAY = {
    "blocks": f"{E2E}stuck_agent.py::test_it_is_blocked_although_no_two_requests_are_alike",
    "steers": f"{E2E}stuck_agent.py::test_it_recovers_when_it_is_told",
    "lands": f"{E2E}land.py::test_behind_the_gateway",
    "streams": f"{E2E}stream_guard.py::test_openai_chat",
    "counts money": f"{E2E}run.py::test_the_cost_ends_a_run",
}
JS = five(
    f"{E2E}js_package", "test_a_loop_ends_with_the_error", *["test_it_lands"] * 2, "test_a_loop_ends_with_the_error", ""
)
MCP = "test_a_loop_is_told_then_refused"
TRANSPORT = "tests/unit/sdk/transports.py::Suite::test_"
PROXIED = five(f"{E2E}gateways", "test_a_looping_client_is_stopped", "", "", "test_a_looping_client_is_stopped", "")
# The test of each promise, by the beginning of the row. A row that promises nothing has the tests that run it.
HELD: dict[str, dict[str, str]] = {
    "OpenAI's SDK": GATEWAY | {"blocks": f"{E2E}sdk_openai_loops.py::test_the_sixth_identical_request"},
    "Anthropic's SDK": GATEWAY
    | {
        "blocks": f"{E2E}sdk_anthropic_loops.py::test_the_sixth_identical_request",
        "streams": f"{E2E}stream_guard.py::test_anthropic",
    },
    "any of these, for one run": GATEWAY | {"blocks": f"{E2E}run.py::test_an_agent_that_goes_on_is_ended"},
    "Ollama": CLIENTS,
    "Cohere's SDK": CLIENTS,
    "Amazon Bedrock": CLIENTS,
    "Vertex AI": CLIENTS,
    "Azure OpenAI": CLIENTS,
    "Mistral's SDK": CLIENTS,
    "OpenRouter": CLIENTS,
    "another SDK": GATEWAY | {"blocks": f"{E2E}handle_denials.py::test_curl"},
    "LangChain": {
        **five(f"{E2E}langchain", TOLD, TOLD, "", "test_async_and_streamed", ""),
        "lands": f"{E2E}land.py::test_langchain_with_the_middleware",
        "counts money": f"{UNIT}integrations/test_langchain.py::test_a_healthy_request_goes_out_as_it_is",
    },
    "LangGraph": {
        **five(f"{E2E}langchain", *["test_a_graph_of_ones_own"] * 2, "", "", ""),
        "counts money": f"{UNIT}integrations/test_langchain.py::test_a_node_that_asks_the_model",
    },
    "LiteLLM": {
        **five(f"{E2E}litellm", *["test_a_looping_agent_is_told_then_stopped"] * 4, ""),
        "lands": f"{UNIT}integrations/test_litellm.py::test_tools_are_switched_off_when_a_call_is_landed",
        "counts money": f"{UNIT}integrations/test_litellm.py::test_what_was_said_and_what_failed_is_settled",
    },
    "OpenAI Agents SDK": five(f"{E2E}openai_agents", TOLD, TOLD, LANDED, TOLD, "test_a_budget_lands"),
    "CrewAI": {
        **five(f"{E2E}crewai", *["test_a_looping_crew_is_told_then_stopped"] * 2, LANDED, "", ""),
        "counts money": f"{UNIT}integrations/test_crewai.py::test_tokens_are_told_once",
    },
    "Pydantic AI": five(f"{E2E}pydantic_ai", TOLD, TOLD, LANDED, TOLD, "test_dollars_are_counted"),
    "Google ADK": GUARDED,
    "Microsoft Agent Framework": GUARDED,
    "Strands Agents": GUARDED,
    "smolagents": GUARDED,
    "LlamaIndex": GUARDED,
    "Agno": GUARDED,
    "DSPy": {promise: test for promise, test in GUARDED.items() if promise != "streams"},
    "AutoGen": GUARDED,
    "AG2": GUARDED,
    "Semantic Kernel": GUARDED,
    "Haystack": GUARDED,
    "Vercel AI SDK": JS,
    "Mastra": {promise: JS[promise] for promise in ("blocks", "steers")},
    "LangChain.js": {promise: JS[promise] for promise in ("blocks", "steers", "lands")},
    "an SDK in JavaScript": GATEWAY | {"blocks": JS["blocks"], "steers": JS["steers"], "lands": JS["lands"]},
    "Claude Code": {
        **five(f"{E2E}claude_code", *["test_a_stuck_agent_is_told_then_refused_then_stopped"] * 2, "", "", ""),
        "lands": f"{E2E}claude_code.py::test_it_lands_with_the_hooks",
        "streams": f"{E2E}claude_code.py::test_it_lands_behind_the_gateway",
        "counts money": GATEWAY["counts money"],
    },
    "Claude Agent SDK": {
        **five(f"{E2E}claude_agent", *["test_a_stuck_agent_is_told_then_refused_then_stopped"] * 2, "", "", ""),
        "lands": f"{E2E}claude_agent.py::test_the_gateway_decides_and_it_lands_with_an_answer",
    },
    "Codex": {
        "blocks": f"{E2E}codex.py::test_a_command_that_is_run_again_and_again_is_stopped",
        "steers": f"{E2E}websockets.py::test_an_agent_is_landed",
        "lands": f"{E2E}websockets.py::test_an_agent_is_landed",
        "streams": f"{E2E}codex.py::test_thirty_different_commands_pass",
        "counts money": f"{E2E}websockets.py::test_calls_are_settled_by_their_events",
    },
    # Their files are written and read back; the programs themselves are not run here.
    "OpenCode, Cline, Goose, aider": GATEWAY | {"": f"{UNIT}cli/test_setup.py::test_set_up_and_undone"},
    "Cursor": {
        "blocks": f"{E2E}setup_clients.py::test_the_servers_of_cursor",
        "steers": f"{E2E}mcp_stdio.py::{MCP}",
    },
    "an MCP server over HTTP": five(
        f"{E2E}sdk_mcp", "test_the_sixth_identical_call", "", "", "test_each_event_comes_before_the_next_is_sent", ""
    ),
    "A2A agents": five(f"{E2E}a2a", "test_agents_that_ask_each_other", "", "", "", ""),
    "an MCP server over stdio": five(f"{E2E}mcp_stdio", MCP, MCP, "", "", ""),
    "an agent in an editor": five(f"{E2E}acp", *["test_a_loop_ends_the_turn", "", "", "test_a_loop_ends_the_turn", ""]),
    "an MCP server of my own": five(f"{E2E}mcp_middleware", MCP, MCP, "", "", ""),
    "httpx or httpx2": {
        "blocks": f"{TRANSPORT}a_loop_is_answered_in_the_providers_stead",
        "steers": f"{TRANSPORT}a_note_is_put_into_the_request",
        "lands": f"{TRANSPORT}a_landed_request_has_its_tools_switched_off",
        "streams": f"{TRANSPORT}streams_pass_as_they_come",
        "counts money": f"{UNIT}sdk/test_http_settling_reader.py::test_a_whole_answer",
    },
    "FastAPI, Starlette": five(
        f"{UNIT}integrations/test_asgi",
        *["test_a_loop_is_denied_and_the_rest_passes", "test_a_note_for_the_model"],
        *["test_a_landed_request_has_its_tools_switched_off", *["test_what_an_answer_uses_is_counted"] * 2],
    ),
    "a loop of my own in Python": {
        **five(
            f"{UNIT}sdk/test_guard_llm",
            *["test_the_same_prompt_again_and_again_is_stopped", "test_a_note_is_appended_to_the_messages"],
            *["test_tools_are_switched_off_when_a_call_is_landed", "", "test_answers_of_all_kinds"],
        )
    },
    "nginx": five(f"{E2E}nginx", *["test_a_looping_client_is_stopped", "", "", "test_a_looping_client_is_stopped", ""]),
    "Envoy": {
        **PROXIED,
        "steers": f"{E2E}gateways.py::test_envoy_forwards_what_breakloop_has_changed",
        "lands": f"{E2E}gateways.py::test_envoy_forwards_what_breakloop_has_changed",
        "counts money": f"{UNIT}gateway/test_envoy_processor.py::test_a_call_is_settled_by_its_response",
    },
    "Traefik": PROXIED,
    "Caddy": PROXIED,
    "HAProxy": PROXIED,
    # As every gateway that asks; Kong itself is not run here.
    "Kong": {
        "blocks": f"{E2E}nginx.py::test_a_looping_client_is_stopped",
        "counts money": f"{E2E}limits_settle.py::test_a_gateway_that_forwards_by_itself_tells_what_was_used",
    },
    "Docker": {"": "tests/deploy/test_docker.py::test_it_starts_what_exists"},
    "Kubernetes": {"": "tests/deploy/test_kubernetes.py::test_the_api_server_would_accept_every_object"},
    "recorded sessions": {"": "tests/e2e/test_page_commands.py::test_commands"},
}


@each("name", WANTED)
def test_it_has_a_row(name: str) -> None:
    """Whoever uses it finds it (P-3, P-4)."""
    assert [row for row in ROWS if name in row[0]] != []


@each("row", {row[0]: row for row in ROWS})
def test_a_row_is_short_and_true(row: list[str]) -> None:
    """Five lines at most; its pages, their headings and the words after `init --for` exist."""
    assert len(row) == 3
    assert len(row[1].split("<br>")) <= 5
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", row[2])
    assert links
    for path, heading in links:
        page = (PAGE.parent / path).resolve()
        assert page.is_file(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert [name for name in re.findall(r"init --for ([a-z-]+)", row[2]) if name not in CHOICES] == []


@each("row", {row[0]: row for row in ROWS})
def test_what_a_row_promises_is_tested(row: list[str]) -> None:
    """Its last line lists exactly what the tests named above hold, and they exist (P-3, P-4)."""
    name = max((one for one in HELD if row[0].startswith(one)), key=len)
    last = row[1].split("<br>")[-1]
    promised = [promise for promise in PROMISES if re.search(rf"\b{promise}\b", last.replace("tokens", "money"))]
    assert promised == [promise for promise in PROMISES if promise in HELD[name]]
    for test in HELD[name].values():
        path, *names = test.split("::")
        inside: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for part in names:
            defined = {one.name: one for one in inside if isinstance(one, ast.FunctionDef | ast.ClassDef)}
            assert part in defined, test
            inside = defined[part].body


def test_what_is_tested_has_a_row() -> None:
    """Every framework of test_guarded_agents.py and every provider of test_clients.py, and the other way round."""
    assert [one for one in HELD if not any(row[0].startswith(one) for row in ROWS)] == []
    guarded = {name for name, held in HELD.items() if held.get("lands") == GUARDED["lands"]}
    pages = {re.findall(r"\(([a-z0-9-]+)\.md\)", row[2])[0] for row in ROWS if row[0] in guarded}
    assert pages == {name for name in RAISED if not name.endswith(("-stored", "-code", "-filter"))}
    rows = " ".join(row[1] for row in ROWS if any(row[0].startswith(one) for one in HELD if HELD[one] is CLIENTS))
    assert set(re.findall(r"--upstream ([a-z]+)=", rows)) == set(UPSTREAMS)


def test_everything_that_init_knows_has_a_row() -> None:
    """`breakloop init --for` and this page are about the same."""
    assert set(re.findall(r"`(?:breakloop )?init --for ([a-z-]+)`", TEXT)) == set(CHOICES)


@pytest.mark.slow  # it imports frameworks
def test_what_is_imported_can_be() -> None:
    """The names that people copy from there (P-1 to P-3)."""
    imports = re.findall(r"`from (breakloop[a-z0-9_.]*) import (\w+)`", TEXT)
    assert len(imports) >= 5
    apart = [(module, name) for module, name in imports if module in APART]
    for module, name in set(imports) - set(apart):
        assert hasattr(import_module(module), name), f"{module}.{name}"
    for module, name in apart:  # tested in an environment of its own
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert re.search(rf"^(def|class) {name}\b", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)


def test_it_is_found_from_the_first_pages() -> None:
    """From the README and the list of contents."""
    assert "](docs/how-to/i-use.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](how-to/i-use.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
