"""`breakloop validate`: check policy bundles and print problems with their locations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from breakloop.cli.main import PROBLEM
from breakloop.cli.output import STDIN, STDIN_NAME, end, json_option, print_json
from breakloop.clock import SystemClock
from breakloop.errors import BundleError, Problem
from breakloop.formatting import plural
from breakloop.policy.load import LoadedBundle, load_bundle, load_text

# Files that are passed by mistake: a field that only they have, and the command that reads them.
_OTHERS = {
    "cases": "a test file: run it with `breakloop test {name}`",
    "expect": "a test file: run it with `breakloop test {name}`",
    "port": "a settings file: check it with `breakloop doctor --config {name}`",
    "policy": "a settings file: check it with `breakloop doctor --config {name}`",
}


@dataclass(frozen=True, slots=True)
class CheckedBundle:
    """The results for one file or directory; `missing` is the reason why it could not be read."""

    name: str
    loaded: LoadedBundle | None = None
    problems: tuple[Problem, ...] = ()
    missing: str = ""

    @property
    def notes(self) -> tuple[Problem, ...]:
        return tuple(self.loaded.notes) if self.loaded else ()

    def ok(self, *, strict: bool) -> bool:
        """Return whether it is valid; with `strict`, notes count as problems."""
        return self.loaded is not None and not (strict and self.loaded.notes)


def check(name: str, now: float) -> CheckedBundle:
    """Validate one file, one directory (which is one bundle), or standard input."""
    try:
        if name == STDIN:
            return CheckedBundle(STDIN_NAME, load_text(sys.stdin.buffer.read(), STDIN_NAME, now=now))
        if not Path(name).exists():
            return CheckedBundle(name, missing="there is no such file or directory")
        return CheckedBundle(name, load_bundle(Path(name), now=now))
    except BundleError as error:
        return CheckedBundle(STDIN_NAME if name == STDIN else name, problems=tuple(error.problems))


@click.command(name="validate", epilog="Exit code 0: all are valid; 1: a problem was found.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--strict", is_flag=True, help="Notes count as problems.")
@json_option
def command(files: tuple[str, ...], *, strict: bool, as_json: bool) -> None:
    """Check policy bundles: files, directories (each is one bundle), or - for standard input.

    Every problem is printed with its file, line and column, the path in the bundle, and a hint. Notes point out what
    is valid but may surprise you.
    """
    now = SystemClock().now()
    checked = [check(name, now) for name in files]
    if as_json:
        print_json(_as_json(checked, strict=strict))
    else:
        for one in checked:
            _tell(one)
        click.echo(_summary(checked, strict=strict))
    if not all(one.ok(strict=strict) for one in checked):
        end(PROBLEM)


def _tell(one: CheckedBundle) -> None:
    if one.missing:
        click.echo(f"{one.name}: {one.missing}")
    for problem in one.problems:
        click.echo(str(problem))
    if hint := _other_file(one):
        click.echo(hint)
    for note in one.notes:
        click.echo(note_text(note))
    if one.loaded is not None:
        bundle = one.loaded.bundle
        policies = plural(len(bundle.policies), "policy", "policies")
        click.echo(f"{one.name}: ok, version {bundle.bundle_version}, {policies}, digest {one.loaded.digest[:12]}")


def _other_file(one: CheckedBundle) -> str:
    """Return a hint if the file looks like something else than a bundle, such as settings."""
    unknown = {said.partition('"')[2].partition('"')[0] for said in (problem.message for problem in one.problems)}
    for name, text in _OTHERS.items():
        if name in unknown and any(problem.path == "bundle_version" for problem in one.problems):
            return f"{one.name} looks like {text.format(name=one.name)}"
    return ""


def note_text(note: Problem) -> str:
    """Format a note on one line with its location."""
    where = f"{note.file}:{note.line}:{note.column}: "
    return where + "note: " + str(note).removeprefix(where)


def _summary(checked: Iterable[CheckedBundle], *, strict: bool) -> str:
    listed = list(checked)
    bad = sum(not one.ok(strict=strict) for one in listed)
    problems = sum(len(one.problems) + bool(one.missing) for one in listed)
    notes = sum(len(one.notes) for one in listed)
    found = [plural(problems, "problem")] if problems else []
    found += [plural(notes, "note") + (" (which count: --strict)" if strict else "")] if notes else []
    verdict = f"{bad} of {len(listed)} rejected" if bad else f"{len(listed)} valid"
    return f"{verdict}: {', '.join(found)}" if found else verdict


def _as_json(checked: Iterable[CheckedBundle], *, strict: bool) -> dict[str, object]:
    files: list[dict[str, object]] = []
    for one in checked:
        shown: dict[str, object] = {"name": one.name, "ok": one.ok(strict=strict)}
        shown["problems"] = [asdict(problem) for problem in one.problems]
        shown["notes"] = [asdict(note) for note in one.notes]
        if one.missing:
            shown["error"] = one.missing
        if one.loaded is not None:
            shown |= {"bundle_version": one.loaded.bundle.bundle_version, "digest": one.loaded.digest}
        files.append(shown)
    return {"ok": all(bool(shown["ok"]) for shown in files), "files": files}
