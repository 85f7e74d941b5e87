"""`breakloop init`: a policy to begin with, its tests, settings and the schemas that editors read. Everything written
is valid and passes; nothing that is there is overwritten unless asked."""

from __future__ import annotations

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from breakloop.cli.main import PROBLEM
from breakloop.cli.output import end, fail, json_option, print_json
from breakloop.policy.schema_json import bundle_json_schema
from breakloop.settings import settings_json_schema

TEMPLATES = ("llm", "tools", "minimal")
_FOLDER = "templates"


@click.command(name="init")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False))
@click.option("--template", type=click.Choice(TEMPLATES), default="llm", show_default=True, help="What to begin with.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@json_option
def command(directory: str, *, template: str, force: bool, as_json: bool) -> None:
    """Write a policy to begin with, with its tests and settings, into DIR (here, by default)."""
    root = Path(directory)
    texts = contents(template)
    there = [] if force else [name for name in texts if (root / name).exists()]
    if there:
        hint = "nothing was written; --force overwrites, or name another directory"
        if as_json:
            print_json({"ok": False, "exist": there, "error": hint})
        else:
            for name in there:
                click.echo(f"{root / name}: is already there", err=True)
            click.echo(hint, err=True)
        end(PROBLEM)
    try:
        written = _write(root, texts)
    except OSError as error:
        fail(f"{error.filename}: cannot be written: {error.strerror}", as_json=as_json)
    if as_json:
        print_json({"ok": True, "written": [str(path) for path in written]})
    else:
        _tell(root, written)


def contents(template: str) -> dict[str, str]:
    """Return the files of a template by their names."""
    folder = files("breakloop.cli") / _FOLDER
    return {
        "policy.yaml": _text(folder / template / "policy.yaml"),
        "policy-test.yaml": _text(folder / template / "policy-test.yaml"),
        "breakloop.yaml": _text(folder / "breakloop.yaml"),
        "schema/bundle.schema.json": json.dumps(bundle_json_schema(), indent=2) + "\n",
        "schema/settings.schema.json": json.dumps(settings_json_schema(), indent=2) + "\n",
    }


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _write(root: Path, texts: dict[str, str]) -> list[Path]:
    written = []
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _tell(root: Path, written: list[Path]) -> None:
    for path in written:
        click.echo(f"wrote {path}")
    click.echo("\nNext:")
    if root.resolve() != Path.cwd():
        click.echo(f"  cd {root}")
    commands = {
        "breakloop validate policy.yaml": "is the bundle right?",
        "breakloop test policy-test.yaml": "does it do what is expected?",
        "breakloop serve": "run it (settings are in breakloop.yaml)",
    }
    for line, why in commands.items():
        click.echo(f"  {line:<33} {why}")
