"""Every fenced block of every page is tested, and every name in a page exists. Blocks are listed in `tests/pages`; commands
and Python are run by `tests/e2e/test_page_commands.py` and `tests/e2e/test_page_python.py`."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from breakloop.cli.main import cli, run
from breakloop.config.loader import FILE, environment_names, load_settings, settings_json_schema
from breakloop.policy.schema.bundle import bundle_json_schema
from tests.deploy.command_lines import wrong_with
from tests.each import each
from tests.pages import coverage
from tests.pages.blocks import ROOT, Block, blocks, commands, pages
from tests.pages.coverage import EXCEPTED, EXCEPTED_AT_MOST, HELD, how
from tests.pages.shell import same
from tests.rules import assert_no_violations
from tests.test_metrics_page import check as check_promql

CONFIGURATION = [block for block in blocks() if how(block) == "config"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_SETTINGS = {"BREAKLOOP_CONFIG", "BREAKLOOP_TOKEN", "BREAKLOOP_URL"}
PRINTED = {"bundle manifest", "listening on", "ready on"}  # what a program prints, not what is typed
FLAG = re.compile(r"`(--[a-z][a-z-]*)")
OPTIONS_OF_OTHERS = {
    *("--env-file", "--health-cmd", "--read-only"),  # Docker
    "--headless",  # Chromium
    "--cases",  # make bench
    "--publish",
    *("--corpus", "--ignore", "--only"),  # make photograph
}
GATEWAY = "http://127.0.0.1:8787"


def test_every_block_is_covered() -> None:
    """A block that is neither run, nor validated, nor held by a test that is named, nor an exception."""
    found = [
        f"{block.where} [{block.language}] {block.text.splitlines()[0][:60]}" for block in blocks() if not how(block)
    ]
    assert_no_violations("a block that no test covers", "see tests/pages/coverage.py", found)


def test_the_tables_are_about_blocks_and_commands_that_exist() -> None:
    """A row that no page needs any more is removed."""
    texts = [(block.page, block.text) for block in blocks()]
    typed = [
        (block.page, command.text)
        for block in blocks()
        if block.language in {"console", "sh"}
        for command in commands(block)
    ]
    tables: list[tuple[Any, list[tuple[str, str]]]] = [
        *((table, texts) for table in (EXCEPTED, HELD, coverage.BEFORE_PYTHON, coverage.AFTER_PYTHON)),
        *((table, typed) for table in (coverage.BEFORE, coverage.FAIL)),
    ]
    rows = [(row, known) for table, known in tables for row in table]
    found = [
        f"{row}" for row, known in rows if not any(page == row[0] and text.startswith(row[1]) for page, text in known)
    ]
    names = {block.page for block in blocks()}
    found += [
        page for table in (coverage.REPLACED, coverage.VARIABLES, coverage.APART) for page in table if page not in names
    ]
    assert_no_violations("a row about nothing", "remove it from tests/pages/coverage.py", found)


def test_there_are_not_more_exceptions() -> None:
    """The list becomes shorter, and never longer."""
    assert len(EXCEPTED) == EXCEPTED_AT_MOST


@each("test", sorted(set(HELD.values())))
def test_what_holds_a_block_exists(test: str) -> None:
    """The tests that the table names."""
    path, _, name = test.partition("::")
    functions = {
        node.name
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert name in functions


def test_a_page_that_shows_something_else_is_seen() -> None:
    """The comparison can fail: only `...`, times and ids, and the breaks of wide lines are left out."""
    assert same("a ... c\n", "a b c\n")
    assert same("at 2026-01-31T18:00:05Z\n", "at 2026-11-16T06:08:06Z\n")
    assert same("first\n...\nlast", "first\n2\n3\nlast\n")
    assert same("x\ny", f"x {'y'}\n") is False
    assert same("x" * 70 + "\n" + "y" * 70, "x" * 70 + " " + "y" * 70)
    assert not same("1 valid\n", "2 valid\n")
    assert not same("1 valid\n", "1 valid\nand a warning\n")


# -- configuration


@cache
def read(block: Block) -> Any:
    if block.language == "toml":
        return tomllib.loads(block.text)
    return YAML(typ="safe", pure=True).load(block.text)  # JSON is YAML


@pytest.mark.slow
@each("block", {block.where: block for block in CONFIGURATION})
def test_configuration_is_accepted(block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What people copy is read by what it is for (B-2, T-1)."""
    assert list(wrong_in(block, tmp_path, capsys)) == []


