"""`breakloop demo`: two agents talk through the real reverse proxy to a stand-in LLM. One of them loops."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress

import click
from rich.console import Console, RenderableType
from rich.live import Live

from breakloop.cli.demo_output import (
    LEAST_HEIGHT,
    LEAST_WIDTH,
    DemoPrice,
    DemoStory,
    LineOutput,
    ScreenShape,
    picture,
    plain_text,
    printed,
    story_json,
    summary,
)
from breakloop.cli.demo_run import TURN_S, DemoResponse, stage
from breakloop.cli.output import console, fail, json_option, print_json
from breakloop.gateway.server import ListenError

SECONDS = 130  # enough for three detections, with cooldowns of 30, 60 and 120 s
SPEED = 6.5
PRICE = (3.0, 15.0)  # in the order of what large models cost


@click.command(name="demo")
@click.option("--plain", is_flag=True, help="Lines without colours, as fast as possible; the default for pipes.")
@click.option(
    "--speed", type=click.FloatRange(0.1, 10_000), default=SPEED, show_default=True, help="Speed relative to real time."
)
@click.option("--seconds", type=click.IntRange(1, 3600), default=SECONDS, show_default=True, help="Simulated seconds.")
@click.option(
    "--price",
    type=click.FloatRange(0),
    nargs=2,
    metavar="IN OUT",
    default=PRICE,
    show_default=True,
    help="Assumed USD per million tokens, in and out.",
)
@json_option
def command(*, plain: bool, speed: float, seconds: int, price: tuple[float, float], as_json: bool) -> None:
    """Watch a looping agent being stopped while a healthy one works on.

    Starts a stand-in LLM and the real gateway on free ports of this machine, and two agents that use them; the clock is
    simulated. Needs no keys and no network; ends by itself.
    """
    story = DemoStory(DemoPrice(*price), seconds)
    try:
        if as_json:
            _run(story, lambda _: None)
            print_json(story_json(story))
        elif plain or not _can_show(terminal := console()):
            _run_plain(story)
        else:
            _run_live(story, terminal, speed)
    except ListenError as error:
        fail(f"the demo needs two ports of this machine: {error.strerror}", as_json=as_json)


def _can_show(terminal: Console) -> bool:
    """Return whether the output is a terminal that can show the live screen."""
    large = terminal.width >= LEAST_WIDTH and terminal.height >= LEAST_HEIGHT
    return sys.stdout.isatty() and not terminal.is_dumb_terminal and large


Tell = Callable[[list[tuple[DemoResponse, bool]]], None]  # a response, and whether it is a new detection


def _run(story: DemoStory, tell: Tell, pause_s: float = 0.0, begin: Callable[[], None] = lambda: None) -> None:
    """Run to the end or until Ctrl-C, then print the summary."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_play(story, tell, pause_s, begin))


async def _play(story: DemoStory, tell: Tell, pause_s: float, begin: Callable[[], None]) -> None:
    async with stage() as on:
        story.gateway_port, story.llm_port = on.gateway_port, on.llm_port
        begin()
        while on.at_s < story.wanted_s:
            told = [(answered, story.take(answered)) for answered in await on.turns()]
            story.seen_s, story.llm_requests = on.at_s, on.llm_requests
            tell(told)
            if pause_s:
                await asyncio.sleep(pause_s)


def _run_plain(story: DemoStory) -> None:
    lines = LineOutput(story)
    _run(story, lines.tell, begin=lines.begin)
    lines.end()
    for line in summary(story):
        click.echo(plain_text(line))


def _run_live(story: DemoStory, terminal: Console, speed: float) -> None:
    def drawn() -> RenderableType:
        return picture(story, ScreenShape.of(terminal.size), speed)

    with Live(drawn(), console=terminal, auto_refresh=False) as shown:
        _run(story, lambda _: shown.update(drawn(), refresh=True), TURN_S / speed)
    terminal.print()
    for line in summary(story):
        terminal.print(printed(line))
