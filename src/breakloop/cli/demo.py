"""`breakloop demo`: two agents talk through the real reverse proxy to a stand-in LLM. One of them loops.

It prints lines, or a live screen with two panes, then a summary with counts and costs. Colours only repeat what the
words say, so that the output reads the same without them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final

import click
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from breakloop.cli.demo_run import HEALTHY, LOOPING, PACE_S, TURN_S, DemoResponse, rule, stage
from breakloop.cli.output import console, fail, json_option, print_json
from breakloop.formatting import plural
from breakloop.gateway.server import ListenError

WHAT: Final = {LOOPING: "reads a missing file again and again", HEALTHY: "reads one file after the other"}
WEEKEND_H: Final = 48
_KEPT: Final = 40
_MILLION: Final = 1_000_000
_AGENTS: Final = (LOOPING, HEALTHY)


@dataclass(frozen=True, slots=True)
class DemoPrice:
    """Assumed price in US dollars per million tokens."""

    input_usd: float
    output_usd: float

    def __str__(self) -> str:
        return f"${self.input_usd:g} in, ${self.output_usd:g} out per million tokens"

    def of(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / _MILLION


@dataclass(slots=True)
class DemoTotals:
    passed: int = 0
    blocked: int = 0
    failed: int = 0  # neither allowed nor denied: the demo itself failed
    finished: bool = False
    cooldowns_s: list[int] = field(default_factory=list)  # one per detection
    tokens_in: int = 0
    tokens_out: int = 0
    cooling: bool = False

    def count(self, answered: DemoResponse) -> bool:
        """Count a response. Returns whether it is a new detection, as opposed to another request during a cooldown."""
        self.passed += answered.passed
        self.blocked += answered.blocked
        self.failed += not (answered.passed or answered.blocked)
        self.tokens_in += answered.tokens_in
        self.tokens_out += answered.tokens_out
        self.finished = answered.finished
        fresh = answered.blocked and not self.cooling
        self.cooling = answered.blocked
        if fresh:
            self.cooldowns_s.append(answered.retry_after_s)
        return fresh


@dataclass(slots=True)
class DemoStory:
    """Everything that the demo shows."""

    price: DemoPrice
    wanted_s: int
    seen_s: int = 0
    gateway_port: int = 0
    llm_port: int = 0
    llm_requests: int = 0  # as counted by the stand-in LLM
    denial: DemoResponse | None = None  # the first one
    totals: dict[str, DemoTotals] = field(default_factory=lambda: {LOOPING: DemoTotals(), HEALTHY: DemoTotals()})
    last: dict[str, deque[DemoResponse]] = field(
        default_factory=lambda: {LOOPING: deque(maxlen=_KEPT), HEALTHY: deque(maxlen=_KEPT)}
    )

    def take(self, answered: DemoResponse) -> bool:
        """Count a response. Returns whether it is a new detection."""
        self.last[answered.agent].append(answered)
        if answered.blocked and self.denial is None:
            self.denial = answered
        return self.totals[answered.agent].count(answered)

    def spent_usd(self, agent: str) -> float:
        totals = self.totals[agent]
        return self.price.of(totals.tokens_in, totals.tokens_out)

    def call_usd(self, agent: str = LOOPING) -> float:
        """Return the average cost of an agent's allowed requests."""
        return self.spent_usd(agent) / max(self.totals[agent].passed, 1)

    def saved_usd(self, agent: str) -> float:
        """Return what the denied requests of an agent would have cost, at the average of its allowed ones."""
        return self.totals[agent].blocked * self.call_usd(agent)

    @property
    def hour_usd(self) -> float:
        """Return what the loop costs per hour if nothing stops it."""
        return self.call_usd() * 3600 / PACE_S[LOOPING]

    @property
    def weekend_usd(self) -> float:
        return self.hour_usd * WEEKEND_H


def usd(amount: float) -> str:
    """Format an amount; cents are shown below ten dollars."""
    return f"${amount:,.2f}" if amount < 10 else f"${amount:,.0f}"


