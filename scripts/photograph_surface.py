"""Part of `scripts.photograph`: what users of the program, the library and its files see without any traffic. Class
names and module paths are left out: shapes are compared, and a rename inside is no difference."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

import breakloop
import breakloop.anthropic
import breakloop.openai
import breakloop.testing
from breakloop.cli.main import cli, run
from breakloop.clock import FakeClock
from breakloop.detect.steps.kinds import KINDS
from breakloop.model.decision import ALLOWED
from breakloop.model.events import (
    AGENT_KILLED,
    AGENT_RELEASED,
    API_UNKNOWN,
    BODY_NOT_UNPACKED,
    BREAKER_CLOSED,
    BREAKER_OPENED,
    BUDGET_THRESHOLD,
    BUNDLE_EXPIRED,
    BUNDLE_LOADED,
    BUNDLE_REJECTED,
    DESCRIPTOR_MISSING,
    KILL_SWITCH_CHANGED,
    LIMIT_EXCEEDED,
    LOOP_CLEARED,
    LOOP_DETECTED,
    MODEL_UNKNOWN,
    OVERRIDE_CHANGED,
    RUN_ANSWERED,
    RUN_PAUSED,
    SHADOW_WOULD_REJECT,
    STORE_DEGRADED,
    STORE_RECOVERED,
    UPSTREAM_FAILED,
    WORKER_DIED,
    WORKER_REPLACED,
)
from breakloop.model.verdict import ALLOWED_NO_POLICY, REASONS
from breakloop.observe.metrics import LABELS, METRICS
from breakloop.testing import Conversation, bundle, loop_policy
from scripts.gen_docs import PAGES
from scripts.photograph_files import digest, write_lines

Json = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parent.parent
POLICIES: Final = ROOT / "tests" / "policies"
REPEATS: Final = 7
# Events by the names that subscribers see.
EVENTS: Final = (
    LOOP_DETECTED,
    LOOP_CLEARED,
    AGENT_KILLED,
    AGENT_RELEASED,
    RUN_PAUSED,
    RUN_ANSWERED,
    KILL_SWITCH_CHANGED,
    OVERRIDE_CHANGED,
    BUDGET_THRESHOLD,
    BREAKER_OPENED,
    BREAKER_CLOSED,
    MODEL_UNKNOWN,
    API_UNKNOWN,
    LIMIT_EXCEEDED,
    SHADOW_WOULD_REJECT,
    BUNDLE_LOADED,
    BUNDLE_REJECTED,
    BUNDLE_EXPIRED,
    STORE_DEGRADED,
    STORE_RECOVERED,
    DESCRIPTOR_MISSING,
    BODY_NOT_UNPACKED,
    UPSTREAM_FAILED,
    WORKER_DIED,
    WORKER_REPLACED,
)
# Generated files that show names of classes.
NAMED_PAGES: Final = (
    "docs/reference/bundle.md",
    "docs/reference/settings.md",
    "docs/reference/admin-api.md",
    "examples/breakloop.schema.json",
)
# Attributes without an underscore that are not documented, and may be renamed.
_INSIDE: Final = {"Decision": {"call", "verdict", "body"}}
WATCHED_PACKAGES: Final = (
    "aiohttp", "anthropic", "asyncio", "click", "cryptography", "genai_prices", "hiredis", "httptools", "httpx",
    "jinja2", "jwt", "msgspec", "openai", "pydantic", "redis", "rich", "ruamel", "sqlalchemy", "starlette", "uvloop",
    "xxhash",
)  # fmt: skip


def photograph_surface(out: Path, corpus: Sequence[Path]) -> None:
    """Write everything of this part."""
    write_lines(out / "help.txt", _help())
    _schemas(out)
    write_lines(out / "reasons.txt", _reasons())
    write_lines(out / "events.txt", EVENTS)
    write_lines(out / "kinds.txt", ["0 ", *[f"{kind.id} {kind.name}" for kind in KINDS]])
    write_lines(out / "kinds-in-order-of-trust.txt", ["", *[kind.name for kind in KINDS]])
    write_lines(out / "metrics.txt", _metrics())
    write_lines(out / "public-names.txt", _public())
    write_lines(out / "diagnostics.txt", _diagnostics())
    write_lines(out / "commands.txt", _commands(corpus))
    write_lines(out / "guard.txt", _guard())
    write_lines(out / "hook.txt", _hook())
    write_lines(out / "tests.txt", _tests())
    for path, page in PAGES.items():
        if not path.startswith("src/"):
            folder = "raw" if path in NAMED_PAGES else "generated"
            write_lines(out / folder / path.replace("/", "-"), page().splitlines())


# -- the command line --------------------------------------------------------------------------------------------------


def called(*arguments: str) -> list[str]:
    """Run a command in this process; return its exit code and what it printed."""
    printed, complained = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(complained):
        try:
            code = run(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    lines = [f"$ breakloop {' '.join(arguments)}", f"exit code {code}"]
    for name, text in (("out", printed.getvalue()), ("err", complained.getvalue())):
        lines += [f"{name}: {line}".rstrip() for line in text.splitlines()]
    return lines


def _help() -> Iterator[str]:
    yield from called("--version")
    for names in _command_names(cli, ()):
        yield from called(*names, "--help")


def _command_names(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _command_names(command, (*path, name))
        else:
            yield (*path, name)


def _commands(corpus: Sequence[Path]) -> Iterator[str]:
    """Commands that print the same each time."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("policy.yaml").write_text(json.dumps(bundle(loop_policy())), encoding="utf-8")
        talk = Conversation(dialect="anthropic_messages").work(3)
        asked = {"method": "POST", "path": "/v1/messages", "headers": {"x-agent-id": "a"}, "body": talk.request()}
        Path("request.json").write_text(json.dumps(asked), encoding="utf-8")
        yield from called("version")
        yield from called("prices", "gpt-4o")
        yield from called("prices", "claude-sonnet-4-5", "--json")
        yield from called("explain", "--request", "request.json", "--policy", "policy.yaml", "--repeat", "7")
        yield from called("explain", "--request", "request.json", "--repeat", "7", "--json")
        for target in ("llm", "tools", "gateway", "minimal"):
            yield from _initialised(target, "--template", target)
        for target in ("openai", "anthropic", "langchain", "litellm", "crewai", "claude-code", "mcp", "nginx", "envoy"):
            yield from _initialised(target, "--for", target)
    for path in [one for one in corpus if one.stat().st_size < 130_000]:
        with chdir(path.parent):
            yield from called("replay", path.name, "--json")
            yield from called("replay", path.name)


