"""The demonstration in lines, and its summary."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from breakloop.cli.demo import (
    DemoPrice,
    DemoStory,
    LineOutput,
    first_sentence,
    introduction,
    plain_text,
    printed,
    summary,
)
from breakloop.cli.demo_run import HEALTHY, LOOPING, DemoResponse

MESSAGE = "Blocked: identical request sent 6 times in 60 seconds. Do not send it again. (recursive_loop_detected)"


def _story(*answers: DemoResponse, seen_s: int = 10) -> DemoStory:
    story = DemoStory(DemoPrice(3.0, 15.0), 10, seen_s, 4001, 4002)
    for one in answers:
        story.take(one)
    story.llm_requests = sum(one.passed for one in answers)
    return story


def _blocked(at_s: int) -> DemoResponse:
    return DemoResponse(
        LOOPING, at_s, 429, reason="loop_detected", retry_after_s=30, code="recursive_loop_detected", message=MESSAGE
    )


def _text(story: DemoStory) -> str:
    return "\n".join(plain_text(line) for line in summary(story))


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What changes is told, what repeats is counted (X-4)."""
    story = _story()
    lines = LineOutput(story)
    for one in (DemoResponse(LOOPING, 0, 200, "read(x) -> error"), _blocked(2), _blocked(4), _blocked(6)):
        lines.tell([(one, story.take(one))])
    again = DemoResponse(LOOPING, 8, 502)
    lines.tell([(again, story.take(again))])
    done = DemoResponse(HEALTHY, 8, 200, "answers: done", finished=True)
    lines.tell([(done, story.take(done))])
    lines.end()
    assert capsys.readouterr().out == (
        "  t=  0s  looping  200  read(x) -> error\n"
        "  t=  2s  looping  429  BLOCKED: loop_detected, Retry-After: 30\n"
        '                       "Blocked: identical request sent 6 times in 60 seconds."\n'
        "  t=  8s  looping       2 more blocked; now the cooldown is over\n"
        "  t=  8s  looping  502  failed\n"
        "  t=  8s  healthy  200  answers: done (1 of 1 requests passed)\n"
        "\n"
    )


def test_a_cooldown_at_the_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """No blocked request is left out (X-4)."""
    story = _story()
    lines = LineOutput(story)
    for one in (_blocked(2), _blocked(4)):
        lines.tell([(one, story.take(one))])
    capsys.readouterr()
    lines.end()
    assert capsys.readouterr().out == "  t=  4s  looping       1 more blocked; the cooldown continues\n\n"


def test_the_introduction_says_what_is_real_and_what_is_not() -> None:
    """Ports, the simulated clock, the assumed price (X-4)."""
    text = "\n".join(introduction(_story()))
    assert "gateway 127.0.0.1:4001 -> stand-in LLM 127.0.0.1:4002" in text
    assert "time is simulated" in text
    assert "$3 in, $15 out per million tokens are assumed" in text


def test_the_summary() -> None:
    """Counts, money with its price, what it would have cost, and the SDK's error in full (X-4)."""
    text = _text(_story(DemoResponse(LOOPING, 0, 200, tokens_in=10_000, tokens_out=100), _blocked(2), _blocked(4)))
    assert "looping: 1 request passed, 2 blocked; cooldowns of 30 s\n" in text
    assert "the stand-in LLM itself counted 1 request\n" in text
    assert "price: $3 in, $15 out per million tokens, no caching; assumed (--price)\n" in text
    assert "saved: about $0.06 (2 blocked x $0.032, the mean of the 1 that passed)\n" in text
    assert "left alone, a call every 2 s: $57 an hour, $2,722 a weekend (48 h)\n" in text
    assert f"openai.RateLimitError, status 429, code recursive_loop_detected\n  {MESSAGE}\n" in text


def test_nothing_is_claimed_that_did_not_happen() -> None:
    """Too short for a loop, and broken off (X-4)."""
    text = _text(_story(DemoResponse(LOOPING, 0, 200), seen_s=2))
    assert text.startswith("After 2 of 10 simulated seconds\n")
    assert "cooldown" not in text
    assert "RateLimitError" not in text
    assert "finished" not in text
    assert "failed" not in text
    assert "saved: about $0.00" in text


def test_failures_are_not_hidden() -> None:
    """If the demonstration breaks, it says so (X-4)."""
    assert "looping: 0 requests passed, 0 blocked, 1 failed\n" in _text(_story(DemoResponse(LOOPING, 0, 502)))


def test_wrapped_lines_stay_indented() -> None:
    """At 60 columns (X-4)."""
    out = Console(file=StringIO(), width=60)
    with out.capture() as captured:
        for line in summary(_story(_blocked(2))):
            out.print(printed(line))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 60
    heads = {line.rstrip() for line in lines if not line.startswith("  ")}
    assert heads == {"After 10 simulated seconds", "Money, estimated", "What the looping agent's SDK raises", "Next"}
    assert any(line.startswith("  export OPENAI_BASE_URL=http://127.0.0.1:8787/v1") for line in lines)


def test_the_first_sentence() -> None:
    assert first_sentence(_blocked(0)) == "Blocked: identical request sent 6 times in 60 seconds."
