"""The npm package of packages/js with the real AI SDK, Mastra, LangChain.js and OpenAI SDK on Node: compiled and type-checked
against them, then run against a real `breakloop serve` and the stand-in LLM."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from breakloop import __version__
from breakloop.testing import SeenRequest, StandInLLM, call_tool, say
from tests.deadlines import DEADLINE_S
from tests.e2e import claude
from tests.e2e.behind import ROOT
from tests.e2e.served import refusing, serving
from tests.programs import missing, node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PACKAGE = ROOT / "packages" / "js"
PACKAGES = ROOT / ".cache" / "typescript" / "node_modules"
AGENTS = {"middleware", "streamed", "prepared", "stopped", "fetched", "openai", "mastra", "langchain", "own"}
LANDING = {"middleware", "streamed", "prepared", "langchain"}
TSCONFIG = {
    "compilerOptions": {
        "strict": True,
        "noUncheckedIndexedAccess": True,
        "target": "es2023",
        "module": "nodenext",
        "types": ["node"],
        "outDir": "out",
        "skipLibCheck": True,
        "preserveSymlinks": True,
    }
}
# A program that loads both halves of the package, as a CommonJS dependency of an ES module would.
BOTH = """
import { createRequire } from "node:module";
import { DeniedError, LoopDetectedError } from "breakloop";
const other = createRequire(import.meta.url)("breakloop");
const fields = { reason: "loop_detected", message: "m", stopReason: "loop", status: 429, retryAfter: 1, kind: "repeat",
  evidence: "", hitCount: 1, cooldownSeconds: 30, fingerprint: "", requestId: "r" };
const error = new other.LoopDetectedError(fields);
const limit = new other.DeniedError({ ...fields, reason: "tpm_exceeded", stopReason: "limit" });
console.log(JSON.stringify([other.LoopDetectedError !== LoopDetectedError, error instanceof LoopDetectedError,
  error instanceof DeniedError, limit instanceof LoopDetectedError, limit instanceof DeniedError,
  new Error("m") instanceof DeniedError, other.deniedBy(new Error("outer", { cause: error })) === error,
  other.deniedBy(new TypeError("no")) === undefined]));
"""


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [node(), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with the package installed, compiled in strict mode against the packages that it is for."""
    if not (PACKAGES / "@mastra" / "core").is_dir():
        missing("`make typescript` installs what is missing")
    made = tmp_path_factory.mktemp("js")
    modules = made / "node_modules"
    modules.mkdir()
    for one in PACKAGES.iterdir():
        (modules / one.name).symlink_to(one)
    (modules / "breakloop").mkdir()
    shutil.copy(PACKAGE / "package.json", modules / "breakloop")
    compiler = str(PACKAGES / "typescript" / "bin" / "tsc")
    run(made, str(PACKAGE / "build.mjs"), compiler, str(modules / "breakloop" / "dist"))
    shutil.copy(ROOT / "tests/e2e/typescript/guarded.ts", made)
    (made / "package.json").write_text('{"type": "module"}')
    (made / "tsconfig.json").write_text(json.dumps({**TSCONFIG, "files": ["guarded.ts"]}))
    run(made, compiler, "-p", ".")
    return made


def respond(seen: SeenRequest) -> Any:
    """Call a tool for as long as there are tools: 30 times, or until somebody ends it."""
    fields = seen.fields
    if fields.get("tool_choice") == "none" or "tools are switched off" in json.dumps(fields["messages"]):
        return say("What I have.")
    turn = sum(message["role"] == "tool" for message in fields["messages"])
    stuck = '"stuck"' in seen.body.decode()
    query = "again" if stuck else f"chapter {turn}"
    return say("All done.") if turn >= (49 if stuck else 30) else call_tool("look", {"query": query})


def play(folder: Path, llm: str, gateway: str, task: str) -> dict[str, dict[str, Any]]:
    ends: dict[str, dict[str, Any]] = json.loads(run(folder, "out/guarded.js", llm, gateway, task).splitlines()[-1])
    assert set(ends) == AGENTS
    return ends


