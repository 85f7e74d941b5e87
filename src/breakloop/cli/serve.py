"""`breakloop serve`: reads the settings, says what it protects, and hands over to `runtime`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from breakloop import __version__
from breakloop.errors import BundleError, SettingsError
from breakloop.model.upstream import upstreams
from breakloop.settings import Loaded, load_settings

if TYPE_CHECKING:
    from breakloop.runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])

_BELOW = " " * 12
_LATER = "not used in this version"
_UPSTREAM = "Where the proxy sends requests; the first is the default. Repeatable.  [openai=https://api.openai.com]"
_MODE = "Which doors open: the proxy, the decision service, or both.  [all]"
_LEVEL = "Least level logged.  [info]"
_FORMAT = "auto: text on a terminal, else JSON lines.  [auto]"


class Number(click.IntRange):
    """A whole number in a range, called so in messages."""

    name = "whole number"


def settings_options(function: F) -> F:
    """Add the flags that set something, the same ones to every command that reads settings."""
    for option in reversed(
        (
            click.option("--host", help="Address to listen on.  [127.0.0.1]"),
            click.option(
                "--port", type=Number(0, 65535), metavar="PORT", help="Port of the traffic; 0 picks one.  [8787]"
            ),
            click.option(
                "--admin-port", type=Number(0, 65535), metavar="PORT", help=f"Port of the admin plane; {_LATER}."
            ),
            click.option("--upstream", multiple=True, metavar="NAME=URL", help=_UPSTREAM),
            click.option("--policy", metavar="PATH", help="Policy bundle: a file or a directory."),
            click.option("--state", metavar="URL", help="Where counters live: memory:// only.  [memory://]"),
            click.option("--data-dir", metavar="DIR", help="Where the secret and the last good bundle are kept."),
            click.option("--workers", type=Number(1), metavar="N", help="Processes: 1 only.  [1]"),
            click.option("--config", metavar="PATH", help="Settings file.  [./breakloop.yaml, if it is there]"),
            click.option("--mode", type=click.Choice(["all", "proxy", "decision"]), help=_MODE),
            click.option("--strict", is_flag=True, default=None, help="Exit when there is no valid bundle at start."),
            click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help=_LEVEL),
            click.option("--log-format", type=click.Choice(["auto", "json", "text"]), help=_FORMAT),
        )
    ):
        function = option(function)
    return function


@click.command(
    name="serve",
    help="Run the proxy and decision service until it is told to stop: SIGTERM or Ctrl-C ends it, SIGHUP reads the "
    "bundle again. Log lines go to standard error.",
    epilog="Exit code 0: it was told to stop; 1: it could not start, or was told twice.",
)
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
    mode = runtime.settings.mode
    lines = [f"breakloop {__version__}", f"  policy    {_policy(runtime)}", f"  loops     {_loops(runtime)}"]
    if mode != "decision":
        lines += _proxy(runtime)
    if mode != "proxy":
        lines.append(f"  ask       {runtime.url}/v1/decision (nginx: /v1/decision/nginx)")
    lines.append("  check     breakloop doctor: every setting, and what is unsafe")
    return lines


def _proxy(runtime: Runtime) -> list[str]:
    """Where requests go, and the two lines that send an agent's through here."""
    known = upstreams(runtime.settings.upstream)
    shown = [f"{one.name} {one.url}{' (default)' if one is known[0] else ''}" for one in known]
    url = runtime.url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")  # nobody connects to "all"
    return [
        f"  upstream  {shown[0]}",
        *(_BELOW + line for line in shown[1:]),
        f"  use       export OPENAI_BASE_URL={url}/v1",
        f"{_BELOW}export ANTHROPIC_BASE_URL={url}",
    ]


def _policy(runtime: Runtime) -> str:
    source = runtime.source
    if source is None:
        return "none: built-in loop protection only (`breakloop init` writes one)"
    if source.current is None:
        return f"NO VALID BUNDLE, every request is answered 503:\n{_BELOW}{source.problems[0]}"
    bundle = source.current.bundle
    count = len(bundle.policies)
    text = f"{source.path}, version {bundle.bundle_version}, {count} {'policy' if count == 1 else 'policies'}"
    return text if not source.problems else f"{text}, from the {source.origin}:\n{_BELOW}{source.problems[0]}"


def _loops(runtime: Runtime) -> str:
    bundle = runtime.engine.bundle
    if bundle is None:
        return "-"
    guard = runtime.settings.loop_guard
    if not bundle.default_loops:
        return "built-in protection is OFF; policies with loop_detection still look"
    if bundle.default_loops[0].terms.policy != "builtin":
        return "as `defaults.loop_detection` of the bundle says"
    return (
        f"LLM calls alike: {guard.max_hits} pass in {guard.window_seconds} s, "
        f"then {guard.cooldown_seconds} s blocked and longer"
    )
