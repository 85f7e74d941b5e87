"""`breakloop serve`: reads the settings, says what it protects, and hands over to `runtime`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from breakloop import __version__
from breakloop.errors import BundleError, SettingsError
from breakloop.settings import Loaded, load_settings

if TYPE_CHECKING:
    from breakloop.runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])


def settings_options(function: F) -> F:
    """Add the flags that set something, the same ones to every command that reads settings."""
    for option in reversed(
        (
            click.option("--host", help="Address to listen on.  [127.0.0.1]"),
            click.option("--port", type=click.IntRange(0, 65535), help="Port of the traffic; 0 picks one.  [8787]"),
            click.option(
                "--admin-port", type=click.IntRange(0, 65535), help="Port of the admin plane; 0 is off.  [8788]"
            ),
            click.option("--upstream", multiple=True, metavar="NAME=URL", help="An upstream; repeatable."),
            click.option("--policy", metavar="PATH", help="Policy bundle: a file or a directory."),
            click.option("--state", metavar="URL", help="Where state lives.  [memory://]"),
            click.option("--data-dir", metavar="DIR", help="Where the secret and the last good bundle are kept."),
            click.option("--workers", type=click.IntRange(1), help="Processes.  [1]"),
            click.option("--config", metavar="PATH", help="Settings file.  [./breakloop.yaml, if it is there]"),
            click.option("--mode", type=click.Choice(["all", "proxy", "decision"]), help="Which doors open.  [all]"),
            click.option("--strict", is_flag=True, default=None, help="Exit when there is no valid bundle at start."),
            click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[info]"),
            click.option("--log-format", type=click.Choice(["auto", "json", "text"]), help="[auto]"),
        )
    ):
        function = option(function)
    return function


@click.command(name="serve", help="Run the gateway.")
@settings_options
def command(**flags: object) -> int:
    """Run until a signal comes."""
    try:
        loaded = load_settings(flags)
    except SettingsError as error:
        return failed(error)
    for warning in loaded.warnings:
        click.echo(f"breakloop: warning: {warning}", err=True)
    return start(loaded)


def start(loaded: Loaded) -> int:
    """Run with these settings; returns the exit code."""
    # Imported late: half of the start-up time, and `--help` needs none of it.
    from breakloop.observe.log import Logging  # noqa: PLC0415
    from breakloop.runtime import serve  # noqa: PLC0415

    settings = loaded.settings
    try:
        return serve(settings, announce, Logging(sys.stderr, settings.log_level, settings.log_format))
    except (SettingsError, BundleError) as error:
        return failed(error)


def failed(error: Exception) -> int:
    """Print what is wrong, a line a problem, and return the exit code for it."""
    for line in str(error).splitlines():
        click.echo(f"breakloop: {line}", err=True)
    return 1


def announce(runtime: Runtime) -> None:
    """Say what is protected and where, then the line that others wait for."""
    for line in summary(runtime):
        click.echo(line)
    click.echo(f"breakloop ready on {runtime.url}")
    sys.stdout.flush()


def summary(runtime: Runtime) -> list[str]:
    """Return a few lines about a process that has just started."""
    return [
        f"breakloop {__version__}",
        f"  policy    {_policy(runtime)}",
        f"  loops     {_loops(runtime)}",
        f"  ask       {runtime.url}/v1/decision        (nginx: auth_request to /v1/decision/nginx)",
        "  check     breakloop doctor                  (every setting, where it came from, what is unsafe)",
    ]


def _policy(runtime: Runtime) -> str:
    source = runtime.source
    if source is None:
        return "none: only the built-in loop protection (write one with `breakloop init`)"
    if source.current is None:
        first = source.problems[0]
        return f"NO VALID BUNDLE, every request is answered 503: {first}"
    bundle = source.current.bundle
    count = len(bundle.policies)
    text = f"{source.path}, version {bundle.bundle_version}, {count} {'policy' if count == 1 else 'policies'}"
    return text if not source.problems else f"{text}, from the {source.origin}: {source.problems[0]}"


def _loops(runtime: Runtime) -> str:
    bundle = runtime.engine.bundle
    if bundle is None:
        return "-"
    guard = runtime.settings.loop_guard
    if not bundle.default_loops:
        return "built-in protection is OFF; only policies with their own loop_detection look for loops"
    if bundle.default_loops[0].terms.policy != "builtin":
        return "as `defaults.loop_detection` of the bundle says"
    return (
        f"an LLM call repeated more than {guard.max_hits} times in {guard.window_seconds} s "
        f"is blocked for {guard.cooldown_seconds} s and longer"
    )
