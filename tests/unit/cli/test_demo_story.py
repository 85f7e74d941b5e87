"""What the demonstration counts and reckons."""

from __future__ import annotations

import pytest

from breakloop.cli.demo import DemoPrice, DemoStory, DemoTotals, story_json, usd
from breakloop.cli.demo_run import HEALTHY, LOOPING, DemoResponse


def _blocked(wait_s: int = 30) -> DemoResponse:
    return DemoResponse(
        LOOPING, 14, 429, reason="loop_detected", retry_after_s=wait_s, code="c", message="Blocked: so. No."
    )


def _passed(tokens_in: int = 0, tokens_out: int = 0, agent: str = LOOPING) -> DemoResponse:
    return DemoResponse(agent, 0, 200, "read(x) -> error", tokens_in=tokens_in, tokens_out=tokens_out)


def test_detections_are_told_from_cooldowns() -> None:
    """A denial is a detection when a request has passed before it."""
    totals = DemoTotals()
    answers = [_passed(), _blocked(30), _blocked(29), _passed(), _blocked(60)]
    assert [totals.count(one) for one in answers] == [False, True, False, False, True]
    assert (totals.passed, totals.blocked, totals.failed, totals.cooldowns_s) == (2, 3, 0, [30, 60])


def test_an_error_is_neither_passed_nor_blocked() -> None:
    """A 502 saves nobody money (X-4)."""
    totals = DemoTotals()
    totals.count(DemoResponse(LOOPING, 0, 502))
    assert (totals.passed, totals.blocked, totals.failed) == (0, 0, 1)


def test_money() -> None:
    """Spent by reported usage; saved, at the mean of what passed; one call every two seconds, left alone (X-4)."""
    story = DemoStory(DemoPrice(2.0, 10.0), 10)
    for one in (_passed(100_000, 1_000), _passed(300_000, 3_000), _blocked(), _blocked(), _blocked()):
        story.take(one)
    assert story.spent_usd(LOOPING) == pytest.approx(0.84)
    assert story.call_usd() == pytest.approx(0.42)
    assert story.saved_usd(LOOPING) == pytest.approx(1.26)
    assert story.hour_usd == pytest.approx(0.42 * 1800)
    assert story.weekend_usd == pytest.approx(0.42 * 1800 * 48)
    assert story.saved_usd(HEALTHY) == 0


def test_nothing_happened_yet() -> None:
    """No request, no cost, and no division by nothing."""
    story = DemoStory(DemoPrice(3.0, 15.0), 10)
    assert (story.spent_usd(LOOPING), story.saved_usd(LOOPING), story.hour_usd) == (0, 0, 0)
    assert story_json(story)["denial"] is None


def test_the_first_denial_is_kept() -> None:
    """It is what the summary quotes (X-4)."""
    story = DemoStory(DemoPrice(3.0, 15.0), 10)
    first, second = _blocked(30), _blocked(28)
    story.take(first)
    story.take(second)
    assert story.denial is first
    assert story_json(story)["denial"] == {"status": 429, "code": "c", "message": "Blocked: so. No."}


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (1.704, "$1.70"), (9.99, "$9.99"), (63.9, "$64"), (3066.6, "$3,067")]
)
def test_amounts_for_people(amount: float, text: str) -> None:
    assert usd(amount) == text


def test_the_price_says_what_it_is_for() -> None:
    assert str(DemoPrice(3.0, 15.0)) == "$3 in, $15 out per million tokens"
    assert str(DemoPrice(0.25, 1.5)) == "$0.25 in, $1.5 out per million tokens"