def test_a_loop_ends_with_the_error(folder: Path, tmp_path: Path) -> None:
    """Its tool is run five times in every framework, and the error names what was repeated (P-5)."""
    with StandInLLM.in_thread(respond=respond) as llm, serving(tmp_path, "--upstream", f"openai={llm.url}") as served:
        ends = play(folder, llm.url, served.url, "stuck")
        asked = len(llm.requests)
    assert {name: (end["steps"], end["loop"]) for name, end in ends.items()} == dict.fromkeys(AGENTS, (5, True))
    assert asked == 5 * (len(AGENTS) - 1), "no request follows the denial, of SDKs that retry neither"
    for end in ends.values():
        error = end["error"]
        assert (error["stopReason"], error["kind"], error["cooldownSeconds"]) == ("loop", "repeat", 30)
        assert error["evidence"] == "`look` returned the same 7 bytes 5 times in a row"
        assert error["message"].startswith("Blocked: `look` returned the same 7 bytes")
        assert end["warnings"] == []


def test_a_healthy_run_passes(folder: Path, tmp_path: Path) -> None:
    """Thirty steps, each with a new result (P-5)."""
    with StandInLLM.in_thread(respond=respond) as llm, serving(tmp_path, "--upstream", f"openai={llm.url}") as served:
        ends = play(folder, llm.url, served.url, "healthy")
    wanted = {"steps": 30, "warnings": [], "text": "All done.", "loop": False}
    assert ends == dict.fromkeys(AGENTS, wanted)


def test_without_a_gateway_it_fails_open(folder: Path) -> None:
    """Requests are sent unchecked, and a warning says so once (P-5)."""
    with StandInLLM.in_thread(respond=respond) as llm, refusing() as absent:
        ends = play(folder, llm.url, absent, "healthy")
    for name, end in ends.items():
        assert (end["steps"], end["text"], len(end["warnings"])) == (30, "All done.", 1), name
        assert end["warnings"][0].startswith(f"breakloop: no decision from {absent} (")
        assert end["warnings"][0].endswith("; requests are allowed unchecked")


def test_it_lands(folder: Path, tmp_path: Path) -> None:
    """Where the framework allows it, tools are switched off and the run ends with an answer (P-5, LD-10)."""
    (tmp_path / "policy.json").write_text(json.dumps(claude.LAND))
    flags = ("--policy", "policy.json")
    with (
        StandInLLM.in_thread(respond=respond) as llm,
        serving(tmp_path, "--upstream", f"openai={llm.url}", *flags) as served,
    ):
        ends = play(folder, llm.url, served.url, "stuck")
        landed = [seen.fields for seen in llm.requests if "tools are switched off" in str(seen.fields["messages"][-1])]
    assert {name: ends[name].get("text") for name in LANDING} == dict.fromkeys(LANDING, "What I have.")
    assert len(landed) == len(LANDING) + 2, "the gateway itself for `openai`, and with Mastra the model reads it"
    switched_off = [one for one in landed if not one.get("tools") or one.get("tool_choice") == "none"]
    assert len(switched_off) == len(LANDING) + 1, "and by the gateway itself for `openai`"


def test_both_kinds_of_modules(folder: Path) -> None:
    """An error of one is one of the other (P-5)."""
    (folder / "both.mjs").write_text(BOTH)
    assert json.loads(run(folder, "both.mjs")) == [True, True, True, False, True, False, True, True]


def test_what_pages_show_is_typed(folder: Path) -> None:
    """Every block of TypeScript compiles against the real packages, as it stands there (P-5)."""
    names = []
    for page in (ROOT / "docs/how-to/javascript.md", PACKAGE / "README.md"):
        for number, text in enumerate(re.findall(r"```ts\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            names.append(f"{page.stem}{number}.ts")
            (folder / names[-1]).write_text(text)
    assert len(names) == 6
    (folder / "pages.json").write_text(json.dumps({**TSCONFIG, "files": names}))
    run(folder, str(PACKAGES / "typescript" / "bin" / "tsc"), "-p", "pages.json", "--noEmit")


def test_the_package() -> None:
    """No dependencies, the version of breakloop, and every module in both forms with types (P-5)."""
    package = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    assert package["version"] == __version__
    sources = {path.stem for path in (PACKAGE / "src").glob("*.ts")}
    for name, forms in package["exports"].items():
        module = "index" if name == "." else name.removeprefix("./")
        assert module in sources
        for form, folder in (("import", "esm"), ("require", "cjs")):
            assert forms[form] == {
                "types": f"./dist/{folder}/{module}.d.ts",
                "default": f"./dist/{folder}/{module}.js",
            }
