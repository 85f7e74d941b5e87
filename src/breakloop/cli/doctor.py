"""`breakloop doctor`: every setting with its value and origin, and what is unsafe or broken (SPEC T-1).
Exit code 1 when there is a problem; warnings and notes leave it at 0."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from breakloop._version import __version__
from breakloop.cli.doctor_checks import Diagnosis, examine
from breakloop.cli.doctor_findings import Finding
from breakloop.cli.serve import settings_options
from breakloop.clock import SystemClock
from breakloop.errors import SettingsError
from breakloop.settings import Loaded, effective, load_settings

_MARKS = {"problem": ("x", "red"), "warning": ("!", "yellow"), "note": ("-", "cyan")}


@click.command(name="doctor", help="Show every setting and where it came from; warn of unsafe ones.")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool, **flags: object) -> int:
    """Examine the settings; 1 when something is wrong."""
    loaded: Loaded | None = None
    try:
        loaded = load_settings(flags)
    except SettingsError as error:
        diagnosis = Diagnosis([Finding("problem", "settings", line) for line in str(error).splitlines()], None)
    else:
        diagnosis = examine(loaded.settings, SystemClock())
        diagnosis.findings[:0] = [Finding("warning", "environment", warning) for warning in loaded.warnings]
    if as_json:
        click.echo(json.dumps(_content(loaded, diagnosis), indent=2))
    else:
        _print(loaded, diagnosis)
    return 1 if _problems(diagnosis) else 0


def _problems(diagnosis: Diagnosis) -> int:
    return sum(finding.level == "problem" for finding in diagnosis.findings)


def _content(loaded: Loaded | None, diagnosis: Diagnosis) -> dict[str, object]:
    bundle = diagnosis.bundle
    return {
        "version": __version__,
        "ok": not _problems(diagnosis),
        "settings_file": loaded.file if loaded else "",
        "settings": [asdict(one) for one in effective(loaded)] if loaded else [],
        "bundle": {"version": bundle.bundle.bundle_version, "digest": bundle.digest} if bundle else None,
        "findings": [asdict(finding) for finding in diagnosis.findings],
    }


def _print(loaded: Loaded | None, diagnosis: Diagnosis) -> None:
    click.echo(f"breakloop {__version__}\n")
    if loaded is not None:
        _print_settings(loaded)
    if diagnosis.bundle is not None:
        bundle = diagnosis.bundle
        count = len(bundle.bundle.policies)
        click.echo(
            f"Bundle: version {bundle.bundle.bundle_version}, {count} {'policy' if count == 1 else 'policies'}, "
            f"digest {bundle.digest[:12]}\n"
        )
    for level, (mark, colour) in _MARKS.items():
        for finding in diagnosis.findings:
            if finding.level == level:
                click.echo(f"{click.style(mark + ' ' + level, fg=colour)} {finding.about}: {finding.message}")
    click.echo(("\n" if diagnosis.findings else "") + _verdict(diagnosis))


def _print_settings(loaded: Loaded) -> None:
    rows = effective(loaded)
    click.echo(click.style(f"Settings{f' (file: {loaded.file})' if loaded.file else ''}", bold=True))
    name_width = max(len(row.name) for row in rows)
    value_width = min(40, max(len(row.value) for row in rows))
    for row in rows:
        line = f"  {row.name:<{name_width}}  {row.value:<{value_width}}  {row.origin}"
        click.echo(line if row.origin != "default" else click.style(line, dim=True))
    click.echo()


def _verdict(diagnosis: Diagnosis) -> str:
    problems = _problems(diagnosis)
    warnings = sum(finding.level == "warning" for finding in diagnosis.findings)
    if problems:
        return f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}."
    return f"No problems, {warnings} warning{'s' * (warnings != 1)}."
