"""`breakloop version`."""

from __future__ import annotations

import json
import platform

import click

from breakloop._version import __version__


@click.command(name="version", help="Print the version.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the versions of Python and the system.")
def command(*, as_json: bool) -> None:
    """Print the version."""
    if as_json:
        system = f"{platform.system()} {platform.machine()}"
        click.echo(json.dumps({"version": __version__, "python": platform.python_version(), "system": system}))
    else:
        click.echo(f"breakloop {__version__}")