def wrong_in(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """What the program that reads such a file would say about it."""
    content = read(block)
    fields = set(content)
    if fields <= {"loop_detection", *bundle_json_schema()["properties"]}:
        file = folder / "policy.yaml"
        file.write_text(bundle(block.text, fields), encoding="utf-8")
        if run(["validate", "--strict", str(file)]) != 0:
            yield capsys.readouterr().out
    elif fields <= set(settings_json_schema()["properties"]):
        (folder / FILE).write_text(block.text, encoding="utf-8")
        (folder / "model_prices_and_context_window.json").write_text("{}", encoding="utf-8")
        load_settings({}, env={}, directory=folder)
    else:
        yield from (wrong for name in fields for wrong in _OTHERS[name](content[name]))


def bundle(text: str, fields: set[str]) -> str:
    """A whole bundle with the part that a page shows."""
    if fields == {"loop_detection"}:
        spec = "".join(f"      {line}\n" for line in text.splitlines())
        return f"bundle_version: 1\npolicies:\n  - id: shown\n    spec:\n      selector: {{pathPrefix: /}}\n{spec}"
    return text if "bundle_version" in fields else f"bundle_version: 1\npolicies: []\n{text}"


def _mcp_servers(servers: Mapping[str, Any]) -> Iterator[str]:
    for server in servers.values():
        if "command" in server:
            yield from filter(None, [wrong_with(server["args"]) if server["command"] == "breakloop" else "not ours"])
        else:
            yield from () if server["url"].startswith(f"{GATEWAY}/") else ("not the gateway",)


def _claude_settings(environment: Mapping[str, str]) -> Iterator[str]:
    yield from (name for name, value in environment.items() if (name, value) != ("ANTHROPIC_BASE_URL", GATEWAY))


def _codex_providers(providers: Mapping[str, Any]) -> Iterator[str]:
    for provider in providers.values():
        yield from (
            () if provider["base_url"] == f"{GATEWAY}/v1" and provider["wire_api"] == "responses" else ("address",)
        )


def _litellm_models(models: list[Mapping[str, Any]]) -> Iterator[str]:
    addresses = {one["litellm_params"]["model"].partition("/")[0]: one["litellm_params"]["api_base"] for one in models}
    if addresses != {"openai": f"{GATEWAY}/v1", "anthropic": GATEWAY}:
        yield f"{addresses}"


def _scrapes(jobs: list[Mapping[str, Any]]) -> Iterator[str]:
    known = {"job_name", "scheme", "authorization", "static_configs"}
    yield from (name for job in jobs for name in job if name not in known)
    yield from ("no target" for job in jobs for one in job["static_configs"] if not one["targets"])


def _alert_groups(groups: list[Mapping[str, Any]]) -> Iterator[str]:
    for rule in (rule for group in groups for rule in group["rules"]):
        yield from (f"{name} of {rule['alert']}" for name in rule if name not in {"alert", "expr", "for"})
        if not rule["expr"].startswith("up{"):  # Prometheus has that one itself
            check_promql(re.sub(r"\[\d+m\]", "[24h]", rule["expr"]).replace("==", "=").replace(">", "="))


_OTHERS: dict[str, Callable[[Any], Iterable[str]]] = {
    "agent_servers": _mcp_servers,  # of Zed
    "env": _claude_settings,
    "groups": _alert_groups,
    "mcpServers": _mcp_servers,
    "model_list": _litellm_models,
    "model_provider": lambda name: () if name == "breakloop" else ("another provider",),
    "model_providers": _codex_providers,
    "scrape_configs": _scrapes,
}


# -- names


@cache
def content(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^ *(```|~~~).*?^ *\1$", "", content(page), flags=re.DOTALL | re.MULTILINE)


@cache
def sources() -> str:
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".conf", ".lua", ".html"}]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def variables() -> frozenset[str]:
    return frozenset(name for names in environment_names().values() for name in names)


def words_after(program: str) -> Iterator[tuple[str, list[str]]]:
    """Every place of a page where somebody is told to run a program, with the words behind it."""
    lines = [
        (block.where, command.text)
        for block in blocks()
        if block.language in {"console", "sh"}
        for command in commands(block)
    ]
    lines += [
        (page.relative_to(ROOT).as_posix(), text)
        for page in pages()
        for text in re.findall(r"`([^`\n]+)`", prose(page))
    ]
    start = re.compile(rf"(?:^|[ (/]){program} (?=[a-z][a-z-]*(?: |$))")
    for where, text in lines:
        for part in re.split(r"\s(?:&&|\|\|?|;)\s|\n", text.replace("\\\n", " ")):
            found = start.search(part)
            if found is None or (found.start() and not re.match(r"[A-Z_]+=|docker run|kubectl|\(|/|\S*/", part)):
                continue
            words = re.split(r" +(?:#|[>&]|\d>)|[)]*$", part[found.end() :])[0]
            yield where, shlex.split(words)


def test_every_command_line_is_understood() -> None:
    """Every command and flag that a page tells people to type is there (X-3)."""
    lines = [(where, words) for where, words in words_after("breakloop") if " ".join(words[:2]) not in PRINTED]
    for where, (target, *more) in words_after("make"):
        if target in {"demo", "serve"}:  # pass their ARGS on
            lines.append((where, [target, *shlex.split("".join(more).removeprefix("ARGS="))]))
    assert len(lines) > 150
    found = [
        f"{where}: breakloop {shlex.join(words)}: {wrong}" for where, words in lines if (wrong := wrong_with(words))
    ]
    assert_no_violations("not understood", "correct the page", found)


def test_a_command_line_that_is_wrong_is_seen() -> None:
    """The check can fail."""
    assert wrong_with(["serve", "--state", "redis://a", "--workers", "2"]) == ""
    assert "--worker-count" in wrong_with(["serve", "--worker-count", "2"])
    assert wrong_with(["start"]) == "there is no command start"
    assert "--loud" in wrong_with(["bundle", "push", "policy.yaml", "--loud"])


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, click.Context(inner, parent=context, info_name=name))


def test_every_flag_exists() -> None:
    """A flag that a page names without its command is one of ours, but for those of the programs listed here."""
    root = click.Context(cli, **cli.context_settings)  # a command keeps the help option that it first gets
    known = {*options(cli, root), *OPTIONS_OF_OTHERS}
    named = [(page.relative_to(ROOT).as_posix(), one) for page in pages() for one in FLAG.findall(prose(page))]
    assert len(named) > 50
    assert_no_violations(
        "no such flag", "correct the page", [f"{page}: {one}" for page, one in named if one not in known]
    )


def test_every_make_target_exists() -> None:
    """Every `make TARGET` of a page is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = [(where, words[0]) for where, words in words_after("make")]
    assert len(used) > 30
    assert_no_violations(
        "no such target", "correct the page", [f"{where}: make {name}" for where, name in used if name not in targets]
    )


def test_every_path_exists() -> None:
    """The files of the repository that commands name, also where the commands cannot be run."""
    named = [
        (block.where, path)
        for block in blocks()
        if block.language in {"console", "sh"}
        for path in re.findall(r"(?<![\w/.-])(?:deploy|examples|requirements|scripts)/[\w./-]+\w", block.text)
        if path != "deploy/breakloop"  # kubectl's name for a Deployment
    ]
    assert len(named) > 5
    found = [f"{where}: {path}" for where, path in named if not (ROOT / path).exists() and path != "deploy/docker/.env"]
    assert_no_violations("no such file", "correct the page", found)


def test_every_extra_exists() -> None:
    """What pages tell people to install is a package, with extras that it has."""
    extras = set(PROJECT["optional-dependencies"])
    found = []
    for where, words in words_after("pip"):
        for word in words[1:]:
            if re.match(r"breakloop\b|\.\[", word):
                wanted = Requirement(word.replace(".[", "breakloop[")).extras
                found += [f"{where}: {word}: {extra}" for extra in wanted - extras]
    assert_no_violations("no such extra", "correct the page", found)


def test_every_name_exists() -> None:
    """Variables, settings, metrics and header fields that a page names are there (T-1, G-5, A-1)."""
    sections = {name.partition(".")[0] for name in environment_names() if "." in name}
    ours = set(re.findall(r"\bbreakloop_[a-z_]+", sources()))
    headers = {
        one.lower().strip("-")
        for one in re.findall(
            r"(?:[Xx]-[Bb]reakloop-|prefix\}|prefix\.lower\(\)\}|prefix \+ b?\")([A-Za-z-]+)", sources()
        )
    }
    found = []
    for page in pages():
        if page.name == "CHANGELOG.md":  # has names of the past
            continue
        text = content(page)
        wrong = set(re.findall(r"\b(?:BREAKLOOP|LOOP_GUARD)_[A-Z0-9_]+\b", text)) - variables() - NOT_SETTINGS
        dotted = {
            one
            for one in re.findall(r"`([a-z_]+\.[a-z_.]+)`", prose(page))
            if one.partition(".")[0] in sections and f'"{one}"' not in sources()
        }
        wrong |= {one for one in dotted if not any(f"{name}.".startswith(f"{one}.") for name in environment_names())}
        wrong |= {
            name
            for name in re.findall(r"\bbreakloop_[a-z_]+\b", text)
            if re.sub(r"_(bucket|sum|count)$", "", name) not in ours
        }
        wrong |= {
            f"X-Breakloop-{name}"
            for name in re.findall(r"X-Breakloop-([A-Z][A-Za-z-]*[a-z])\b", text)
            if name.lower().removeprefix("upstream-") not in headers
        }
        found += [f"{page.relative_to(ROOT).as_posix()}: {name}" for name in sorted(wrong)]
    assert_no_violations("no such name", "correct the page", found)
