"""The docs say what the program does: names are complete, and the commands of the first page work."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path

import openai
import pytest

from breakloop.config.settings import HTTP_IDLE_S, HTTPS_IDLE_S, Proxy
from breakloop.gateway import http_response
from breakloop.model import events
from breakloop.model.verdict import REASONS
from breakloop.observe.log import _LEVELS
from breakloop.policy.descriptors import FIXED, OPEN
from breakloop.replay import cases
from breakloop.testing import StandInLLM
from scripts.gen_docs import PAGES, ROOT, stale
from tests.e2e.served import Served

DOCS = ROOT / "docs"


def _page(path: str) -> str:
    return (DOCS / path).read_text(encoding="utf-8")


def test_generated_pages_are_what_the_code_says() -> None:
    """Bundle, settings, reasons and commands are documented from the code (T-1, A-4)."""
    assert stale(PAGES, ROOT) == []


def test_a_changed_reason_makes_its_page_stale(tmp_path: Path) -> None:
    """The check can fail."""
    target = tmp_path / "docs/reference/reasons.md"
    target.parent.mkdir(parents=True)
    target.write_text(PAGES["docs/reference/reasons.md"]().replace("loop_detected", "loop_seen"), encoding="utf-8")
    assert stale({"docs/reference/reasons.md": PAGES["docs/reference/reasons.md"]}, tmp_path) != []


def test_every_reason_has_a_meaning_and_a_remedy() -> None:
    """The closed list, with what to do about each (A-4)."""
    page = _page("reference/reasons.md")
    for name, info in REASONS.items():
        assert f"| `{name}` | {info.status} |" in page
        assert info.meaning.endswith(".")
        assert info.remedy.endswith(".")


def test_how_long_connections_to_upstreams_are_kept_is_documented_as_it_is() -> None:
    """The times that hold when `proxy.idle_seconds` is automatic (D-1)."""
    description = Proxy.model_fields["idle_seconds"].description
    assert description is not None
    assert description.endswith(f"0 is automatic: {HTTP_IDLE_S:g} for http, {HTTPS_IDLE_S:g} for https.")
    kept = f"| `proxy.idle_seconds`, {HTTP_IDLE_S:g} for http and {HTTPS_IDLE_S:g} for https |"
    assert kept in _page("explanation/proxy.md")


def test_every_descriptor_is_documented() -> None:
    """Every descriptor is documented (C-6)."""
    page = _page("reference/descriptors.md")
    names = [f"{kind}:{name}" for kind, fixed in FIXED.items() for name in fixed] + [f"{kind}:<" for kind in OPEN]
    assert [name for name in names if f"`{name}" not in page] == []


def test_every_header_field_is_documented() -> None:
    """What verdicts are rendered to stands on the decision API's page (A-1, A-5)."""
    page = _page("reference/decision-api.md")
    source = "".join(
        (ROOT / "src/breakloop" / name).read_text() for name in ("dialects/denial.py", "gateway/decision.py")
    )
    sent = {f"X-Breakloop-{name}" for name in re.findall(r"\{(?:header_)?prefix\}([A-Za-z-]+): ", source)}
    sent |= set(re.findall(r"(RateLimit(?:-[A-Z][a-z]+)?|Retry-After|x-should-retry): ", source))
    assert len(sent) > 10
    assert [name for name in sorted(sent) if name not in page] == []


def test_every_error_is_documented() -> None:
    """What is answered without a decision stands on the decision API's page, too (A-1)."""
    page = _page("reference/decision-api.md")
    assert [code for code in sorted({*http_response._CODES.values(), "not_found"}) if f"`{code}`" not in page] == []


def test_every_event_is_documented() -> None:
    """Each event has its section, with its level, and each other line of the log its row (G-2)."""
    page = _page("reference/events.md")
    names = [value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)]
    assert len(names) >= 8
    assert re.findall(r"^## ([a-z]+\.[a-z_]+)$", page, re.MULTILINE) != []
    for name in names:
        level = logging.getLevelName(_LEVELS.get(name, logging.INFO)).lower()
        assert f"## {name}\n\nLevel {level}. " in page, name
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/breakloop").rglob("*.py"))
    lines = re.findall(r'\blog\(\s*logging\.([A-Z]+), "([a-z._]+)", \{"([a-z_]+)"', sources)
    assert len(lines) >= 4
    for level, message, field in lines:
        assert f"| `{message}` | {level.lower()} | `{field}`" in page, message


@pytest.mark.parametrize(
    ("module", "opening"),
    [
        ("engine/fold", r"data = \{"),
        ("engine/fold", r"def _loop_data.*?return \{"),
        ("engine/engine", r"data = \{|Event\([A-Z_]+, [a-z_.]+(?:\(\))?, \{"),
        ("policy/watch", r"data(?:: dict\[str, object\])? = \{"),
        ("app/workers/supervisor", r"data(?:: dict\[str, object\])? = \{"),
    ],
)
def test_every_field_of_an_event_is_documented(module: str, opening: str) -> None:
    """Whoever adds a field to an event describes it (G-2)."""
    page = _page("reference/events.md")
    source = (ROOT / f"src/breakloop/{module}.py").read_text(encoding="utf-8")
    blocks = re.findall(rf"(?:{opening})(.*?)\}}", source, re.DOTALL)
    fields = {name for block in blocks for name in re.findall(r'"([a-z_]+)":', block)}
    fields |= set(re.findall(r'data\["([a-z_]+)"\]', source))
    assert fields
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


def test_every_field_of_test_files_is_documented() -> None:
    """File, case, request and what can be expected (X-3)."""
    page = _page("reference/test-files.md")
    for part in (cases.TOP, cases.CASE, cases.REQUEST, cases.EXPECTED):
        rows = [
            name for name in part if re.search(rf"^\| (?:`[a-z_]+`, )?`{name}`(?:, `[a-z_]+`)? \|", page, re.MULTILINE)
        ]
        assert rows == list(part)


def test_no_page_names_what_readers_do_not_have() -> None:
    """The requirements that the code's comments name are no page."""
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "examples/breakloop.schema.json"]
    assert [page.name for page in pages if "SPEC " in page.read_text(encoding="utf-8")] == []


def test_every_page_is_in_the_list_of_contents() -> None:
    """Each page under docs/ can be found from docs/index.md."""
    listed = _page("index.md")
    pages = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md")) if path.name != "index.md"]
    assert [page for page in pages if f"]({page})" not in listed] == []


@pytest.mark.e2e
def test_the_one_line_of_the_readme_is_all_that_an_agent_needs(tmp_path: Path) -> None:
    """What the first screen promises, with the real SDK and nothing configured (LD-2, B-6, D-2)."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = re.search(r"\$ export OPENAI_BASE_URL=http://127\.0\.0\.1:8787(\S*)", readme)
    promised = re.search(r"^openai\.RateLimitError: (.*?) This usually", readme, re.DOTALL | re.MULTILINE)
    assert line is not None
    assert promised is not None
    with StandInLLM.in_thread() as llm:
        served = Served(tmp_path, "--port", "0", "--upstream", f"openai={llm.url}").wait_ready()
        try:
            agent = openai.OpenAI(base_url=f"{served.url}{line[1]}", api_key="sk-one")
            ask = partial(agent.chat.completions.create, model="m", messages=[{"role": "user", "content": "Again."}])
            with agent:
                for _ in range(5):
                    ask()
                with pytest.raises(openai.RateLimitError) as raised:
                    ask()
        finally:
            served.end()
        assert len(llm.requests) == 5
    assert " ".join(promised[1].split()) in str(raised.value)