def story_json(story: DemoStory) -> dict[str, object]:
    denial = story.denial
    return {
        "simulated_seconds": story.seen_s,
        **{agent: _totals_json(story, agent) for agent in _AGENTS},
        "llm_requests": story.llm_requests,
        "denial": denial and {"status": denial.status, "code": denial.code, "message": denial.message},
        "assumed_usd_per_million_tokens": {"input": story.price.input_usd, "output": story.price.output_usd},
        "saved_usd_estimate": round(story.saved_usd(LOOPING), 6),
        "loop_usd_per_hour_estimate": round(story.hour_usd, 2),
        "loop_usd_per_weekend_estimate": round(story.weekend_usd, 2),
    }


def _totals_json(story: DemoStory, agent: str) -> dict[str, object]:
    totals = asdict(story.totals[agent])
    del totals["cooling"]
    return {**totals, "spent_usd": round(story.spent_usd(agent), 6)}


_REPORT_EVERY = 10  # requests of the healthy agent


def introduction(story: DemoStory) -> list[str]:
    gateway, llm = f"127.0.0.1:{story.gateway_port}", f"127.0.0.1:{story.llm_port}"
    return [
        "breakloop demo: two agents, the real gateway, a stand-in LLM; nothing leaves this machine",
        f"  agents -> gateway {gateway} -> stand-in LLM {llm}",
        *(f"  {agent}: {what}, every {PACE_S[agent]} s" for agent, what in WHAT.items()),
        f"  the gateway's built-in rule: {rule()}",
        "  time is simulated; statuses and waiting times come from the gateway",
        f"  money is an estimate: {story.price} are assumed",
        "",
    ]


class LineOutput:
    """Prints changes, not every request."""

    def __init__(self, story: DemoStory) -> None:
        self._story = story
        self._blocked_in_a_row = 0

    def begin(self) -> None:
        click.echo("\n".join(introduction(self._story)))

    def tell(self, answers: list[tuple[DemoResponse, bool]]) -> None:
        for answered, fresh in answers:
            if answered.agent == HEALTHY:
                self._healthy(answered)
            elif fresh:
                self._say(answered, f"BLOCKED: {answered.reason}, Retry-After: {answered.retry_after_s}")
                if answered is self._story.denial:
                    click.echo(f'                       "{first_sentence(answered)}"')
            elif answered.blocked:
                self._blocked_in_a_row += 1
            else:
                self._catch_up(answered, "now the cooldown is over")
                self._say(answered, answered.outcome)

    def end(self) -> None:
        for answered in list(self._story.last[LOOPING])[-1:]:
            self._catch_up(answered, "the cooldown continues")
        click.echo("")

    def _healthy(self, answered: DemoResponse) -> None:
        totals = self._story.totals[HEALTHY]
        number = totals.passed + totals.blocked + totals.failed
        if answered.finished or number % _REPORT_EVERY == 0 or not answered.passed:
            self._say(answered, f"{answered.outcome} ({totals.passed} of {number} requests passed)")

    def _catch_up(self, answered: DemoResponse, why: str) -> None:
        if self._blocked_in_a_row:
            click.echo(f"  t={answered.at_s:>3}s  {LOOPING}       {self._blocked_in_a_row} more blocked; {why}")
            self._blocked_in_a_row = 0

    def _say(self, answered: DemoResponse, text: str) -> None:
        click.echo(f"  t={answered.at_s:>3}s  {answered.agent}  {answered.status}  {text}")


def first_sentence(answered: DemoResponse) -> str:
    return answered.message.partition(". ")[0] + "."


# -- the summary -----------------------------------------------------------------------------------------------------