def _initialised(name: str, *options: str) -> Iterator[str]:
    home = Path(f"init-{name}")
    yield from called("init", *options, str(home))
    for path in sorted(home.rglob("*")):
        if path.name.endswith(".schema.json"):
            yield f"  {path}"  # see schema-bundle.json
        elif path.is_file():
            yield f"  {path} sha256={digest(path.read_bytes())}"
    test = home / "policy.test.yaml"
    if test.is_file():
        yield from called("test", str(test), "--policy", str(home / "policy.yaml"))


def _diagnostics() -> Iterator[str]:
    """What `validate` prints for every bundle of the tests, good and bad."""
    with chdir(POLICIES):
        for path in sorted([*Path("bad").iterdir(), *Path("good").iterdir()]):
            if path.suffix != ".txt":
                yield from called("validate", str(path))
                yield from called("validate", "--json", str(path))


# -- shapes ------------------------------------------------------------------------------------------------------------


def _schemas(out: Path) -> None:
    for name, options in (("bundle", ()), ("settings", ("--settings",))):
        text = "\n".join(line.removeprefix("out: ") for line in called("schema", *options)[2:])
        write_lines(out / "raw" / f"schema-{name}.json", text.splitlines())
        write_lines(out / f"schema-{name}.json", shape_lines(json.loads(text)))
    lines = [*called("schema", "--builtin"), *called("schema", "--builtin", "--json")]
    lines += [*called("schema", "--presets"), *called("schema", "--presets", "--json")]
    write_lines(out / "schema-presets.txt", lines)


