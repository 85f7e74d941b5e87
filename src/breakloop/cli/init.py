"""`breakloop init`: write a first policy, its tests, settings and schemas, and the files that a framework or gateway
needs.

Everything it writes is valid. Existing files are kept unless --force is given; files that other programs share are
merged.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from breakloop.cli.main import PROBLEM
from breakloop.cli.output import end, fail, json_option, print_json
from breakloop.config.loader import settings_json_schema
from breakloop.policy.schema.bundle import bundle_json_schema

_TEST: Final = ("breakloop test policy-test.yaml", "check that the policy works as expected")
_SERVE: Final = ("breakloop serve", "run it (settings are in breakloop.yaml)")
_DECISION: Final = "# The gateway forwards; breakloop only decides.\nmode: decision\n"
_MCP: Final = "# /tools/... goes to this server; put yours here.\nupstream: [tools=http://127.0.0.1:9000]\n"

_NOT_OURS: Final = ".txt"  # suffix of templates that are Python programs but not modules of this package
_PLACES: Final = {"claude-hooks.json": ".claude/settings.json"}
MERGED: Final = frozenset(_PLACES.values())  # files that other programs write to as well

Line = tuple[str, str]  # a command and its purpose


class InitChoice(NamedTuple):
    """A framework or gateway that `--for` accepts."""

    label: str
    template: str
    last: Line  # the third command to type next
    settings: str = ""  # additional lines of breakloop.yaml
    folder: str = ""  # directory of its files; "": beside the policy
    served: Line = _SERVE

    @property
    def commands(self) -> tuple[Line, ...]:
        return (_TEST, self.served, self.last)


def _gateway(label: str, name: str, command: str) -> InitChoice:
    return InitChoice(label, "gateway", (command, "in another terminal; your application on 9000"), _DECISION, name)


CHOICES: Final[dict[str, InitChoice]] = {
    "openai": InitChoice("OpenAI's SDK, or any client of its API", "llm", ("python client.py", "a first call")),
    "anthropic": InitChoice("Anthropic's SDK", "llm", ("python client.py", "a first call")),
    "langchain": InitChoice("LangChain or LangGraph", "llm", ("python client.py", "a first call")),
    "litellm": InitChoice(
        "LiteLLM", "llm", ("litellm --config litellm.yaml", "its proxy, with models behind breakloop")
    ),
    "crewai": InitChoice("CrewAI", "llm", ("python client.py", "a first call")),
    "claude-code": InitChoice(
        "Claude Code",
        "llm",
        (
            "claude --settings claude-settings.json",
            "uses the gateway; the hooks in .claude/settings.json need no server",
        ),
    ),
    "mcp": InitChoice("an MCP server (HTTP)", "minimal", ("claude --mcp-config mcp.json", "or another client"), _MCP),
    "nginx": _gateway("nginx", "nginx", 'nginx -p "$PWD/nginx" -c nginx.conf'),
    "envoy": _gateway("Envoy", "envoy", "envoy -c envoy/envoy.yaml"),
    "caddy": _gateway("Caddy", "caddy", "caddy run --config caddy/Caddyfile"),
    "haproxy": _gateway("HAProxy", "haproxy", "haproxy -C haproxy -f haproxy.cfg"),
    "traefik": _gateway(
        "Traefik", "traefik", "traefik --entrypoints.web.address=:8080 --providers.file.filename=traefik/dynamic.yaml"
    ),
    "docker": InitChoice(
        "Docker",
        "llm",
        ("curl -s http://127.0.0.1:8787/readyz", "check that it is ready"),
        served=("docker compose up -d", "run it; the image is set in compose.yaml"),
    ),
    "kubernetes": InitChoice(
        "Kubernetes",
        "llm",
        ("kubectl rollout status deployment/breakloop", "check that it is ready"),
        served=(
            "helm install breakloop deploy/helm/breakloop -f values.yaml --set-file policy=policy.yaml",
            "the chart is in a checkout of breakloop",
        ),
    ),
}
PLAIN: Final[tuple[Line, ...]] = (("breakloop validate policy.yaml", "check that the bundle is valid"), _TEST, _SERVE)


def texts(name: str) -> dict[str, str]:
    """Return the files of a choice by their paths."""
    folder = f"{CHOICES[name].folder}/" if CHOICES[name].folder else ""
    found = (files("breakloop.cli") / "templates" / "for" / name).iterdir()
    return {
        folder + _PLACES.get(file.name, file.name.removesuffix(_NOT_OURS)): file.read_text(encoding="utf-8")
        for file in sorted(found, key=lambda file: file.name)
    }


HOOK: Final = "breakloop hook claude-code"
_OURS: Final = re.compile(r"""breakloop(?:\.exe)?(?:\\?["'])? hook """)  # with any path, quoted or not
_ON_EVERY_PATH: Final = frozenset({"/usr/local/bin", "/usr/bin", "/bin"})


def own_command() -> str:
    """Return how another program starts breakloop. It is the full path, because that program need not run in the
    virtual environment that is active here; the name is enough in directories that every shell searches.
    """
    ran = Path(sys.argv[0])
    if ran.stem != "breakloop":  # python -m breakloop
        beside = shutil.which("breakloop", path=str(Path(sys.executable).parent))
        ran = Path(beside or shutil.which("breakloop") or "breakloop")
        if len(ran.parts) == 1:  # not installed: `setup --verify` reports it
            return "breakloop"
    # Links are kept: the one in ~/.local/bin outlives an upgrade by pipx or uv, its target need not.
    path = os.path.abspath(ran)  # noqa: PTH100 - Path.absolute keeps ".."
    return "breakloop" if str(Path(path).parent) in _ON_EVERY_PATH else path


def hook_line(command: str, options: str = "") -> str:
    """Return the line that a shell runs as a hook."""
    return f"{shlex.quote(command)}{HOOK.removeprefix('breakloop')}{options}"


def has_ours(hooks: object) -> bool:
    """Whether hooks of breakloop are among these, as it writes them now or has written them before."""
    return _OURS.search(json.dumps(hooks)) is not None


class MergeError(Exception):
    """The existing file has an unexpected structure; the message describes it."""


def merged(there: str, ours: str) -> str:
    """Return a settings file with breakloop's hooks added; the same text if they are there already."""
    settings = _object(there)
    hooks = settings.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        raise MergeError('"hooks" is not an object')
    changed = False
    for event, matchers in _object(ours)["hooks"].items():
        known = hooks.setdefault(event, [])
        if not isinstance(known, list):
            raise MergeError(f'"hooks.{event}" is not a list')
        if not has_ours(known):  # compared without path and arguments, which may have been changed
            known.extend(matchers)
            changed = True
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n" if changed else there


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise MergeError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MergeError("is not a JSON object")
    return found


TEMPLATES = ("llm", "tools", "gateway", "minimal")


@click.command(name="init")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False))
@click.option("--for", "what", type=click.Choice(tuple(CHOICES)), help="What you run; asked for on a terminal.")
@click.option("--template", type=click.Choice(TEMPLATES), help="Template of the policy.  [llm, or what fits --for]")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@json_option
def command(directory: str, *, what: str | None, template: str | None, force: bool, as_json: bool) -> None:
    """Write a first policy with tests and settings, and the files that your framework or gateway needs, into DIR (by
    default the current directory).
    """
    root = Path(directory)
    if what is None and template is None and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        what = _ask()
    texts = contents(template, what)
    there = [] if force else [name for name in texts if name not in MERGED and (root / name).exists()]
    if there:
        _refuse(root, there, as_json=as_json)
    try:
        line = json.dumps(hook_line(own_command()), ensure_ascii=False)
        texts = {name: text.replace(f'"{HOOK}"', line) if name in MERGED else text for name, text in texts.items()}
        texts = {name: _beside(root / name, text) for name, text in texts.items()}
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{error.filename}: cannot be written: {error.strerror}")
    except MergeError as error:
        fail(f"{error}; nothing was written")
    written = [root / name for name in texts]
    commands = CHOICES[what].commands if what else PLAIN
    if as_json:
        print_json({"ok": True, "written": [str(path) for path in written], "next": [line for line, _ in commands]})
    else:
        _tell(root, written, commands)


