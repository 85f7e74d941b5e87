"""`breakloop hook claude-code`: the command that Claude Code runs for each hook event. Without options, as `breakloop
init` writes it into the settings, it does not come here (`__main__`).
"""

from __future__ import annotations

from typing import Final

import click

from breakloop.integrations import claude_code
from breakloop.integrations.claude_code import HookOptions
from breakloop.sdk.context import configured_url

_SENSITIVITIES: Final = ("relaxed", "normal", "strict")


@click.group(name="hook")
def command() -> None:
    """Run as a hook of an agent. Add `breakloop hook claude-code` to its settings, or let `breakloop init --for
    claude-code` do it.
    """


@command.command(name="claude-code")
@click.option(
    "--url", default="", help="URL of a gateway that decides.  [BREAKLOOP_URL; without one, the hook decides]"
)
@click.option("--agent", default=HookOptions().agent, show_default=True, help="Name of the agent, for the gateway.")
@click.option(
    "--sensitivity",
    type=click.Choice(_SENSITIVITIES),
    default=HookOptions().sensitivity,
    show_default=True,
    help="Sensitivity of detection without a gateway.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(0),
    default=claude_code.STOP_AFTER,
    show_default=True,
    help="Number of consecutive blocks that end the run; 0: never.",
)
@click.option("--shadow", is_flag=True, help="Change nothing; report what would have been done.")
def claude(url: str, *, agent: str, sensitivity: str, stop_after: int, shadow: bool) -> None:
    """Handle one hook event of Claude Code, read as JSON from standard input."""
    claude_code.handle(HookOptions(url or configured_url(), agent, sensitivity, stop_after, shadow))
