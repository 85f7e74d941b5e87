"""`breakloop demo`: what it shows is what the real engine said, in lines, on a screen and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from io import StringIO

import pytest
from rich.console import Console

from breakloop.cli import demo
from breakloop.cli.demo import Story, screen, summary
from breakloop.cli.demo_run import HEALTHY, LOOPING, Answered
from breakloop.cli.main import run
from breakloop.gateway.server import ListenError, Server

PLAIN = """\
breakloop demo: two simulated agents, the real decision service, a simulated clock
  looping: repeats the same question, once a second
  healthy: asks something new each time, once a second
  money is an estimate: $0.05 a call is assumed

  t=  0s  looping  request 1 allowed
  t=  1s  looping  request 2 allowed
  t=  2s  looping  request 3 allowed
  t=  3s  looping  request 4 allowed
  t=  4s  looping  request 5 allowed
  t=  5s  looping  request 6 BLOCKED: 429 loop_detected, Retry-After: 30
                  "Blocked: identical request sent 6 times in 60 seconds."
  t= 29s  healthy  30 of 30 requests allowed
  t= 35s  looping  29 more blocked; now the cooldown is over
  t= 35s  looping  request 36 allowed
"""


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """X-4, LD-2: the sixth is blocked, cooldowns grow, the healthy one works on; the money is said to be estimated."""
    assert run(["demo", "--plain"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(PLAIN)
    assert [line.split("Retry-After: ")[1] for line in out.splitlines() if "Retry-After" in line] == ["30", "60", "120"]
    assert "  looping: 15 requests passed, 95 blocked\n" in out
    assert "  healthy: 110 requests passed, 0 blocked\n" in out
    assert "  saved: $4.75 (an estimate: 95 calls x the assumed $0.05)\n" in out
    assert "\x1b" not in out
    assert out.splitlines()[-1].split()[:2] == ["breakloop", "serve"]


def test_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    """E-7: same requests, same clock, same verdicts."""
    texts = []
    for _ in range(2):
        assert run(["demo", "--seconds", "50"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """X-3: --json is the summary alone."""
    assert run(["demo", "--json", "--seconds", "7", "--price", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "simulated_seconds": 7,
        "looping": {"passed": 5, "blocked": 2, "cooldowns_s": [30]},
        "healthy": {"passed": 7, "blocked": 0, "cooldowns_s": []},
        "assumed_usd_per_call": 1.0,
        "saved_usd_estimate": 2.0,
    }


def test_live(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """X-4: on a terminal both agents are shown while it runs, and the summary stays."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert run(["demo", "--seconds", "7", "--speed", "10000"]) == 0
    out = capsys.readouterr().out
    assert "agent looping" in out
    assert "429 loop_detected" in out
    assert "After 7 simulated seconds:" in out


def test_broken_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """X-4: Ctrl-C ends the picture, not the story: the summary is about what was seen, and nothing failed."""

    async def until_interrupted(seconds: int) -> AsyncIterator[list[Answered]]:
        for at_s in range(seconds - 100):
            yield [Answered(LOOPING, at_s + 1, at_s, 200), Answered(HEALTHY, at_s + 1, at_s, 200)]
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "traffic", until_interrupted)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert run(["demo", "--seconds", "103", "--speed", "10000"]) == 0
    out = capsys.readouterr().out
    assert "After 3 simulated seconds:" in out
    assert "Aborted" not in out


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_fits(width: int) -> None:
    """X-4: at 80 columns nothing that matters is cut off."""
    story = Story(0.05)
    for number in range(1, 12):
        story.take(Answered(LOOPING, number, number, 429, "loop_detected", 120))
        story.take(Answered(HEALTHY, number, number, 200))
    out = Console(file=StringIO(), width=width)
    with out.capture() as captured:
        out.print(screen(story))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines[-1].rstrip()) < width - 2  # room for the ^C of a terminal
    assert len(lines) < 24
    text = "\n".join(lines)
    assert text.count("429 loop_detected, wait 120 s") == 8
    assert "blocked 11, saved $0.55" in text
    assert "…" not in text


def test_a_demo_too_short_for_a_loop() -> None:
    """Nothing is claimed that did not happen."""
    story = Story(0.05)
    story.take(Answered(LOOPING, 1, 0, 200))
    story.seconds = 1
    text = "\n".join(line.plain for line in summary(story))
    assert "detection" not in text
    assert "After 1 simulated second:" in text
    assert "saved: $0.00" in text


def test_no_port(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that lets nobody listen gets a message, not a traceback."""

    async def start(self: Server, host: str = "", port: int = 0) -> int:
        raise ListenError(1, "cannot listen on 127.0.0.1:0: not permitted")

    monkeypatch.setattr(Server, "start", start)
    assert run(["demo"]) == 1
    assert "not permitted" in capsys.readouterr().err


def test_defaults_end_soon() -> None:
    """X-4: well under a minute by itself."""
    assert demo.SECONDS / demo.SPEED < 30
