"""The demonstration's picture fits, whatever the terminal, and reads without colours."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console, ConsoleDimensions

from breakloop.cli.demo import LEAST_HEIGHT, LEAST_WIDTH, DemoPrice, DemoStory, ScreenShape, picture
from breakloop.cli.demo_run import HEALTHY, LOOPING, DemoResponse

SIZES = [(60, 16), (60, 20), (79, 24), (80, 20), (80, 24), (100, 30), (120, 40), (200, 60)]
MESSAGE = "Blocked: identical request sent 6 times in 60 seconds. Stop it."


def _drawn(story: DemoStory, width: int, height: int) -> list[str]:
    """The picture as a terminal of that size shows it, lines without trailing blanks."""
    out = Console(file=StringIO(), width=width, height=height, legacy_windows=False)
    with out.capture() as captured:
        out.print(picture(story, ScreenShape.of(ConsoleDimensions(width, height)), 6.5))
    return [line.rstrip() for line in captured.get().splitlines()]


def _story(passed: int = 25, blocked: int = 25) -> DemoStory:
    story = DemoStory(DemoPrice(3.0, 15.0), 130, 100, 40001, 40002)
    for number in range(passed):
        story.take(DemoResponse(LOOPING, number, 200, "read(config.yml) -> error", tokens_in=11_000, tokens_out=13))
        story.take(DemoResponse(HEALTHY, number, 200, "read(refund.py) -> 20 lines", tokens_in=11_000, tokens_out=13))
    for number in range(blocked):
        at_s = 100 + number
        story.take(
            DemoResponse(LOOPING, at_s, 429, "", False, 0, 0, "loop_detected", 120, "recursive_loop_detected", MESSAGE)
        )
    return story


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("blocked", [0, 25])
def test_the_picture_fits(width: int, height: int, blocked: int) -> None:
    """No line wraps, nothing scrolls, nothing is cut off, and there is room for the ^C of a terminal (X-4)."""
    lines = _drawn(_story(blocked=blocked), width, height)
    assert max(map(len, lines)) <= min(width, 120)
    assert len(lines) <= height - 1
    assert "…" not in "\n".join(lines)
    assert len(lines[-1]) < width - 2
    assert lines[-1] == "Assumed $3 in, $15 out per million tokens. Ctrl-C ends."


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_matters_is_there(width: int, height: int) -> None:
    """State, wait, counts, tokens, money and the denial, in words: colours may be missing (X-4)."""
    text = "\n".join(_drawn(_story(), width, height))
    for part in (
        "100 of 130 s, simulated",
        "looping agent: BLOCKED",
        "healthy agent: running",
        "429 loop_detected",
        "120 s",
        "200",
        "read(refund.py) -> 20 lines",
        "passed 25, blocked 25",
        "passed 25, blocked 0",
        "275,000 tokens in, 325 out" if width >= 80 and height >= 24 else "; 275k tokens",
        "spent $0.83, saved $0.83",
        "Blocked: identical request sent 6 times in 60 seconds.",
        "Saved $0.83; unstopped: $60 an hour, $2,868 a weekend",
    ):
        assert part in text, part


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_keeps_its_height(width: int, height: int) -> None:
    """From the first moment to the last, so that nothing jumps (X-4)."""
    assert len({len(_drawn(_story(*given), width, height)) for given in ((0, 0), (3, 0), (25, 0), (25, 25))}) == 1


def test_side_by_side_or_one_above_the_other() -> None:
    """80 columns are enough for both panes (X-4)."""

    def with_both(width: int) -> bool:
        return any("looping agent" in line and "healthy agent" in line for line in _drawn(_story(), width, 24))

    assert (with_both(79), with_both(80)) == (False, True)


def test_the_smallest_terminal_still_shows_requests() -> None:
    """Below that, `demo` writes lines (X-4)."""
    lines = _drawn(_story(), LEAST_WIDTH, LEAST_HEIGHT)
    assert sum("429 loop_detected" in line for line in lines) == 1
    assert sum("read(refund.py)" in line for line in lines) == 1


def test_the_newest_requests_are_shown() -> None:
    """The last ones, in order (X-4)."""
    times = [line.split()[1] for line in _drawn(_story(), 60, 24) if "429" in line]
    assert times == ["120s", "121s", "122s", "123s", "124s"]


def test_before_the_loop_the_rule_is_shown() -> None:
    """And no verdict (X-4)."""
    text = "\n".join(_drawn(_story(blocked=0), 80, 24))
    assert "Rule: repeated steps; the same end 6 times in 60 s." in text
    assert "RateLimitError" not in text
    assert "Saved" not in text
    assert "looping agent: running" in text


def test_an_agent_that_is_done_says_so() -> None:
    story = _story(1, 0)
    story.take(DemoResponse(HEALTHY, 108, 200, "answers: done", finished=True))
    assert "healthy agent: done" in "\n".join(_drawn(story, 80, 24))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_failure_is_shown_as_one(width: int, height: int) -> None:
    """Neither passed nor blocked (X-4)."""
    story = DemoStory(DemoPrice(3.0, 15.0), 130)
    story.take(DemoResponse(LOOPING, 0, 502))
    text = "\n".join(_drawn(story, width, height))
    assert "502" in text
    assert "failed" in text
    assert "passed 0, blocked 0, failed 1" in text


def test_a_long_price_leaves_room_for_the_terminals_echo() -> None:
    story = DemoStory(DemoPrice(12345.678, 98765.432), 130)
    assert len(_drawn(story, 60, 20)[-1]) <= 56
