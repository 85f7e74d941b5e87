"""What the demonstration has to tell: counts of the gateway's answers, the tokens that the stand-in LLM reported, and
money, which is an estimate at an assumed price. How it looks is `demo_lines`' and `demo_screen`'s work."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from breakloop.cli.demo_agents import HEALTHY, LOOPING, Answered
from breakloop.cli.demo_run import PACE_S

WHAT: Final = {LOOPING: "reads a file that is not there, again and again", HEALTHY: "reads one file after the other"}
WEEKEND_H: Final = 48
_KEPT: Final = 40
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Assumed US dollars for a million tokens."""

    input_usd: float
    output_usd: float

    def __str__(self) -> str:
        return f"{_short(self.input_usd)} in, {_short(self.output_usd)} out per million tokens"

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """Return what so many tokens cost."""
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / _MILLION


@dataclass(slots=True)
class Totals:
    """What became of an agent's requests."""

    passed: int = 0
    blocked: int = 0
    failed: int = 0  # neither: something is wrong with the demonstration itself
    tokens_in: int = 0
    tokens_out: int = 0
    cooldowns_s: list[int] = field(default_factory=list)  # one for each detection
    cooling: bool = False
    finished: bool = False

    def count(self, answered: Answered) -> bool:
        """Count an answer; tell whether it is a new detection (and not one more request during a cooldown)."""
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
class Story:
    """Everything that is shown."""

    price: Price
    wanted_s: int
    seen_s: int = 0
    gateway_port: int = 0
    llm_port: int = 0
    llm_requests: int = 0  # as the stand-in LLM has counted them
    denial: Answered | None = None  # the first
    totals: dict[str, Totals] = field(default_factory=lambda: {LOOPING: Totals(), HEALTHY: Totals()})
    last: dict[str, deque[Answered]] = field(
        default_factory=lambda: {LOOPING: deque(maxlen=_KEPT), HEALTHY: deque(maxlen=_KEPT)}
    )

    def take(self, answered: Answered) -> bool:
        """Take an answer in; tell whether it is a new detection."""
        self.last[answered.agent].append(answered)
        if answered.blocked and self.denial is None:
            self.denial = answered
        return self.totals[answered.agent].count(answered)

    def spent_usd(self, agent: str) -> float:
        """What an agent's answered requests cost."""
        totals = self.totals[agent]
        return self.price.of(totals.tokens_in, totals.tokens_out)

    def call_usd(self, agent: str = LOOPING) -> float:
        """What an answered request of an agent costs, on average."""
        return self.spent_usd(agent) / max(self.totals[agent].passed, 1)

    def saved_usd(self, agent: str) -> float:
        """What an agent's blocked requests would have cost: as much as its answered ones, on average."""
        return self.totals[agent].blocked * self.call_usd(agent)

    @property
    def hour_usd(self) -> float:
        """What the loop costs in an hour if nobody stops it."""
        return self.call_usd() * 3600 / PACE_S[LOOPING]

    @property
    def weekend_usd(self) -> float:
        """What it costs until somebody comes back."""
        return self.hour_usd * WEEKEND_H


def usd(amount: float) -> str:
    """Return an amount for people: cents matter below ten dollars."""
    return f"${amount:,.2f}" if amount < 10 else f"${amount:,.0f}"


def _short(amount: float) -> str:
    return f"${amount:g}"


def story_json(story: Story) -> dict[str, object]:
    """Return the whole story as JSON has it."""
    denial = story.denial
    return {
        "simulated_seconds": story.seen_s,
        **{agent: _totals_json(story, agent) for agent in (LOOPING, HEALTHY)},
        "llm_requests": story.llm_requests,
        "denial": denial and {"status": denial.status, "code": denial.code, "message": denial.message},
        "assumed_usd_per_million_tokens": {"input": story.price.input_usd, "output": story.price.output_usd},
        "saved_usd_estimate": round(story.saved_usd(LOOPING), 6),
        "loop_usd_per_hour_estimate": round(story.hour_usd, 2),
        "loop_usd_per_weekend_estimate": round(story.weekend_usd, 2),
    }


def _totals_json(story: Story, agent: str) -> dict[str, object]:
    totals = story.totals[agent]
    return {
        "passed": totals.passed,
        "blocked": totals.blocked,
        "failed": totals.failed,
        "finished": totals.finished,
        "cooldowns_s": totals.cooldowns_s,
        "tokens_in": totals.tokens_in,
        "tokens_out": totals.tokens_out,
        "spent_usd": round(story.spent_usd(agent), 6),
    }