def summary(story: DemoStory) -> list[str]:
    """Return the results and the next steps in the markup of rich."""
    looping, denial = story.totals[LOOPING], story.denial
    whole = "" if story.seen_s >= story.wanted_s else f" of {story.wanted_s}"
    spent, saved = usd(story.spent_usd(LOOPING)), usd(story.saved_usd(LOOPING))
    tokens = f"{looping.tokens_in:,} tokens in, {looping.tokens_out:,} out"
    per_call = f"{looping.blocked} blocked x ${story.call_usd():.3f}, the mean of the {looping.passed} that passed"
    alone = f"{usd(story.hour_usd)} an hour, {usd(story.weekend_usd)} a weekend ({WEEKEND_H} h)"
    lines = [
        f"[bold]After {story.seen_s}{whole} simulated seconds[/]",
        *(f"  {_fate(story, agent)}" for agent in _AGENTS),
        f"  the stand-in LLM itself counted {plural(story.llm_requests, 'request')}",
        "[bold]Money, estimated[/]",
        f"  price: {story.price}, no caching; assumed (--price)",
        f"  spent by the loop: {spent} for {tokens} (the LLM's usage)",
        f"  saved: about [bold green]{saved}[/] ({per_call})",
        f"  left alone, a call every {PACE_S[LOOPING]} s: {alone}",
    ]
    if denial is not None:
        lines += [
            "[bold]What the looping agent's SDK raises[/]",
            f"  [bold]openai.RateLimitError[/], status {denial.status}, code {denial.code}",
            f"  {escape(denial.message)}",
        ]
    return [
        *lines,
        "[bold]Next[/]",
        "  [bold]breakloop serve[/]    the same gateway, in front of OpenAI, Anthropic and Gemini",
        "  [bold]export OPENAI_BASE_URL=http://127.0.0.1:8787/v1[/]    where your agent runs",
        "  [bold]breakloop init[/]     a policy of your own, with tests",
    ]


def plain_text(line: str) -> str:
    return Text.from_markup(line, emoji=False).plain


def printed(line: str) -> RenderableType:
    """Return a line for the terminal; indented lines stay indented when they wrap."""
    text, indent = Text.from_markup(line.lstrip(), emoji=False), len(line) - len(line.lstrip())
    return Padding(text, (0, 0, 0, indent)) if indent else text


def _fate(story: DemoStory, agent: str) -> str:
    totals = story.totals[agent]
    said = f"{agent}: {plural(totals.passed, 'request')} passed, {totals.blocked} blocked"
    if totals.failed:
        said += f", {totals.failed} failed"
    if totals.cooldowns_s:
        said += f"; cooldowns of {', '.join(map(str, totals.cooldowns_s))} s"
    return said + "; finished its task" * totals.finished


LEAST_WIDTH: Final = 60
LEAST_HEIGHT: Final = 16
_SIDE_BY_SIDE: Final = 80
_TALL: Final = 24
_ALL_COLUMNS: Final = 56  # minimum inner width of a pane
_BORDER: Final = 4  # width of a pane's border
_MOST_ROWS: Final = 20
_MOST_WIDTH: Final = 120


