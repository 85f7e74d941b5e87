"""`breakloop init`: a policy to begin with, its tests, settings and the schemas that editors read; and what is needed
for what you run, which it asks on a terminal. Everything written is valid and passes; nothing that is there is
overwritten unless asked."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from breakloop.cli import init_choices
from breakloop.cli.init_choices import CHOICES, MERGED, PLAIN
from breakloop.cli.init_merge import MergeError, merged
from breakloop.cli.main import PROBLEM
from breakloop.cli.output import end, fail, json_option, print_json
from breakloop.policy.schema_json import bundle_json_schema
from breakloop.settings import settings_json_schema

TEMPLATES = ("llm", "tools", "gateway", "minimal")
_FOLDER = "templates"
_NONE = "something else: only the policy"


@click.command(name="init")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False))
@click.option("--for", "what", type=click.Choice(tuple(CHOICES)), help="What you run; asked on a terminal.")
@click.option("--template", type=click.Choice(TEMPLATES), help="The policy to begin with.  [llm, or what fits --for]")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@json_option
def command(directory: str, *, what: str | None, template: str | None, force: bool, as_json: bool) -> None:
    """Write a policy to begin with, its tests and settings, and what your program or gateway needs, into DIR (here, by
    default)."""
    root = Path(directory)
    if what is None and template is None and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        what = _ask()
    texts = contents(template, what)
    there = [] if force else [name for name in texts if name not in MERGED and (root / name).exists()]
    if there:
        _refuse(root, there, as_json=as_json)
    try:
        written = _write(root, {name: _beside(root / name, text) for name, text in texts.items()})
    except OSError as error:
        fail(f"{error.filename}: cannot be written: {error.strerror}", as_json=as_json)
    except MergeError as error:
        fail(f"{error}; nothing was written", as_json=as_json)
    commands = CHOICES[what].commands if what else PLAIN
    if as_json:
        print_json({"ok": True, "written": [str(path) for path in written], "next": [line for line, _ in commands]})
    else:
        _tell(root, written, commands)


def contents(template: str | None, what: str | None = None) -> dict[str, str]:
    """Return the files of a template, and of what it is for, by their names."""
    choice = CHOICES[what] if what else None
    template = template or (choice.template if choice else TEMPLATES[0])
    folder = files("breakloop.cli") / _FOLDER
    settings = _text(folder / "breakloop.yaml")
    return {
        "policy.yaml": _text(folder / template / "policy.yaml"),
        "policy-test.yaml": _text(folder / template / "policy-test.yaml"),
        "breakloop.yaml": f"{settings}\n{choice.settings}" if choice and choice.settings else settings,
        "schema/bundle.schema.json": json.dumps(bundle_json_schema(), indent=2) + "\n",
        "schema/settings.schema.json": json.dumps(settings_json_schema(), indent=2) + "\n",
        **(init_choices.texts(what) if what else {}),
    }


def _ask() -> str | None:
    """Let the user choose what it is for."""
    names = [*CHOICES, None]
    click.echo("What do you run?")
    for number, name in enumerate(names, 1):
        click.echo(f"  {number:>2}  {CHOICES[name].label if name else _NONE}")
    chosen: int = click.prompt("Number", type=click.IntRange(1, len(names)), default=len(names))
    return names[chosen - 1]


def _refuse(root: Path, there: list[str], *, as_json: bool) -> None:
    hint = "nothing was written; --force overwrites, or name another directory"
    if as_json:
        print_json({"ok": False, "exist": there, "error": hint})
    else:
        for name in there:
            click.echo(f"{root / name}: is already there", err=True)
        click.echo(hint, err=True)
    end(PROBLEM)


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _beside(path: Path, text: str) -> str:
    """A file that others write to as well keeps what is theirs, even with --force."""
    if path.as_posix().endswith(tuple(MERGED)) and path.exists():
        try:
            return merged(_text(path), text)
        except MergeError as error:
            raise MergeError(f"{path}: {error}") from None
    return text


def _write(root: Path, texts: dict[str, str]) -> list[Path]:
    written = []
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _tell(root: Path, written: list[Path], commands: tuple[tuple[str, str], ...]) -> None:
    for path in written:
        click.echo(f"wrote {path}")
    click.echo("\nNext:")
    if root.resolve() != Path.cwd():
        click.echo(f"  cd {root}")
    for line, why in commands:
        click.echo(f"  {line:<33}  {why}")