def contents(template: str | None, what: str | None = None) -> dict[str, str]:
    """Return the files of a template and of a choice by their names."""
    choice = CHOICES[what] if what else None
    template = template or (choice.template if choice else TEMPLATES[0])
    folder = files("breakloop.cli") / "templates"
    settings = _text(folder / "breakloop.yaml")
    return {
        "policy.yaml": _text(folder / template / "policy.yaml"),
        "policy-test.yaml": _text(folder / template / "policy-test.yaml"),
        "breakloop.yaml": f"{settings}\n{choice.settings}" if choice and choice.settings else settings,
        **_schemas(),
        **(texts(what) if what else {}),
    }


@cache
def _schemas() -> dict[str, str]:
    made = {"bundle": bundle_json_schema(), "settings": settings_json_schema()}
    return {f"schema/{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in made.items()}


def _ask() -> str | None:
    names = [*CHOICES, None]
    click.echo("What do you run?")
    for number, name in enumerate(names, 1):
        click.echo(f"  {number:>2}  {CHOICES[name].label if name else 'something else: only the policy'}")
    chosen: int = click.prompt("Number", type=click.IntRange(1, len(names)), default=len(names))
    return names[chosen - 1]


def _refuse(root: Path, there: list[str], *, as_json: bool) -> None:
    hint = "nothing was written; use --force to overwrite, or another directory"
    if as_json:
        print_json({"ok": False, "exist": there, "error": hint})
    else:
        for name in there:
            click.echo(f"{root / name}: exists already", err=True)
        click.echo(hint, err=True)
    end(PROBLEM)


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _beside(path: Path, text: str) -> str:
    """Merge into a file that other programs write to as well, even with --force."""
    if path.as_posix().endswith(tuple(MERGED)) and path.exists():
        try:
            return merged(_text(path), text)
        except MergeError as error:
            raise MergeError(f"{path}: {error}") from None
    return text


def _tell(root: Path, written: list[Path], commands: tuple[tuple[str, str], ...]) -> None:
    for path in written:
        click.echo(f"wrote {path}")
    click.echo("\nNext:")
    if root.resolve() != Path.cwd():
        click.echo(f"  cd {root}")
    for line, why in commands:
        click.echo(f"  {line:<33}  {why}")
