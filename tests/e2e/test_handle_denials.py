"""docs/how-to/handle-denials.md, run as it stands there: Python, TypeScript with the real `openai` package, and curl,
each against the real `breakloop serve` in front of the stand-in LLM (A-3, P-2)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.cli.init import texts
from breakloop.testing import StandInLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.behind import ROOT
from tests.e2e.served import Served
from tests.programs import missing, program
from tests.programs import node as node_path

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs/how-to/handle-denials.md").read_text(encoding="utf-8")
PACKAGES = ROOT / ".cache" / "typescript" / "node_modules"
TSCONFIG = {
    "compilerOptions": {
        "strict": True,
        "noUncheckedIndexedAccess": True,
        "target": "es2023",
        "module": "nodenext",
        "types": ["node"],
        "outDir": "out",
    },
    "files": ["agent.ts"],
}
LOOP = """
for (let turn = 0; turn < 7; turn++) {
  console.log(await ask([{ role: "user", content: "Again." }]));
}
console.log(await ask([{ role: "user", content: "Something else." }]));
"""
BLOCKED = "Blocked: identical request sent 6 times in 60 seconds."


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where the snippets go, and with which key."""
    with StandInLLM.in_thread() as llm:
        served = Served(
            tmp_path, "--port", "0", "--upstream", f"openai={llm.url}", "--upstream", f"anthropic={llm.url}"
        ).wait_ready()
        try:
            yield dict(os.environ) | {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": "sk-one"}
        finally:
            served.end()


def run(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def test_python(environment: dict[str, str], tmp_path: Path) -> None:
    """The first five pass, the sixth is told apart from other limits, and something else passes (A-3)."""
    text = block("python").replace("http://127.0.0.1:8787/v1", environment["OPENAI_BASE_URL"])
    text += '\nfor text in ["Again."] * 7 + ["Something else."]:\n    print(ask([{"role": "user", "content": text}]))\n'
    (tmp_path / "agent.py").write_text(text, encoding="utf-8")
    done = run([sys.executable, "agent.py"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith("Stopped") for line in lines] == [False] * 5 + [True] * 2 + [False]
    assert lines[5].startswith(f"Stopped: {BLOCKED}")


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_what_init_writes(sdk: str, environment: dict[str, str], tmp_path: Path) -> None:
    """The client of `breakloop init --for` gets its answer, and is told when it repeats itself (P-2)."""
    url = environment.pop("OPENAI_BASE_URL").removesuffix("/v1")
    (tmp_path / "client.py").write_text(texts(sdk)["client.py"].replace("http://127.0.0.1:8787", url), encoding="utf-8")
    env = environment | {"ANTHROPIC_API_KEY": "sk-ant-one"}
    again = "import runpy\nfor _ in range(6):\n    runpy.run_path('client.py', run_name='__main__')\n    print('--')\n"
    done = run([sys.executable, "-c", again], tmp_path, env)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("--\n")[:-1]
    assert [one.startswith("stopped: ") for one in printed] == [False] * 5 + [True]
    assert "recursive_loop_detected" in printed[5]


def test_typescript(environment: dict[str, str], tmp_path: Path) -> None:
    """It is type-checked, strictly, and does what it says; the SDK does not retry (P-2, A-3)."""
    node = node_path()
    if not PACKAGES.is_dir():
        missing("`make typescript` installs what is missing")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "tsconfig.json").write_text(json.dumps(TSCONFIG), encoding="utf-8")
    (tmp_path / "agent.ts").write_text(block("ts") + LOOP, encoding="utf-8")
    checked = run([node, "node_modules/typescript/bin/tsc", "-p", "."], tmp_path, environment)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = run([node, "out/agent.js"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith("Stopped") for line in lines] == [False] * 5 + [True] * 2 + [False]
    assert lines[5].startswith("Stopped for 30 s: 429 Blocked: identical request sent 6 times")


def test_curl(environment: dict[str, str], tmp_path: Path) -> None:
    """Status, reason and time are what a shell can read (A-1, A-3)."""
    program("curl")
    (tmp_path / "ask.sh").write_text(block("sh"), encoding="utf-8")
    request = {"model": "m", "messages": [{"role": "user", "content": "Again."}]}
    (tmp_path / "request.json").write_text(json.dumps(request), encoding="utf-8")
    done = [run(["sh", "ask.sh"], tmp_path, environment) for _ in range(6)]
    assert [one.returncode for one in done] == [0, 0, 0, 0, 0, 3]
    assert json.loads(done[0].stdout)["choices"]
    assert done[5].stderr == "stopped for 30 s: the same request was sent again\n"
