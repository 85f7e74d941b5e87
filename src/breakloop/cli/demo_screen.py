"""The demonstration's live picture: two panes, side by side or one above the other, fitted to the terminal. Red and
green only underline what the words say, so that it reads without colours and on any background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from breakloop.cli.demo_agents import HEALTHY, LOOPING, Answered
from breakloop.cli.demo_lines import first_sentence
from breakloop.cli.demo_run import rule
from breakloop.cli.demo_story import Story, usd

LEAST_WIDTH: Final = 60
LEAST_HEIGHT: Final = 16
_SIDE_BY_SIDE: Final = 80
_TALL: Final = 24
_ALL_COLUMNS: Final = 56  # so wide must a pane be inside
_BORDER: Final = 4  # what a pane's border takes of its width
_MOST_ROWS: Final = 20
_MOST_WIDTH: Final = 120
_AGENTS: Final = (LOOPING, HEALTHY)


@dataclass(frozen=True, slots=True)
class Shape:
    """A terminal's size, and what follows from it."""

    width: int
    height: int

    @classmethod
    def of(cls, size: ConsoleDimensions) -> Shape:
        """Return the shape for a terminal; a very wide one is not filled, because nobody reads lines so long."""
        return cls(min(size.width, _MOST_WIDTH), size.height)

    @property
    def side_by_side(self) -> bool:
        """Whether both panes fit beside each other."""
        return self.width >= _SIDE_BY_SIDE

    @property
    def roomy(self) -> bool:
        """Whether there is room for more than what is needed."""
        return self.side_by_side and self.height >= _TALL

    @property
    def inside(self) -> int:
        """How wide a pane is inside."""
        return (self.width // 2 if self.side_by_side else self.width) - _BORDER

    @property
    def rows(self) -> int:
        """How many requests a pane can show. One row stays free: a picture that fills the terminal would scroll."""
        if self.roomy:  # two lines above, four below; in the pane two of border, four of totals, and perhaps a heading
            rows = self.height - 1 - 2 - 4 - 6 - (self.inside >= _ALL_COLUMNS)
        else:  # one above, three below, two of totals and two of border in each pane
            panes = 1 if self.side_by_side else 2
            rows = (self.height - 1 - 1 - 3 - 4 * panes) // panes
        return max(1, min(_MOST_ROWS, rows))


def picture(story: Story, shape: Shape, speed: float) -> RenderableType:
    """Return everything at this moment."""
    panes: RenderableType = Group(*(_pane(story, agent, shape) for agent in _AGENTS))
    if shape.side_by_side:
        panes = Table.grid(expand=True)
        panes.width = shape.width
        for _ in _AGENTS:
            panes.add_column(ratio=1)
        panes.add_row(*(_pane(story, agent, shape) for agent in _AGENTS))
    return Group(*_head(story, shape, speed), panes, *_foot(story, shape))


def _head(story: Story, shape: Shape, speed: float) -> list[Text]:
    pace = f", {speed:g} times real time" if shape.side_by_side else ""
    time = f"   {story.seen_s} of {story.wanted_s} s, simulated{pace}"
    title = _cut(Text.assemble(("breakloop demo", "bold"), time))
    if not shape.roomy:
        return [title]
    way = f"agents -> gateway 127.0.0.1:{story.gateway_port} -> stand-in LLM 127.0.0.1:{story.llm_port}"
    return [title, _cut(Text(f"{way}, all local", "dim"))]


def _foot(story: Story, shape: Shape) -> list[Text]:
    # The last line is short: the ^C that a terminal writes behind it must not wrap, which would shift the picture.
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
    """One line, whatever the width."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# -- panes ---------------------------------------------------------------------------------------------------------


def _pane(story: Story, agent: str, shape: Shape) -> Panel:
    shown = list(story.last[agent])[-shape.rows :]
    rows = _all_columns(shown, shape) if shape.inside >= _ALL_COLUMNS else _few_columns(shown)
    empty = [Text() for _ in range(shape.rows - len(shown))]
    state, colour = _state(story, agent)
    title = Text.assemble(f"{agent} agent: ", (state, f"bold {colour}"))
    lines = [_cut(line) for line in _totals(story, agent, shape)]
    return Panel(Group(rows, *empty, *lines), title=title, border_style=colour)


def _state(story: Story, agent: str) -> tuple[str, str]:
    totals = story.totals[agent]
    if totals.cooling:
        return "BLOCKED", "red"
    return ("done" if totals.finished else "running"), "green"


def _totals(story: Story, agent: str, shape: Shape) -> list[Text]:
    totals = story.totals[agent]
    counts = f"passed {totals.passed}, blocked {totals.blocked}" + f", failed {totals.failed}" * bool(totals.failed)
    money = f"spent {usd(story.spent_usd(agent))}" + f", saved {usd(story.saved_usd(agent))}" * bool(totals.blocked)
    if not shape.roomy:
        return [Text(f"{counts}; {totals.tokens_in / 1000:,.0f}k tokens", "bold"), Text(money)]
    tokens = f"{totals.tokens_in:,} tokens in, {totals.tokens_out:,} out"
    return [Text(), Text(counts, "bold"), Text(tokens), Text(money)]


def _few_columns(shown: list[Answered]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim", width=4)
    table.add_column(width=3)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for one in shown:
        table.add_row(f"{one.at_s}s", _status(one), Text(one.outcome, "" if one.passed else "red"))
    return table


def _all_columns(shown: list[Answered], shape: Shape) -> Table:
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


def _status(one: Answered) -> Text:
    return Text(str(one.status), "green" if one.passed else "bold red")
