"""Every Python block of the pages runs: with the real frameworks, against the stand-in LLM, through the real
`breakloop serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from breakloop.cli.main import run as breakloop
from breakloop.testing import ThreadedLLM
from tests.e2e import environments, page_python
from tests.e2e.served import serving
from tests.pages.blocks import ROOT, Block, blocks
from tests.pages.coverage import AFTER_PYTHON, BEFORE_PYTHON, beginning, environment_of, how

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BLOCKS = [block for block in blocks() if how(block) == "python"]
WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize("environment", ["", "claude", "crewai", "frameworks", "semantic-kernel"])
def test_python_blocks(environment: str, tmp_path: Path, llm: ThreadedLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages of an environment in one process, because imports are most of the time."""
    python = environments.program_of(environment) if environment else sys.executable
    monkeypatch.chdir(tmp_path)
    assert breakloop(["init"]) == 0
    home = tmp_path / "home"
    with serving(tmp_path, "--upstream", f"openai={llm.url}", "--upstream", f"anthropic={llm.url}") as served:

        def here(code: str) -> str:
            return code.replace("127.0.0.1:8787", f"127.0.0.1:{served.port}").replace("whsec_...", WEBHOOK_SECRET)

        asked: dict[str, list[tuple[str, str]]] = {}
        for block in BLOCKS:
            if environment_of(block) == environment:
                asked.setdefault(block.page, []).extend((where, here(code)) for where, code in parts(block))
        variables = environments.variables(home, BREAKLOOP_URL=served.url, OPENAI_API_KEY="sk-1", ANTHROPIC_API_KEY="1")
        variables["PYTHONPATH"] += f":{ROOT}"
        done = subprocess.run(
            [python, page_python.__file__],
            input=json.dumps(asked),
            cwd=tmp_path,
            env=variables | {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert list(answer) == list(asked)
    assert not any(answer.values()), "\n\n".join(filter(None, answer.values()))


def parts(block: Block) -> list[tuple[str, str]]:
    """A block between what a reader writes around it."""
    before = beginning(BEFORE_PYTHON, block.page, block.text)
    after = beginning(AFTER_PYTHON, block.page, block.text)
    around = [(f"before {block.where}", before), (block.where, block.text), (f"after {block.where}", after)]
    return [(where, code) for where, code in around if code]
