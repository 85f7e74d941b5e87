"""Every command of the pages is run as it stands there, and prints what the page shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.cli.main import run
from breakloop.testing import ThreadedLLM
from tests.e2e import claude, environments, gateways
from tests.pages.blocks import ROOT, Block, blocks, commands
from tests.pages.coverage import APART, BEFORE, FAIL, REPLACED, VARIABLES, beginning, how
from tests.pages.shell import Shell, Typed
from tests.programs import found, missing, program
from tests.unit.replay.transcripts import FINE, STUCK, rollout, write
from tests.unit.replay.transcripts import claude as claude_session

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PAGES = sorted({block.page for block in blocks() if how(block) == "run"})
CLONED = ("Makefile", "pyproject.toml", "requirements", "scripts", "src")
PROGRAMS = ("caddy", "curl", "haproxy", "nginx", "openssl", "redis-server")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `breakloop init` writes."""
    folder = tmp_path_factory.mktemp("init")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["init"]) == 0
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_commands(page: str, tmp_path: Path, written: Path, llm: ThreadedLLM) -> None:
    """One shell for a page, in which its commands are typed from top to bottom (X-3)."""
    steps = [step for block in blocks() if block.page == page and how(block) == "run" for step in typed(block)]
    for name in PROGRAMS:
        if any(name in step.command for step in steps):
            program(name)
    for name in ("envoy", "traefik"):
        if any(step.command.startswith(f"{name} ") for step in steps) and not (gateways.BIN / name).is_file():
            missing("`make apart-gateways` installs what is missing")
    shell = Shell(tmp_path / "here", environment(page, tmp_path, llm), REPLACED.get(page, {}))
    if page.startswith("docs/how-to/") and not any("http.server 9000" in step.command for step in steps):
        shell.port("9000", llm.port)
    prepare(page, shell, written)
    wrong = shell.run(steps)
    assert not wrong, "\n\n".join(wrong)


def typed(block: Block) -> Iterator[Typed]:
    """What a reader does for a block."""
    if block.file:
        yield Typed(block.where, block.file, text=block.text, is_file=True)
        if block.then:
            yield Typed(block.where, block.then)
        return
    for command in commands(block):
        first = block is next(one for one in blocks() if one.page == block.page and how(one) == "run")
        if first and command is commands(block)[0]:
            yield from (Typed(block.where, line) for line in BEFORE.get((block.page, ""), ()))
        named = {key: lines for key, lines in BEFORE.items() if key[1]}
        yield from (Typed(block.where, line) for line in beginning(named, block.page, command.text) or ())
        if command.text.startswith("cat "):  # the page shows a file that the reader has
            yield Typed(block.where, command.text.split()[1], text=command.shown, is_file=True)
        fails = beginning(dict.fromkeys(FAIL, True), block.page, command.text) is True
        yield Typed(block.where, command.text, command.shown, fails)


def environment(page: str, folder: Path, llm: ThreadedLLM) -> dict[str, str]:
    """No settings, keys and proxies of whoever runs the tests; the providers' addresses lead to the stand-in."""
    apart = APART.get(page, "")
    python = environments.program_of(apart) if apart else sys.executable
    own = folder / "bin"
    own.mkdir()
    scripts = {
        "breakloop": f'exec {python} -m breakloop "$@"',
        "python": f'exec {python} "$@"',
        "python3": f'exec {python} "$@"',
        "uvicorn": f'exec {python} -m uvicorn "$@"',
        "claude": f'exec {claude.command_line() if "claude-code-and" in page else ""} -p "Hello." "$@"',
        "nginx": f'exec {found("nginx")} -e "$PWD/error.log" -g "daemon off; pid $PWD/nginx.pid;" "$@"',
        "envoy": f'exec {gateways.BIN / "envoy"} --concurrency 1 --disable-hot-restart "$@"',
        "traefik": f'exec {gateways.BIN / "traefik"} --global.checknewversion=false "$@"',
    }
    for name, line in scripts.items():
        (own / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (own / name).chmod(0o755)
    home = folder / "home"
    home.mkdir()
    (home / ".curlrc").write_text("silent\nshow-error\n", encoding="utf-8")  # as on a terminal: no progress meter
    path = os.pathsep.join([str(own), os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])
    upstreams = ",".join(f"{name}={llm.url}" for name in ("openai", "anthropic", "gemini"))
    return {
        **without_settings(),
        **(environments.variables(home) if apart else {}),
        **(claude.environment(home, llm.url) if apart == "claude" else {}),
        "PATH": path,
        "HOME": str(home),
        "CLAUDE_CODE_TMPDIR": str(home),
        "PYTHONPATH": str(ROOT / "src"),
        "BREAKLOOP_UPSTREAM": upstreams,
        "OPENAI_API_KEY": "sk-of-the-reader",
        "ANTHROPIC_API_KEY": "sk-ant-of-the-reader",
        **VARIABLES.get(page, {}),
    }


def prepare(page: str, shell: Shell, written: Path) -> None:
    """Fill the directory in which the reader is: an example, or a clone with what `breakloop init` wrote."""
    if page.startswith("examples/"):
        shutil.copytree((ROOT / page).parent, shell.folder)
        for file in shell.folder.iterdir():
            file.write_text(shell.here(file.read_text(encoding="utf-8")), encoding="utf-8")
        return
    shutil.copytree(written, shell.folder)
    for name in CLONED:
        (shell.folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "deploy" / "nginx", shell.folder / "deploy" / "nginx")
    for file in (shell.folder / "deploy" / "nginx").iterdir():
        file.write_text(shell.here(file.read_text(encoding="utf-8")), encoding="utf-8")
    if page.endswith("scan-transcripts.md"):
        transcripts(shell.folder.parent / "home")
    (session,) = (block.text for block in blocks() if block.page.endswith("replay.md") and block.language == "json")
    (shell.folder / "sessions.jsonl").write_text(json.dumps(json.loads(session)) + "\n", encoding="utf-8")
    own = shell.folder / ".venv" / "bin"
    own.parent.mkdir()
    own.symlink_to(shell.folder.parent / "bin")
    (own / "activate").touch()
    for stamp in (".run", ".ready"):
        (own.parent / stamp).touch()


def transcripts(home: Path) -> None:
    """Three sessions where coding agents keep them: two go in circles."""
    look = [("cat config.yml", "port: 8080"), ("python app.py", "ERROR: port 8080 is in use")]
    circle, stuck = [*FINE, *look * 18], [*FINE, *STUCK]
    projects = home / ".claude" / "projects" / "parser"
    write(projects / "1.jsonl", claude_session(circle, "9c4e77aa-51b0-4f0f-8d11-0c2b7a9e6d40"))
    write(projects / "2.jsonl", claude_session(FINE, "5d2b61f0-8a2f-4e3c-9f6b-3d1a0c4e7b21"))
    write(home / ".codex" / "sessions" / "rollout-3.jsonl", rollout(stuck, "019a2d7a-41c4-78b1-b7cc-a45d62a89cd5"))


def without_settings() -> dict[str, str]:
    """The environment of whoever runs the tests, without settings, keys and proxies, and without what make exports:
    `ARGS` of `make suite ARGS=...` and `VENV` of `make test-python` are not meant for the `make serve` of a page."""
    left_out = ("BREAKLOOP_", "OPENAI_", "ANTHROPIC_", "XDG_", "LOOP_GUARD_", "OTEL_", "MAKE", "MFLAGS")
    of_make = re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(left_out) and name not in of_make and not name.lower().endswith("_proxy")
    }
