"""Writes the HTML report of `scan` and `replay` to the file that was named; what stands in it is `html_report`'s."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from breakloop.cli.output import fail
from breakloop.replay.html_report import Heading, page
from breakloop.replay.timeline import Timeline


def write_html(name: str, heading: Heading, timelines: Iterable[Timeline]) -> None:
    """Write the report and say so on standard error; ends the command with 1 when the file cannot be written."""
    try:
        Path(name).write_text(page(heading, timelines), encoding="utf-8", errors="replace")
    except OSError as error:
        fail(f"{name}: cannot be written: {error.strerror or error}")
    click.echo(f"report: {name}", err=True)
