"""`breakloop hook claude-code`: the command that Claude Code runs for each hook event.

It reads the event from standard input and writes the response to standard output. If it fails, it allows the call:
exit code 2, which would block it, is never used.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from breakloop.clock import Clock, SystemClock
from breakloop.integrations import claude_code
from breakloop.integrations.claude_code import HookBackend, HookEvent, HookSession, Json
from breakloop.model.decision import Decision
from breakloop.sdk.context import configured_url, data_dir, gateway_token, shared_secret
from breakloop.store.data_dir import DataDir

FOLDER: Final = "hooks"
_DELAY_MAX_S: Final = 5.0
_SENSITIVITIES: Final = ("relaxed", "normal", "strict")


class HookOptions(NamedTuple):
    url: str = ""
    agent: str = "claude-code"
    sensitivity: str = "normal"
    stop_after: int = claude_code.STOP_AFTER
    shadow: bool = False


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
    options = HookOptions(url or configured_url(), agent, sensitivity, stop_after, shadow)
    try:
        sent = json.loads(sys.stdin.buffer.read())
        answer = answered(sent, options, data_dir(), SystemClock())
    except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop an agent
        click.echo(f"breakloop: the hook failed; the call is allowed: {_why(error, options.url)}", err=True)
        return
    if answer:
        click.echo(json.dumps(answer))


def _why(error: Exception, url: str) -> str:
    """Describe a failure: the error and, if a gateway was asked, its address. Contents of the event are left out."""
    if not url:
        return type(error).__name__
    parts = urlsplit(url)
    why = import_module("breakloop.sdk.core").describe_fault(error)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}: {why}" if parts.netloc else why


def answered(sent: Mapping[str, Any], options: HookOptions, root: Path, clock: Clock) -> Json:
    """Return the response to an event; {} means no opinion."""
    event = claude_code.read(sent)
    folder = root / FOLDER
    if event.kind == claude_code.END:
        claude_code.delete_session(folder, event.session, clock.now())
        claude_code.delete_session(folder, event.tree, clock.now())
    if not event.session or not claude_code.is_counted(sent):
        return {}
    secret = shared_secret() or DataDir(root).kept_secret()
    backend = None if event.kind == claude_code.BEFORE else _backend(options, secret)
    if event.kind in (claude_code.STARTED, claude_code.STOPPED) or event.tool in claude_code.AGENT_TOOLS:
        answer = _answer_about_agents(event, folder, backend, clock.now())
        if answer or event.kind in (claude_code.STARTED, claude_code.STOPPED):
            return claude_code.shadow_answer(answer) if options.shadow else answer
    with claude_code.open_session(folder, event.owner, clock.now()) as session:
        answer, decision = _answer(event, session, backend, options, (secret, clock.now()))
    if options.shadow:
        return claude_code.shadow_answer(answer)
    if decision.delay_seconds:
        time.sleep(min(decision.delay_seconds, _DELAY_MAX_S))  # noqa: TID251 - a throttle; the agent waits for us
    return answer


def _answer(
    event: HookEvent,
    session: HookSession,
    backend: HookBackend | None,
    options: HookOptions,
    known: tuple[bytes, float],
) -> tuple[Json, Decision]:
    secret, now = known
    call = claude_code.call_digest((event.tool, event.arguments_text), secret)
    if backend is None:
        decision = session.before(call, now)
    elif event.kind in (claude_code.PROMPT, claude_code.COMPACT):
        if event.kind == claude_code.PROMPT:
            session.unblock()
        decision = backend.decide(session, event, now)
    else:
        decision = backend.decide(session, event, now)
        session.after(call, decision, now)
    return claude_code.answer_to(event.kind, decision, session.strikes, options.stop_after), decision


def _answer_about_agents(event: HookEvent, folder: Path, backend: HookBackend | None, now: float) -> Json:
    """Answer to the start and the end of a sub-agent. A start cannot be prevented, so if there are too many, the next
    call that would start one is denied. This ends no run: those at work go on.
    """
    decision = Decision()
    with claude_code.open_session(folder, event.tree, now) as tree:
        if backend is None:
            decision = tree.before(claude_code.AGENTS, now)
        elif event.kind == claude_code.STARTED:
            decision = backend.started(tree, event, now)
            tree.after(claude_code.AGENTS, decision, now)
        elif event.kind == claude_code.STOPPED:
            backend.stopped(tree, event, now)
            tree.unblock()
    return claude_code.answer_to(event.kind, decision, stop_after=0)


def _backend(options: HookOptions, secret: bytes) -> HookBackend:
    """Load one backend, and only when it is needed: `PreToolUse` needs neither."""
    if options.url:
        return claude_code.GatewayHookBackend(options.url, gateway_token(), options.agent)
    module = import_module("breakloop.integrations.claude_code_local")
    local: HookBackend = module.LocalHookBackend(secret, options.sensitivity)
    return local
