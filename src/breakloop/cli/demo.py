"""`breakloop demo`: see a loop being stopped (SPEC X-4, first form). No keys, no network: two simulated agents ask the
real decision service on this machine. Verdicts are the engine's; money is a stated estimate."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from breakloop.cli.demo_run import HEALTHY, LOOPING, Answered, Totals, traffic
from breakloop.cli.output import console, fail, json_option, print_json
from breakloop.cli.validate import counted
from breakloop.gateway.server import ListenError

SECONDS = 110  # long enough for three detections: 5 pass, 30 s; 5 pass, 60 s; 5 pass, 120 s
SPEED = 8.0
PRICE_USD = 0.05
_ROWS = 8
_WHAT = {LOOPING: "repeats the same question", HEALTHY: "asks something new each time"}
_REPORT_EVERY_S = 30


@dataclass(slots=True)
class Story:
    """Everything shown: totals and the last requests of each agent."""

    price_usd: float
    at_s: int = 0
    seconds: int = 0  # how many were seen whole
    totals: dict[str, Totals] = field(default_factory=lambda: {LOOPING: Totals(), HEALTHY: Totals()})
    last: dict[str, deque[Answered]] = field(
        default_factory=lambda: {LOOPING: deque(maxlen=_ROWS), HEALTHY: deque(maxlen=_ROWS)}
    )

    def take(self, answered: Answered) -> bool:
        """Take an answer in; tell whether it is a new detection."""
        self.at_s = answered.at_s
        self.last[answered.agent].append(answered)
        return self.totals[answered.agent].count(answered)

    def usd(self, calls: int) -> str:
        """Return what so many calls cost at the assumed price."""
        return f"${calls * self.price_usd:,.2f}"


@click.command(name="demo")
@click.option("--plain", is_flag=True, help="Lines without colours, as fast as possible; the default for pipes.")
@click.option("--speed", type=click.FloatRange(0.1, 10_000), default=SPEED, show_default=True, help="Times real time.")
@click.option("--seconds", type=click.IntRange(1, 3600), default=SECONDS, show_default=True, help="Simulated seconds.")
@click.option("--price", type=click.FloatRange(0), default=PRICE_USD, show_default=True, help="Assumed USD per call.")
@json_option
def command(*, plain: bool, speed: float, seconds: int, price: float, as_json: bool) -> None:
    """Watch a looping agent being stopped while a healthy one works on.

    Starts the real decision service on this machine and sends it the requests of two simulated agents, with the clock
    simulated too. Needs no keys and no network; ends by itself.
    """
    story = Story(price)
    live = sys.stdout.isatty() and not plain and not as_json
    try:
        if as_json:
            asyncio.run(_run(story, seconds, lambda _answered, _fresh: None))
            print_json(_as_json(story))
        elif live:
            _run_live(story, seconds, speed)
        else:
            _run_plain(story, seconds)
    except ListenError as error:
        fail(str(error), as_json=as_json)


Tell = Callable[[Answered, bool], None]


async def _run(story: Story, seconds: int, tell: Tell, pause_s: float = 0.0) -> None:
    async for answers in traffic(seconds):
        for answered in answers:
            tell(answered, story.take(answered))
        story.seconds += 1
        if pause_s:
            await asyncio.sleep(pause_s)


# -- lines ---------------------------------------------------------------------------------------------------------


def _run_plain(story: Story, seconds: int) -> None:
    click.echo("breakloop demo: two simulated agents, the real decision service, a simulated clock")
    for agent, what in _WHAT.items():
        click.echo(f"  {agent}: {what}, once a second")
    click.echo(f"  money is an estimate: {story.usd(1)} a call is assumed\n")
    lines = _Lines(story)
    asyncio.run(_run(story, seconds, lines))
    lines.end()
    for line in summary(story):
        click.echo(line.plain)


class _Lines:
    """Prints what changes, not every request."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._blocked_in_a_row = 0
        self._healthy = 0

    def __call__(self, answered: Answered, fresh: bool) -> None:  # noqa: FBT001 - called by position
        if answered.agent == HEALTHY:
            self._healthy += 1
            if self._healthy % _REPORT_EVERY_S == 0:
                passed = self._story.totals[HEALTHY].passed
                self._say(answered.at_s, HEALTHY, f"{passed} of {self._healthy} requests allowed")
        elif answered.allowed:
            if self._blocked_in_a_row:
                self._say(answered.at_s, LOOPING, f"{self._blocked_in_a_row} more blocked; now the cooldown is over")
                self._blocked_in_a_row = 0
            self._say(answered.at_s, LOOPING, f"request {answered.number} allowed")
        elif fresh:
            said = f"{answered.status} {answered.reason}, Retry-After: {answered.retry_after_s}"
            self._say(answered.at_s, LOOPING, f"request {answered.number} BLOCKED: {said}")
            if self._story.totals[LOOPING].blocked == 1:
                click.echo(f'                  "{answered.message.partition(".")[0]}."')
        else:
            self._blocked_in_a_row += 1

    def end(self) -> None:
        """Tell what has not been told yet."""
        if self._blocked_in_a_row:
            self._say(self._story.at_s, LOOPING, f"{self._blocked_in_a_row} more blocked; the cooldown goes on")
        click.echo("")

    def _say(self, at_s: int, agent: str, text: str) -> None:
        click.echo(f"  t={at_s:>3}s  {agent:<7}  {text}")


