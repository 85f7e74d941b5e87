"""The docs say what the program does: names are complete, and the commands of the first page work."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from breakloop.cli.main import cli
from breakloop.model.reason import REASONS
from breakloop.policy.descriptor_names import FIXED, OPEN
from scripts.gen_docs import PAGES, ROOT, stale
from tests.e2e.test_serve import Served

DOCS = ROOT / "docs"


def _page(path: str) -> str:
    return (DOCS / path).read_text(encoding="utf-8")


def test_generated_pages_are_what_the_code_says() -> None:
    """T-1, A-4: bundle, settings, reasons and commands are documented from the code."""
    assert stale(PAGES, ROOT) == []


def test_a_changed_reason_makes_its_page_stale(tmp_path: Path) -> None:
    """The check can fail."""
    target = tmp_path / "docs/reference/reasons.md"
    target.parent.mkdir(parents=True)
    target.write_text(PAGES["docs/reference/reasons.md"]().replace("loop_detected", "loop_seen"), encoding="utf-8")
    assert stale({"docs/reference/reasons.md": PAGES["docs/reference/reasons.md"]}, tmp_path) != []


def test_every_reason_has_a_meaning_and_a_remedy() -> None:
    """A-4: the closed list, with what to do about each."""
    page = _page("reference/reasons.md")
    for name, info in REASONS.items():
        assert f"| `{name}` | {info.status} |" in page
        assert info.meaning.endswith(".")
        assert info.remedy.endswith(".")


def test_every_descriptor_is_documented() -> None:
    """C-6."""
    page = _page("reference/descriptors.md")
    names = [f"{kind}:{name}" for kind, fixed in FIXED.items() for name in fixed] + [f"{kind}:<" for kind in OPEN]
    assert [name for name in names if f"`{name}" not in page] == []


def test_every_header_field_is_documented() -> None:
    """A-1, A-5: what `gateway.answers` and `gateway.decision` can send stands on the decision API's page."""
    page = _page("reference/decision-api.md")
    source = "".join((ROOT / "src/breakloop/gateway" / name).read_text() for name in ("answers.py", "decision.py"))
    sent = {f"X-Breakloop-{name}" for name in re.findall(r"\{(?:header_)?prefix\}([A-Za-z-]+): ", source)}
    sent |= set(re.findall(r"(RateLimit(?:-[A-Z][a-z]+)?|Retry-After|x-should-retry): ", source))
    assert len(sent) > 10
    assert [name for name in sorted(sent) if name not in page] == []


def test_every_command_in_the_docs_exists() -> None:
    """X-3: no page tells people to type what is not there."""
    context = click.Context(cli, info_name="breakloop")
    known = set(cli.list_commands(context))
    used: set[str] = set()
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        used |= set(re.findall(r"(?:^\$ |`)breakloop ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(used) > 5
    assert used - known == set()


@pytest.mark.e2e
def test_the_curl_line_of_the_readme_is_stopped_at_the_sixth(tmp_path: Path) -> None:
    """LD-2, B-6: what the first screen promises, with nothing configured."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\$ (curl -i localhost:8787.*?\}'\n)", readme, re.DOTALL)
    assert found is not None
    served = Served(tmp_path, "--port", "0").wait_ready()
    try:
        command = found.group(1).replace("localhost:8787", f"127.0.0.1:{served.port}")
        answers = [
            subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout for _ in range(6)
        ]
    finally:
        served.process.kill()
        served.process.communicate()
    assert [answer.split()[1] for answer in answers] == ["200", "200", "200", "200", "200", "429"]
    assert '"error":"recursive_loop_detected"' in answers[5]
    assert "Blocked: identical request sent 6 times in 60 seconds." in answers[5]
