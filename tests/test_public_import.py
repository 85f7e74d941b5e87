"""The public surface: which names there are, that `import breakloop` is cheap, and that each part of the library loads
what it needs and nothing else."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.served import SRC

pytestmark = pytest.mark.e2e

PACKAGE = SRC / "breakloop"
# Every public module and its public names. Nothing else may be imported by programs.
PUBLIC = {
    "breakloop": {
        "BreakloopError", "BundleError", "Decision", "DeniedError", "Guard", "LoopDetectedError", "Problem", "RequestError",
        "Run", "SettingsError", "StateError", "__version__", "agent",
    },
    "breakloop.anthropic": {"Anthropic", "AsyncAnthropic", "DeniedError", "LoopDetectedError"},
    "breakloop.exceptions": {"DeniedError", "LoopDetectedError"},
    "breakloop.openai": {"AsyncOpenAI", "DeniedError", "LoopDetectedError", "OpenAI"},
    "breakloop.integrations.asgi": {"App", "GuardASGIMiddleware", "Message", "Receive", "Scope", "Send"},
    "breakloop.integrations.claude_agent": {"ClaudeHooks", "breakloop_hooks"},
    "breakloop.integrations.crewai": {"GuardCrewHooks"},
    "breakloop.integrations.httpx": {"AsyncGuardTransport", "GuardTransport"},
    "breakloop.integrations.httpx2": {"AsyncGuardTransport", "GuardTransport"},
    "breakloop.integrations.langchain": {"GuardAgentMiddleware"},
    "breakloop.integrations.litellm": {"BreakloopGuardrail"},
    "breakloop.integrations.mcp": {"GuardMCPMiddleware"},
    "breakloop.integrations.openai_agents": {"GuardRunHooks"},
    "breakloop.integrations.pydantic_ai": {"GuardCapability"},
    "breakloop.integrations.haystack": {"guard_hooks"},
    "breakloop.integrations.autogen": {"guard_client"},
    "breakloop.integrations.ag2": {"GuardMiddleware"},
    "breakloop.integrations.semantic_kernel": {"guard_filter", "guard_service"},
    "breakloop.integrations.dspy": {"guard_lm"},
    "breakloop.integrations.agno": {"guard_model"},
    "breakloop.integrations.llama_index": {"guard_llm"},
    "breakloop.integrations.smolagents": {"GuardSteps"},
    "breakloop.integrations.strands": {"GuardHooks"},
    "breakloop.integrations.agent_framework": {"GuardChatMiddleware"},
    "breakloop.integrations.google_adk": {"GuardPlugin"},
}  # fmt: skip
# Public members of the classes that programs hold.
MEMBERS = {
    "Guard": {
        "acheck", "aenforce", "areport", "astep", "async_wait", "check", "close", "enforce", "faults", "llm", "report", "run",
        "step", "tool", "wait",
    },
    "Run": {
        "aafter_tool", "abefore_tool", "add_answer", "after_tool", "agent", "astep", "before_tool", "begin", "session", "step",
    },
    "Decision": {
        "allowed", "cooldown_seconds", "degraded", "delay_seconds", "error", "evidence", "fingerprint", "hit_count", "is_loop",
        "kind", "landed", "message", "note", "notice", "policy", "reason", "request_id", "retry_after", "status",
        "stop_reason", "tree_tokens_left", "tree_usd_left", "warning",
    },
}  # fmt: skip

OPTIONAL = {
    "agents", "anthropic", "click", "cryptography", "genai_prices", "hiredis", "httptools", "httpx", "httpx2", "jwt",
    "langchain", "langchain_core", "langgraph", "litellm", "maxminddb", "msgspec", "numpy", "openai", "orjson", "pydantic", "redis", "rich", "ruamel", "sqlalchemy",
    "starlette", "uvloop", "xxhash", "zstandard",
}  # fmt: skip
CLIENTS = {
    "anthropic", "click", "cryptography", "genai_prices", "hiredis", "httptools", "httpx", "httpx2", "jinja2", "jwt", "openai",
    "prometheus_client", "redis", "rich", "sqlalchemy", "starlette", "uvicorn", "uvloop",
}  # fmt: skip


def loaded(code: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has after this code."""
    tell = "\nimport sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}{tell}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def declared_names(path: Path) -> set[str] | None:
    """The `__all__` of a module, without importing it; None if it has none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return None


def test_public_names() -> None:
    """A module is public if it has `__all__`. `breakloop.testing` has a list of its own (P-1)."""
    files = [*PACKAGE.glob("*.py"), *PACKAGE.glob("integrations/*.py"), *PACKAGE.glob("sdk/*.py")]
    found = {module_name(path): declared_names(path) for path in files}
    assert {name: names for name, names in found.items() if names is not None} == PUBLIC
    assert declared_names(PACKAGE / "testing" / "__init__.py")


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_public_members(name: str) -> None:
    """What programs can call; everything else begins with an underscore (P-1)."""
    import breakloop

    assert {member for member in dir(getattr(breakloop, name)) if not member.startswith("_")} == MEMBERS[name]


def test_the_pages_name_every_public_member() -> None:
    """`Guard` and `Run` are described where programs look for them (P-1)."""
    page = (SRC.parent / "docs" / "how-to" / "python-guard.md").read_text(encoding="utf-8")
    assert [
        one for name in ("Guard", "Run") for one in sorted(MEMBERS[name]) if not re.search(rf"\b{one}\b", page)
    ] == []


def test_public_classes_show_how_they_are_used() -> None:
    """Each has a docstring (P-1)."""
    for module, names in PUBLIC.items():
        path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        if path.is_file():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            defined = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
            assert [node.name for node in defined if node.name in names and not ast.get_docstring(node)] == [], module


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"breakloop"}


def test_a_framework_is_imported_in_its_own_module_only() -> None:
    """What an integration or a drop-in client needs beyond the required dependencies, nothing else imports (P-1)."""
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in project["dependencies"]}
    importers: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for package in imported_packages(path) - required:
            importers.setdefault(package, set()).add(module_name(path))
    clients = {"breakloop.anthropic", "breakloop.openai"}
    frameworks = {
        name: modules
        for name, modules in importers.items()
        if modules & clients or any(one.startswith("breakloop.integrations.") for one in modules)
    }
    assert set(frameworks) >= {"agents", "crewai", "httpx", "httpx2", "langchain", "litellm", "openai"}
    for name, modules in frameworks.items():
        assert len(modules - clients) <= 1, (name, modules)
        assert all(one.startswith("breakloop.integrations.") for one in modules - clients), (name, modules)


def test_importing_it_brings_nothing_else() -> None:
    """None of the packages that it depends on, required or optional (P-1)."""
    assert loaded("import breakloop") & OPTIONAL == set()
    assert loaded("from breakloop import DeniedError, LoopDetectedError, Decision, agent") & OPTIONAL == set()


def test_a_guard_brings_no_client_library_and_no_server() -> None:
    """It decides with what the engine needs (P-1)."""
    code = "from breakloop import Guard; guard = Guard(); guard.step([('f', {})], ['x'])"
    assert loaded(code) & CLIENTS == set()


def test_a_guard_prepares_nothing_that_it_does_not_use() -> None:
    """Without a policy it loads no YAML reader, and pydantic builds no validator (P-3)."""
    code = (
        "from breakloop import Guard; Guard()\n"
        "from breakloop.policy.schema.types import Model\n"
        "models = [*Model.__subclasses__()]\n"
        "models += [below for one in models for below in one.__subclasses__()]\n"
        "built = [one.__name__ for one in models if one.__pydantic_complete__]\n"
        "assert models and not built, built"
    )
    assert loaded(code) & {"difflib", "ruamel"} == set()


def test_a_drop_in_client_brings_its_own_sdk_only() -> None:
    """And no engine: the gateway decides (P-2)."""
    brought = loaded("import breakloop.openai")
    assert "openai" in brought
    assert brought & {"anthropic", "ruamel", "uvloop", "click"} == set()


def modules_of(code: str) -> set[str]:
    """Return all modules that a fresh interpreter has after this code."""
    tell = "\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}{tell}"]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


@pytest.mark.parametrize("backend", ["", "local", "gateway"])
def test_a_hook_loads_no_engine(backend: str) -> None:
    """It is a new process for each event, and the agent waits for it (P-3)."""
    load = {
        "": "",
        "local": "import breakloop.integrations.claude_code_local",
        "gateway": "breakloop.integrations.claude_code.GatewayHookBackend('http://127.0.0.1:9', '', '')",
    }
    found = modules_of(f"import breakloop.__main__, breakloop.integrations.claude_code\n{load[backend]}")
    assert found & {"click", "pydantic", "asyncio", "ruamel"} == set()
    assert found & {"breakloop.cli", "breakloop.sdk.local_backend", "breakloop.engine.engine"} == set()
    assert found & {"brotli", "zstandard", "breakloop.dialects.base", "breakloop.detect.trees"} == set()
    assert {one for one in found if one.startswith("breakloop.policy.")} <= {
        "breakloop.policy.paths",
        "breakloop.policy.cache",
    }
    assert ("http.client" in found) == (backend == "gateway")
    assert ("breakloop.detect.steps.detector" in found) == (backend == "local")


def test_a_deciding_hook_compiles_few_patterns() -> None:
    """Those that few steps need are compiled when one needs them (P-3)."""
    code = (
        "import re\n"
        "real, seen = re.compile, []\n"
        "re.compile = lambda *given: seen.append(given) or real(*given)\n"
        "import breakloop.__main__, breakloop.integrations.claude_code_local\n"
        "assert 20 < len(seen) < 90, len(seen)"
    )
    assert "breakloop.detect.steps.fingerprints" in modules_of(code)


def test_a_guard_without_a_gateway_loads_no_http_client() -> None:
    """It is not needed before there is a URL, and neither are e-mail and archives, which come with it (P-3)."""
    found = modules_of("from breakloop import Guard\nGuard()")
    assert "breakloop.engine.engine" in found
    assert found & {"http.client", "urllib.request", "email", "importlib.metadata", "zipfile"} == set()


def test_a_wrapped_mcp_server_starts_without_an_engine() -> None:
    """A client may start ten of them; the engine is loaded with the first tool call (P-3)."""
    found = modules_of("import breakloop.cli.mcp")
    assert found & {"pydantic", "ruamel", "breakloop.sdk.local_backend", "breakloop.engine.engine"} == set()


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    """Lazy names do not hide mistakes (P-1)."""
    import breakloop

    with pytest.raises(AttributeError, match="Gaurd"):
        _ = breakloop.Gaurd
    assert {"Guard", "LoopDetectedError"} <= set(dir(breakloop))