def shape_lines(document: Json) -> list[str]:
    """A JSON Schema or OpenAPI document without the names of its definitions: each stands where it is used."""
    plain = _inlined(document, document, ())
    if "components" in plain:
        plain["components"].pop("schemas", None)
    return json.dumps(plain, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


def _inlined(part: Any, document: Json, above: tuple[str, ...]) -> Any:
    if isinstance(part, list):
        return [_inlined(one, document, above) for one in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        if reference in above:
            return {"the same as": f"{len(above) - above.index(reference)} levels above"}
        found: Any = document
        for name in reference[2:].split("/"):
            found = found[name]
        merged = {**{key: value for key, value in found.items() if key != "title"}, **part}
        merged.pop("$ref")
        return _inlined(merged, document, (*above, reference))
    skipped = {"$defs"} if part is document else set()
    made = {key: _inlined(value, document, above) for key, value in part.items() if key not in skipped}
    if isinstance(made.get("discriminator"), dict):
        made["discriminator"].pop("mapping", None)
    return made


def _reasons() -> Iterator[str]:
    yield f"{ALLOWED} {ALLOWED_NO_POLICY}"
    for name, info in REASONS.items():
        yield f"{name} {info.status} {info.source!r} retry={info.retry_helps} {info.meaning!r} {info.remedy!r}"


def _metrics() -> Iterator[str]:
    for key, metric in METRICS.items():
        yield f"{key} {metric.name} {metric.kind} {list(metric.labels)} {list(metric.bounds)} {metric.help!r}"
    for name, label in LABELS.items():
        yield f"label {name} most={label.most} {label.help!r}"


# -- the library -------------------------------------------------------------------------------------------------------


def _public() -> Iterator[str]:
    modules: dict[str, ModuleType] = {
        "breakloop": breakloop,
        "breakloop.openai": breakloop.openai,
        "breakloop.anthropic": breakloop.anthropic,
        "breakloop.testing": breakloop.testing,
    }
    for title, module in modules.items():
        yield title
        for name in sorted(module.__all__):
            yield from _described(f"  {name}", getattr(module, name))


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [one.__name__ for one in value.__mro__[1:] if not one.__module__.startswith("breakloop")]
        yield f"{name}: class{_parameters(value)} bases={[one for one in bases if one not in {'object', 'Generic'}]}"
        own = [one for one in value.__mro__ if one.__module__.startswith("breakloop")]
        members = {member for one in own for member in vars(one) if not member.startswith("_")}
        for member in sorted(members - _INSIDE.get(value.__name__, set())):
            found = inspect.getattr_static(value, member)
            if isinstance(found, staticmethod | classmethod):
                found = found.__func__
            kind = "property" if isinstance(found, property) else "value"
            shown = f"{'async ' if inspect.iscoroutinefunction(found) else ''}def{_parameters(found)}"
            yield f"  {name}.{member}: {shown if inspect.isfunction(found) else kind}"
    elif callable(value):
        yield f"{name}: {'async ' if inspect.iscoroutinefunction(value) else ''}def{_parameters(value)}"
    else:
        yield f"{name}: {type(value).__name__} {value!r}"


def _parameters(value: Any) -> str:
    """Names, kinds and plain defaults of parameters; annotations may name what was renamed."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(?)"
    shown = []
    for one in signature.parameters.values():
        default = ""
        if one.default is not inspect.Parameter.empty:
            is_plain = one.default is None or isinstance(one.default, bool | int | float | str | bytes | tuple)
            default = f"={one.default!r}" if is_plain else "=..."
        shown.append(f"{one.kind.name.lower()} {one.name}{default}")
    return f"({', '.join(shown)})"


def _guard() -> Iterator[str]:
    """A scripted agent in the library, with the built-in protection and with a policy."""
    limits = bundle(loop_policy(similarity="steps", sensitivity="strict", ladder={"notice": "steer", "stop": "kill"}))
    for title, policy in (("built-in", None), ("strict", limits)):
        clock = FakeClock()
        with breakloop.Guard(policy, clock=clock) as guard:
            talk = Conversation()
            for number in range(20):
                decision = guard.check(talk.request(), agent="bot", session="s-1")
                yield f"{title} check {number} {_decision(decision)}"
                usage = {"input_tokens": 100, "output_tokens": 10}
                guard.report(decision, text=f"Step {number}", calls=[("read_file", {"path": "a"})], usage=usage)
                talk.work() if number < 4 else talk.tool("run", {"command": "make"}, "no rule for app", failed=True)
                clock.advance(2.0)
            for number in range(14):
                try:
                    step = guard.step([("search", {"q": "x"})], ["nothing found"], session="s-2", agent="other")
                    yield f"{title} step {number} {_decision(step)}"
                except breakloop.DeniedError as error:
                    yield f"{title} step {number} raised {type(error).__name__}: {error}"
                clock.advance(2.0)


def _decision(decision: breakloop.Decision) -> str:
    shown = {
        "allowed": decision.allowed,
        "reason": decision.reason,
        "status": decision.status,
        "message": decision.message,
        "retry_after": decision.retry_after,
        "delay_seconds": decision.delay_seconds,
        "warning": decision.warning,
        "note": decision.note,
        "kind": decision.kind,
        "hit_count": decision.hit_count,
        "cooldown_seconds": decision.cooldown_seconds,
        "evidence": decision.evidence,
        "policy": decision.policy,
        "degraded": decision.degraded,
        "is_loop": decision.is_loop,
        "error": decision.error,
        "notice": decision.notice,
    }
    return json.dumps(shown)


def _hook() -> Iterator[str]:
    """What Claude Code is answered, event by event."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(14):
            made = {"session_id": "s-1", "tool_name": "Bash", "tool_input": {"command": "make"}, "cwd": folder}
            told = {"tool_use_id": f"toolu_{number}", "transcript_path": "", **made}
            yield from _hooked(folder, {**told, "hook_event_name": "PreToolUse"})
            response = {"stdout": "no rule to make target", "stderr": "", "interrupted": False}
            yield from _hooked(folder, {**told, "hook_event_name": "PostToolUse", "tool_response": response})
        yield from _hooked(folder, {"session_id": "s-1", "hook_event_name": "UserPromptSubmit", "prompt": "Go on."})
        yield from _hooked(folder, {"session_id": "s-1", "hook_event_name": "SessionEnd", "reason": "exit"})
        yield from _hooked(folder, {"nonsense": True})


def _hooked(folder: str, event: Json) -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, "-m", "breakloop", "hook", "claude-code"],
        input=json.dumps(event),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "HOME": folder},
    )
    printed = re.sub(r"\d+ seconds", "* seconds", done.stdout)  # of a cooldown: its clock is the machine's
    yield f"{event.get('hook_event_name')}: exit {done.returncode} out {printed!r} err {done.stderr!r}"