# -- the screen ----------------------------------------------------------------------------------------------------


def _run_live(story: Story, seconds: int, speed: float) -> None:
    out = console()
    with Live(screen(story), console=out, auto_refresh=False) as shown:

        def tell(answered: Answered, _fresh: bool) -> None:  # noqa: FBT001 - called by position
            if answered.agent == HEALTHY:  # the last of its second
                shown.update(screen(story), refresh=True)

        with suppress(KeyboardInterrupt):  # seen enough: what there is to learn comes all the same
            asyncio.run(_run(story, seconds, tell, 1 / speed))
    out.print()
    for line in summary(story):
        out.print(line)


def screen(story: Story) -> RenderableType:
    """Return the whole picture at one moment."""
    both = Table.grid(expand=True, padding=(0, 1, 0, 0))
    both.add_column(ratio=1)
    both.add_column(ratio=1)
    both.add_row(_panel(story, LOOPING), _panel(story, HEALTHY))
    head = Text.assemble(
        ("breakloop demo", "bold"),
        f"  simulated time {story.at_s + 1} s",
        (f"  {story.usd(1)} a call is assumed", "dim"),
    )
    # The last line is short: the ^C that a terminal writes behind it must not wrap, which would shift the picture.
    return Group(head, both, Text("Ctrl-C ends it", "dim"))


def _panel(story: Story, agent: str) -> Panel:
    totals = story.totals[agent]
    rows = Table.grid(expand=True, padding=(0, 1))
    rows.add_column(justify="right", style="dim")
    rows.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for answered in story.last[agent]:
        rows.add_row(f"{answered.at_s} s", _said(answered))
    for _ in range(_ROWS - len(story.last[agent])):
        rows.add_row("", "")
    spent = Text(f"passed {totals.passed}, spent {story.usd(totals.passed)}")
    style = "bold green" if totals.blocked else "dim"
    saved = Text(f"blocked {totals.blocked}, saved {story.usd(totals.blocked)}", style)
    what = Text(_WHAT[agent], "italic", no_wrap=True, overflow="ellipsis")
    border = "red" if story.last[agent] and not story.last[agent][-1].allowed else "green"
    return Panel(Group(what, Text(), rows, Text(), spent, saved), title=f"agent {agent}", border_style=border)


def _said(answered: Answered) -> Text:
    if answered.allowed:
        return Text("200 allowed", "green")
    return Text(f"{answered.status} {answered.reason}, wait {answered.retry_after_s} s", "bold red")


# -- the end -------------------------------------------------------------------------------------------------------


def summary(story: Story) -> list[Text]:
    """Return what there is to learn, and what to do next."""
    looping, healthy = story.totals[LOOPING], story.totals[HEALTHY]
    cooldowns = ", ".join(f"{wait_s} s" for wait_s in looping.cooldowns_s)
    per_hour = story.usd(3600)
    lines = [
        Text(f"After {counted(story.seconds, 'simulated second')}:", "bold"),
        Text(f"  looping: {looping.passed} requests passed, {looping.blocked} blocked"),
        Text(f"  healthy: {healthy.passed} requests passed, {healthy.blocked} blocked"),
    ]
    if cooldowns:
        lines.append(Text(f"  {counted(len(looping.cooldowns_s), 'detection')}, the cooldown grows: {cooldowns}"))
    saved = (story.usd(looping.blocked), "bold green")
    lines += [
        Text.assemble("  saved: ", saved, f" (an estimate: {looping.blocked} calls x the assumed {story.usd(1)})"),
        Text(f"  with nobody stopping it, this loop costs {per_hour} an hour at that price"),
        Text("Next:", "bold"),
        Text("  breakloop init     write a policy, its tests and settings into this directory"),
        Text("  breakloop serve    run the decision service"),
    ]
    return lines


def _as_json(story: Story) -> dict[str, object]:
    def shown(agent: str) -> dict[str, object]:
        totals = story.totals[agent]
        return {"passed": totals.passed, "blocked": totals.blocked, "cooldowns_s": totals.cooldowns_s}

    saved = round(story.totals[LOOPING].blocked * story.price_usd, 6)
    money = {"assumed_usd_per_call": story.price_usd, "saved_usd_estimate": saved}
    return {"simulated_seconds": story.seconds, LOOPING: shown(LOOPING), HEALTHY: shown(HEALTHY), **money}