@dataclass(frozen=True, slots=True)
class ScreenShape:
    """The size of a terminal and the layout that follows from it."""

    width: int
    height: int

    @classmethod
    def of(cls, size: ConsoleDimensions) -> ScreenShape:
        """Return the layout for a terminal. Very wide terminals are not filled, because long lines are hard to read."""
        return cls(min(size.width, _MOST_WIDTH), size.height)

    @property
    def side_by_side(self) -> bool:
        return self.width >= _SIDE_BY_SIDE

    @property
    def roomy(self) -> bool:
        return self.side_by_side and self.height >= _TALL

    @property
    def inside(self) -> int:
        return (self.width // 2 if self.side_by_side else self.width) - _BORDER

    @property
    def rows(self) -> int:
        """Return how many requests a pane can show. One row stays free, because a full screen would scroll."""
        if self.roomy:  # two lines above, four below; in the pane two of border, four of totals, and perhaps a heading
            rows = self.height - 1 - 2 - 4 - 6 - (self.inside >= _ALL_COLUMNS)
        else:  # one above, three below, two of totals and two of border in each pane
            panes = 1 if self.side_by_side else 2
            rows = (self.height - 1 - 1 - 3 - 4 * panes) // panes
        return max(1, min(_MOST_ROWS, rows))


def picture(story: DemoStory, shape: ScreenShape, speed: float) -> RenderableType:
    panes: RenderableType = Group(*(_pane(story, agent, shape) for agent in _AGENTS))
    if shape.side_by_side:
        panes = Table.grid(expand=True)
        panes.width = shape.width
        for _ in _AGENTS:
            panes.add_column(ratio=1)
        panes.add_row(*(_pane(story, agent, shape) for agent in _AGENTS))
    return Group(*_header_lines(story, shape, speed), panes, *_foot(story, shape))


def _header_lines(story: DemoStory, shape: ScreenShape, speed: float) -> list[Text]:
    pace = f", {speed:g} times real time" if shape.side_by_side else ""
    time = f"   {story.seen_s} of {story.wanted_s} s, simulated{pace}"
    title = _cut(Text.assemble(("breakloop demo", "bold"), time))
    if not shape.roomy:
        return [title]
    way = f"agents -> gateway 127.0.0.1:{story.gateway_port} -> stand-in LLM 127.0.0.1:{story.llm_port}"
    return [title, _cut(Text(f"{way}, all local", "dim"))]


def _foot(story: DemoStory, shape: ScreenShape) -> list[Text]:
    # The last line is short: the ^C that a terminal prints after it must not wrap and shift the screen.
    last = Text(f"Assumed {story.price}. Ctrl-C ends.", "dim")
    last.truncate(shape.width - 4, overflow="ellipsis")
    if story.denial is None:
        return [_cut(line) for line in (*[Text()] * shape.roomy, Text(), Text(f"Rule: {rule()}."), last)]
    denial = story.denial
    said = Text(first_sentence(denial), "bold red")
    raised = [Text(f"Its SDK raises RateLimitError ({denial.status} {denial.code}):")] * shape.roomy
    costs = f"; unstopped: {usd(story.hour_usd)} an hour, {usd(story.weekend_usd)} a weekend"
    saved = Text.assemble((f"Saved {usd(story.saved_usd(LOOPING))}", "bold green"), costs)
    return [_cut(line) for line in (*raised, said, saved, last)]


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# -- panes -------------------------------------------------------------------------------------------------------------


def _pane(story: DemoStory, agent: str, shape: ScreenShape) -> Panel:
    shown = list(story.last[agent])[-shape.rows :]
    rows = _all_columns(shown, shape) if shape.inside >= _ALL_COLUMNS else _few_columns(shown)
    empty = [Text() for _ in range(shape.rows - len(shown))]
    totals = story.totals[agent]
    state, colour = ("BLOCKED", "red") if totals.cooling else ("done" if totals.finished else "running", "green")
    title = Text.assemble(f"{agent} agent: ", (state, f"bold {colour}"))
    lines = [_cut(line) for line in _totals(story, agent, shape)]
    return Panel(Group(rows, *empty, *lines), title=title, border_style=colour)


def _totals(story: DemoStory, agent: str, shape: ScreenShape) -> list[Text]:
    totals = story.totals[agent]
    counts = f"passed {totals.passed}, blocked {totals.blocked}" + f", failed {totals.failed}" * bool(totals.failed)
    money = f"spent {usd(story.spent_usd(agent))}" + f", saved {usd(story.saved_usd(agent))}" * bool(totals.blocked)
    if not shape.roomy:
        return [Text(f"{counts}; {totals.tokens_in / 1000:,.0f}k tokens", "bold"), Text(money)]
    tokens = f"{totals.tokens_in:,} tokens in, {totals.tokens_out:,} out"
    return [Text(), Text(counts, "bold"), Text(tokens), Text(money)]


def _few_columns(shown: list[DemoResponse]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim", width=4)
    table.add_column(width=3)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for one in shown:
        table.add_row(f"{one.at_s}s", _status(one), Text(one.outcome, "" if one.passed else "red"))
    return table


def _all_columns(shown: list[DemoResponse], shape: ScreenShape) -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.show_header = shape.roomy
    table.add_column("time", justify="right", style="dim", width=4)
    table.add_column("what the agent did", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("answer", no_wrap=True, width=17, overflow="ellipsis")
    table.add_column("wait", justify="right", width=5)
    for one in shown:
        did = one.did or Text("the same request again" if one.blocked else "", "dim")
        said = (one.reason, "red") if one.blocked else "passed" if one.passed else "failed"
        answer = Text.assemble(_status(one), " ", said)
        table.add_row(f"{one.at_s}s", did, answer, f"{one.retry_after_s} s" if one.blocked else "")
    return table


def _status(one: DemoResponse) -> Text:
    return Text(str(one.status), "green" if one.passed else "bold red")


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
        fail(f"the demo needs two free local ports: {error.strerror}")


def _can_show(terminal: Console) -> bool:
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
