"""The demonstration as lines of text: what changes while it runs, and the summary at its end, also of the live show."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from breakloop.cli.demo_agents import HEALTHY, LOOPING, Answered
from breakloop.cli.demo_run import PACE_S, rule
from breakloop.cli.demo_story import WEEKEND_H, WHAT, Story, usd
from breakloop.cli.validate import counted

_REPORT_EVERY = 10  # requests of the healthy agent
_INDENT = 2


def introduction(story: Story) -> list[str]:
    """Return what is about to be seen."""
    gateway, llm = f"127.0.0.1:{story.gateway_port}", f"127.0.0.1:{story.llm_port}"
    return [
        "breakloop demo: two agents, the real gateway, a stand-in LLM; nothing leaves this machine",
        f"  agents -> gateway {gateway} -> stand-in LLM {llm}",
        *(f"  {agent}: {what}, every {PACE_S[agent]} s" for agent, what in WHAT.items()),
        f"  the gateway's built-in rule: {rule()}",
        "  time is simulated; statuses and waits are the gateway's answers",
        f"  money is an estimate: {story.price} are assumed",
        "",
    ]


class Lines:
    """Prints what changes, not every request."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._blocked_in_a_row = 0

    def begin(self) -> None:
        """Tell what is about to be seen."""
        for line in introduction(self._story):
            click.echo(line)

    def tell(self, answers: list[tuple[Answered, bool]]) -> None:
        """Tell about answers (with whether they are new detections), if they are worth it."""
        for answered, fresh in answers:
            self._tell(answered, fresh=fresh)

    def _tell(self, answered: Answered, *, fresh: bool) -> None:
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
        """Tell what has not been told yet."""
        for answered in list(self._story.last[LOOPING])[-1:]:
            self._catch_up(answered, "the cooldown goes on")
        click.echo("")

    def _healthy(self, answered: Answered) -> None:
        totals = self._story.totals[HEALTHY]
        number = totals.passed + totals.blocked + totals.failed
        if answered.finished or number % _REPORT_EVERY == 0 or not answered.passed:
            self._say(answered, f"{answered.outcome} ({totals.passed} of {number} requests passed)")

    def _catch_up(self, answered: Answered, why: str) -> None:
        if self._blocked_in_a_row:
            click.echo(f"  t={answered.at_s:>3}s  {LOOPING}       {self._blocked_in_a_row} more blocked; {why}")
            self._blocked_in_a_row = 0

    def _say(self, answered: Answered, text: str) -> None:
        click.echo(f"  t={answered.at_s:>3}s  {answered.agent}  {answered.status}  {text}")


def first_sentence(answered: Answered) -> str:
    """Return the beginning of a denial's message."""
    return answered.message.partition(". ")[0] + "."


# -- the end -------------------------------------------------------------------------------------------------------

Line = tuple[Text, bool]  # and whether it is indented


def summary(story: Story) -> list[Line]:
    """Return what there is to learn, and what to do next."""
    whole = "" if story.seen_s >= story.wanted_s else f" of {story.wanted_s}"
    lines = [_head(f"After {story.seen_s}{whole} simulated seconds")]
    lines += [_line(_fate(story, agent)) for agent in (LOOPING, HEALTHY)]
    lines.append(_line(f"the stand-in LLM itself counted {counted(story.llm_requests, 'request')}"))
    lines += _money(story)
    if story.denial is not None:
        lines.append(_head("What the looping agent's SDK raises"))
        lines.append(
            _line(("openai.RateLimitError", "bold"), f", status {story.denial.status}, code {story.denial.code}")
        )
        lines.append(_line(story.denial.message))
    return lines + _next()


def printed(line: Line) -> RenderableType:
    """Return a line for a terminal, where what is indented stays so when it has to be wrapped."""
    text, indented = line
    return Padding(text, (0, 0, 0, _INDENT)) if indented else text


def plain_text(line: Line) -> str:
    """Return a line without colours."""
    text, indented = line
    return " " * _INDENT * indented + text.plain


def _head(text: str) -> Line:
    return Text(text, "bold"), False


def _line(*parts: str | tuple[str, str]) -> Line:
    return Text.assemble(*parts), True


def _fate(story: Story, agent: str) -> str:
    totals = story.totals[agent]
    said = f"{agent}: {counted(totals.passed, 'request')} passed, {totals.blocked} blocked"
    if totals.failed:
        said += f", {totals.failed} failed"
    if totals.cooldowns_s:
        said += f"; cooldowns of {', '.join(map(str, totals.cooldowns_s))} s"
    return said + "; finished its task" * totals.finished


def _money(story: Story) -> list[Line]:
    looping = story.totals[LOOPING]
    per_call = f"{looping.blocked} blocked x ${story.call_usd():.3f}, the mean of the {looping.passed} that passed"
    return [
        _head("Money, estimated"),
        _line(f"price: {story.price}, no caching; assumed (--price)"),
        _line(
            f"spent by the loop: {usd(story.spent_usd(LOOPING))} for {looping.tokens_in:,} tokens in, "
            f"{looping.tokens_out:,} out (the LLM's usage)"
        ),
        _line("saved: about ", (usd(story.saved_usd(LOOPING)), "bold green"), f" ({per_call})"),
        _line(
            f"left alone, a call every {PACE_S[LOOPING]} s: {usd(story.hour_usd)} an hour, "
            f"{usd(story.weekend_usd)} a weekend ({WEEKEND_H} h)"
        ),
    ]


def _next() -> list[Line]:
    return [
        _head("Next"),
        _line(("breakloop serve", "bold"), "    the same gateway, in front of OpenAI, Anthropic and Gemini"),
        _line(("export OPENAI_BASE_URL=http://127.0.0.1:8787/v1", "bold"), "    where your agent runs"),
        _line(("breakloop init", "bold"), "     a policy of your own, with tests"),
    ]
