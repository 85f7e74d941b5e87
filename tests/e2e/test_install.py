"""The wheel in virtual environments of its own, which have what it declares and nothing else.

The packages are linked from the environment that runs the tests, so that no index is needed. `make release` installs
from an index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from breakloop.cli.main import COMMANDS, LIBRARY, OK, SERVER, USAGE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent
POLICY = """\
bundle_version: 1
policies:
  - id: p
    spec:
      selector: {pathPrefix: /}
      rules:
        - {name: r, limit_keys: [], algorithm: token_bucket_llm, algorithm_config: {tokens_per_minute: 100000}}
"""
GUARD = """\
import json, sys
from breakloop import Guard, LoopDetectedError
import breakloop.testing, breakloop.integrations.asgi
with Guard("policy.yaml") as guard:
    decision = guard.check({"model": "gpt-4.1", "messages": [{"role": "user", "content": "hi"}]})
    guard.report(decision, usage={"input_tokens": 3, "output_tokens": 4})
    tool = guard.tool(lambda path: "no such file")
    try:
        for _ in range(20):
            tool("a.txt")
    except LoopDetectedError as error:
        print(json.dumps([decision.allowed, guard.faults, error.decision.kind, sorted(sys.modules)]))
"""
CODES = """\
import json
from breakloop.cli.main import COMMANDS, run
codes = {name: run([name, "--help"]) for name in COMMANDS}
print(json.dumps(codes), end="")
"""
MODULES = """\
import importlib, pkgutil, breakloop
missing = set()
for module in pkgutil.walk_packages(breakloop.__path__, "breakloop."):
    if module.name.split(".")[1] not in {"__main__", "anthropic", "integrations", "openai"}:
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing.add(error.name)
print(*missing)
"""
EVENT = {
    "hook_event_name": "PostToolUse",
    "session_id": "s",
    "tool_name": "Bash",
    "tool_input": {},
    "tool_response": "",
}

Run = Callable[..., subprocess.CompletedProcess[str]]


def needed(dist: Distribution, extras: frozenset[str], seen: dict[str, Distribution]) -> None:
    """Collect what a distribution requires with these extras, and what that requires."""
    for requirement in map(Requirement, dist.requires or ()):
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        )
        name = canonicalize_name(requirement.name)
        if applies and name == "breakloop":
            needed(dist, frozenset(requirement.extras), seen)
        elif applies and name not in seen:
            seen[name] = distribution(name)
            needed(seen[name], frozenset(requirement.extras), seen)


def built(target: str, folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def installed(wheel: Path, folder: Path, *extras: str) -> Run:
    """Make an environment with a wheel and its requirements; return a function that runs one of its programs."""
    venv.create(folder / "env", symlinks=True)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (metadata,) = site.glob("breakloop-*.dist-info")
    found: dict[str, Distribution] = {}
    needed(PathDistribution(metadata), frozenset(extras), found)
    for dist in found.values():
        for top in {Path(file).parts[0] for file in dist.files or ()} - {".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))))
    return partial(run, folder)


def run(folder: Path, *arguments: str, sent: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(folder / "env" / "bin" / "python"), "-I", *arguments]
    return subprocess.run(command, cwd=folder, input=sent, capture_output=True, text=True, check=False)


def test_the_library_has_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    """`Guard`, the hook, `init` and `validate` work with the required dependencies; the other commands name the extra
    (P-1)."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    python = installed(wheel, tmp_path)
    breakloop = partial(python, "-m", "breakloop")

    done = python("-c", GUARD)
    assert done.returncode == OK, done.stderr
    allowed, faults, kind, modules = json.loads(done.stdout)
    assert (allowed, faults, kind) == (True, 0, "repeat")
    assert set(SERVER) & set(modules) == set()

    assert breakloop("validate", "policy.yaml").returncode == OK
    assert breakloop("init", "--for", "claude-code", "new").returncode == OK
    assert breakloop("validate", "new/policy.yaml").returncode == OK
    hooked = breakloop("hook", "claude-code", sent=json.dumps(EVENT))
    assert (hooked.returncode, hooked.stderr) == (OK, "")
    codes = python("-c", CODES).stdout.rpartition("\n")[2]
    assert json.loads(codes) == {name: OK if name in LIBRARY else USAGE for name in COMMANDS}


def test_the_server_has_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    """The extra `server` brings all that its modules import; `demo` runs the gateway (P-1)."""
    python = installed(wheel, tmp_path, "server")
    imported = python("-c", MODULES)
    assert imported.stdout == "opentelemetry\n", imported.stderr  # another extra
    demo = python("-m", "breakloop", "demo", "--json")
    assert demo.returncode == OK, demo.stderr
    assert json.loads(demo.stdout)["looping"]["blocked"] > 0


def test_the_sdist_has_what_its_tests_read(tmp_path: Path) -> None:
    """Every file of the repository but one of git, so that `make check` works in it; nothing else."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository: nothing to compare with")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tracked = {name for name in listed if name and (ROOT / name).exists()}
    with tarfile.open(built("sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert (tracked - packed, packed - tracked) == ({".git-blame-ignore-revs"}, {"PKG-INFO"})
