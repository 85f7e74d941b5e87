"""`breakloop serve`: load the settings, print a summary, and run `app.runtime` or, with several workers, the
supervisor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from breakloop._version import __version__
from breakloop.app.workers.control import LOOPS_BUNDLE, LOOPS_OFF, NO_LOOPS, StartupSummary, startup_summary
from breakloop.config.loader import LoadedSettings, load_settings
from breakloop.config.settings import Settings
from breakloop.errors import BundleError, FleetError, SettingsError
from breakloop.model.upstream import upstreams

if TYPE_CHECKING:
    from breakloop.app.runtime import Runtime


F = TypeVar("F", bound=Callable[..., Any])

_BELOW = " " * 12
TOKEN_FILE = "admin-token.sha256"  # The same as in admin.auth, whose import takes longer than `--help`.
_UPSTREAM = "Where the proxy sends requests; the first is the default. Repeatable.  [openai=https://api.openai.com]"
_MODE = "What to serve: the proxy, the decision service, or both.  [all]"
_LEVEL = "Minimum log level.  [info]"
_FORMAT = "auto: text on a terminal, else JSON lines.  [auto]"


class PortOrCount(click.IntRange):
    """An integer range that error messages call "whole number"."""

    name = "whole number"


def settings_options(function: F) -> F:
    """Add the options of settings. Every command that reads settings takes the same ones."""
    for option in reversed(
        (
            click.option("--host", help="Address to listen on.  [127.0.0.1]"),
            click.option(
                "--port", type=PortOrCount(0, 65535), metavar="PORT", help="Traffic port; 0 picks a free one.  [8787]"
            ),
            click.option(
                "--admin-port",
                type=PortOrCount(0, 65535),
                metavar="PORT",
                help="Port of the admin API, dashboard and metrics; 0 turns it off.",
            ),
            click.option("--upstream", multiple=True, metavar="NAME=URL", help=_UPSTREAM),
            click.option("--policy", metavar="PATH|URL", help="Policy bundle: a file, a directory, a URL, or redis."),
            click.option(
                "--state",
                metavar="URL",
                help="Where counters are stored: memory://, or the URL of a Redis.  [memory://]",
            ),
            click.option("--data-dir", metavar="DIR", help="Directory for the secret and the last valid bundle."),
            click.option(
                "--workers",
                type=PortOrCount(1),
                metavar="N",
                help="Number of serving processes; more than one needs a Redis (--state).  [1]",
            ),
            click.option("--config", metavar="PATH", help="Settings file.  [./breakloop.yaml, if it exists]"),
            click.option("--mode", type=click.Choice(["all", "proxy", "decision"]), help=_MODE),
            click.option("--strict", is_flag=True, default=None, help="Exit if there is no valid bundle at start."),
            click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help=_LEVEL),
            click.option("--log-format", type=click.Choice(["auto", "json", "text"]), help=_FORMAT),
        )
    ):
        function = option(function)
    return function


@click.command(
    name="serve",
    help="Run the proxy and decision service. SIGTERM or Ctrl-C stops it, SIGHUP reloads the "
    "bundle. Log lines go to standard error.",
    epilog="Exit code 0: stopped by a signal; 1: could not start, or stopped by a second signal.",
)
@settings_options
def command(**flags: object) -> int:
    try:
        loaded = load_settings(flags)
    except SettingsError as error:
        return failed(error)
    for warning in loaded.warnings:
        click.echo(f"breakloop: warning: {warning}", err=True)
    return start(loaded)


def start(loaded: LoadedSettings) -> int:
    # Imported here because it is half of the start-up time and `--help` does not need it.
    from breakloop.observe.log import Logging  # noqa: PLC0415

    settings = loaded.settings
    logging = Logging(sys.stderr, settings.log_level, settings.log_format)
    try:
        if settings.workers > 1:
            from breakloop.app.workers import supervisor as serving  # noqa: PLC0415

            return serving.serve(settings, lambda seen: say(settings, seen), logging)
        from breakloop.app.runtime import serve  # noqa: PLC0415

        return serve(settings, announce, logging)
    except (SettingsError, BundleError, FleetError) as error:
        return failed(error)


def failed(error: Exception) -> int:
    """Print an error, one line per problem, and return the exit code."""
    for line in str(error).splitlines():
        click.echo(f"breakloop: {line}", err=True)
    return 1


def announce(runtime: Runtime) -> None:
    seen = startup_summary(runtime.source, runtime.engine.bundle, runtime.url)
    admin = runtime.operations
    if admin is not None:
        seen = replace(seen, admin_url=admin.admin_url, admin_token=admin.new_token)
    say(runtime.settings, seen)


def say(settings: Settings, seen: StartupSummary) -> None:
    """Print the summary, then the line that scripts wait for; without a valid bundle, that it is not ready yet."""
    for line in summary(settings, seen):
        click.echo(line)
    if seen.origin or not seen.source:
        click.echo(f"breakloop ready on {seen.url}")
    else:
        click.echo(f"breakloop listening on {seen.url}, not ready: requests get 503 until the policy is valid")
    sys.stdout.flush()


def summary(settings: Settings, seen: StartupSummary) -> list[str]:
    mode = settings.mode
    lines = [f"breakloop {__version__}", f"  policy    {_policy(seen)}", f"  loops     {_loops(settings, seen)}"]
    if mode != "decision":
        lines += _proxy(settings, seen)
    if mode != "proxy":
        lines.append(f"  ask       {seen.url}/v1/decision (nginx: /v1/decision/nginx)")
    if settings.envoy_grpc_port:
        lines.append(f"{_BELOW}{settings.host}:{settings.envoy_grpc_port} (Envoy, gRPC)")
    if seen.workers > 1:
        lines.append(f"  workers   {seen.workers}")
    if seen.admin_url:
        lines.append(f"  watch     {_reached(seen.admin_url)} (dashboard, API, /metrics)")
    if seen.admin_token:
        lines.append(f"{_BELOW}token: {seen.admin_token} (shown only once; BREAKLOOP_ADMIN_TOKEN sets one)")
    elif seen.admin_url and not settings.admin_token.get_secret_value():
        lines.append(f"{_BELOW}token: shown at the first start. If you lost it, delete this file and restart")
        lines.append(_BELOW + str(Path(settings.data_dir, TOKEN_FILE)))
    lines.append("  check     breakloop doctor: every setting, and unsafe ones")
    return lines


def _proxy(settings: Settings, seen: StartupSummary) -> list[str]:
    """Return the upstreams and the lines that point a client at this proxy."""
    known = upstreams(settings.upstream)
    shown = [f"{one.name} {one.url}{' (default)' if one is known[0] else ''}" for one in known]
    url = _reached(seen.url)
    return [
        f"  upstream  {shown[0]}",
        *(_BELOW + line for line in shown[1:]),
        f"  use       export OPENAI_BASE_URL={url}/v1",
        f"{_BELOW}export ANTHROPIC_BASE_URL={url}",
    ]


def _reached(url: str) -> str:
    """Return the address by which this machine reaches a server that listens on all interfaces."""
    return url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")


def _policy(seen: StartupSummary) -> str:
    if not seen.source:
        return "none: built-in loop protection only (`breakloop init` writes one)"
    if not seen.origin:
        return f"NO VALID BUNDLE, every request gets 503:\n{_BELOW}{seen.problem}"
    text = f"{seen.source}, version {seen.version}, {seen.policies} {'policy' if seen.policies == 1 else 'policies'}"
    return text if not seen.problem else f"{text}, from the {seen.origin}:\n{_BELOW}{seen.problem}"


def _loops(settings: Settings, seen: StartupSummary) -> str:
    if seen.loops == NO_LOOPS:
        return "-"
    if seen.loops == LOOPS_OFF:
        return "built-in protection is OFF; policies with loop_detection still apply"
    guard = settings.loop_guard
    said = f"LLM calls: repeated steps; the same end {guard.max_hits + 1} times in {guard.window_seconds} s"
    if seen.loops == LOOPS_BUNDLE:
        said = "set by `defaults.loop_detection` of the bundle"
    if not seen.own_loops:
        return said
    whose = "1 policy uses its" if seen.own_loops == 1 else f"{seen.own_loops} policies use their"
    return f"{said}\n{_BELOW}{whose} own loop_detection instead"