def _tests() -> Iterator[str]:
    """Names of test functions and how many there are of each: files may move."""
    names = Counter(
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )
    yield from (f"{name} {count}" for name, count in sorted(names.items()))


# -- what is imported --------------------------------------------------------------------------------------------------

_STARTS: Final = {
    "import breakloop": "import breakloop",
    "Guard()": "import breakloop; breakloop.Guard()",
    "hook claude-code": "import runpy, sys; sys.argv = ['breakloop', 'hook', 'claude-code']; "
    "runpy.run_module('breakloop', run_name='__main__', alter_sys=True)",
}
_TELL: Final = (
    "import atexit, sys\n"
    "def tell():\n"
    " own = [name for name in sys.modules if name.partition('.')[0] == 'breakloop']\n"
    " print(len(own), *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    "atexit.register(tell)\n"
)


def photograph_imports(out: Path) -> None:
    """Write imports.txt and timing.txt."""
    made = {"session_id": "s", "tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "toolu_1"}
    event = json.dumps({"hook_event_name": "PostToolUse", "tool_response": {"stdout": "a"}, **made})
    lines, times = [], []
    for title, code in _STARTS.items():
        told = _python(_TELL + code, event).splitlines()[-1].split()
        lines.append(f"{title}: packages {' '.join(sorted(set(told[1:]) & set(WATCHED_PACKAGES))) or '-'}")
        lines.append(f"{title}: own modules {told[0]}")
        taken = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            _python(code, event)
            taken.append(time.perf_counter() - began)
        times.append(f"{title}: {min(taken) * 1000:.0f} ms, best of {REPEATS}")
    write_lines(out / "imports.txt", lines)
    write_lines(out / "timing.txt", times)


def _python(code: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HOME": folder}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, env=environment)
    return done.stderr
