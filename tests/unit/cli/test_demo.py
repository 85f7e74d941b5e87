"""`breakloop demo`: what it shows is what the real gateway answered, in lines, on a screen and as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from breakloop.cli import demo
from breakloop.cli.demo_run import DemoResponse, DemoStage, stage
from breakloop.cli.main import run
from breakloop.gateway.server import ListenError, Server

PLAIN = """\
breakloop demo: two agents, the real gateway, a stand-in LLM; nothing leaves this machine
  agents -> gateway 127.0.0.1:PORT -> stand-in LLM 127.0.0.1:PORT
  looping: reads a missing file again and again, every 2 s
  healthy: reads one file after the other, every 4 s
  the gateway's built-in rule: repeated steps; the same end 6 times in 60 s
  time is simulated; statuses and waiting times come from the gateway
  money is an estimate: $3 in, $15 out per million tokens are assumed

  t=  0s  looping  200  read(config.yml) -> error
  t=  2s  looping  200  read(config.yml) -> error
  t=  4s  looping  200  read(config.yml) -> error
  t=  6s  looping  200  read(config.yml) -> error
  t=  8s  looping  429  BLOCKED: loop_detected, Retry-After: 30
                       "Blocked: the same call of `read` failed 4 times."
  t= 36s  healthy  200  read(forms.py) -> 25 lines (10 of 10 requests passed)
  t= 76s  healthy  200  read(report.py) -> 27 lines (20 of 20 requests passed)
"""


def _without_ports(text: str) -> str:
    return re.sub(r"(127\.0\.0\.1):\d+(?!/)", r"\1:PORT", text)


def _on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output a terminal of the usual size. No fixture: pytest changes the stream before the test begins."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The fourth failure is the last, however often it asks; the healthy agent gets its work done (X-4, LD-4)."""
    assert run(["demo", "--plain"]) == 0
    out = capsys.readouterr().out
    assert _without_ports(out).startswith(PLAIN)
    assert [line.split("Retry-After: ")[1] for line in out.splitlines() if "Retry-After" in line] == ["30"]
    assert "  looping: 4 requests passed, 61 blocked; cooldowns of 30 s\n" in out
    assert "  healthy: 28 requests passed, 0 blocked; finished its task\n" in out
    assert "  the stand-in LLM itself counted 32 requests\n" in out
    assert "\x1b" not in out


def test_the_tutorial_shows_what_is_printed() -> None:
    """The first page that people read is true (X-4)."""
    tutorial = Path(__file__).parents[3] / "docs/tutorial/first-loop.md"
    found = re.search(r"```text\n(  t=.*?)```", tutorial.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1] in PLAIN


def test_the_last_lines_say_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """From the show to one's own agent (X-4)."""
    assert run(["demo", "--plain", "--seconds", "2"]) == 0
    *_, serve, export, init = capsys.readouterr().out.splitlines()
    assert serve.startswith("  breakloop serve ")
    assert export.startswith("  export OPENAI_BASE_URL=http://127.0.0.1:8787/v1 ")
    assert init.startswith("  breakloop init ")


def test_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Same requests, same clock, same verdicts (E-7)."""
    texts = []
    for _ in range(2):
        assert run(["demo", "--seconds", "60"]) == 0
        texts.append(_without_ports(capsys.readouterr().out))
    assert texts[0] == texts[1]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json is the summary alone, and --price is what it is reckoned with (X-3)."""
    assert run(["demo", "--json", "--seconds", "18", "--price", "10", "20"]) == 0
    found = json.loads(capsys.readouterr().out)
    looping = found["looping"]
    assert (found["simulated_seconds"], found["llm_requests"]) == (18, 9)
    assert (looping["passed"], looping["blocked"], looping["failed"], looping["cooldowns_s"]) == (4, 5, 0, [30])
    assert found["healthy"]["passed"] == 5
    assert found["denial"]["status"] == 429
    assert found["denial"]["code"] == "recursive_loop_detected"
    assert found["assumed_usd_per_million_tokens"] == {"input": 10.0, "output": 20.0}
    spent = (looping["tokens_in"] * 10 + looping["tokens_out"] * 20) / 1e6
    assert looping["spent_usd"] == pytest.approx(spent)
    assert found["saved_usd_estimate"] == pytest.approx(spent / 4 * 5, rel=1e-4)


def test_live(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal both agents are shown while it runs, and the summary stays (X-4)."""
    _on_a_terminal(monkeypatch)
    assert run(["demo", "--seconds", "18", "--speed", "10000"]) == 0
    out = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", capsys.readouterr().out)
    assert "looping agent: BLOCKED" in out
    assert "healthy agent: running" in out
    assert "loop_detected, wait 30 s" in out
    assert "After 18 simulated seconds" in out


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("COLUMNS", "59"), ("LINES", "15")])
def test_a_terminal_without_room_gets_lines(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no picture can be drawn, lines are better than rubbish (X-4)."""
    _on_a_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert run(["demo", "--seconds", "2"]) == 0
    out = capsys.readouterr().out
    assert "  t=  0s  looping  200  read(config.yml) -> error\n" in out
    assert "looping agent: " not in out


@pytest.mark.parametrize("arguments", [["--speed", "10000"], ["--plain"], ["--json"]])
def test_broken_off(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the picture, not the story: the summary is about what was seen, and nothing failed (X-4)."""

    @asynccontextmanager
    async def interrupted() -> AsyncIterator[DemoStage]:
        async with stage() as on:
            go_on = on.turns

            async def turns() -> list[DemoResponse]:
                if on.at_s == 6:
                    raise KeyboardInterrupt
                return await go_on()

            monkeypatch.setattr(on, "turns", turns)
            yield on

    monkeypatch.setattr(demo, "stage", interrupted)
    _on_a_terminal(monkeypatch)
    assert run(["demo", *arguments]) == 0
    out, err = capsys.readouterr()
    assert '"simulated_seconds": 6' in out or "After 6 of 130 simulated seconds" in out
    assert "Aborted" not in out + err


def test_no_port(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that lets nobody listen gets a message, not a traceback."""

    async def start(self: Server, host: str = "", port: int = 0) -> int:
        raise ListenError(1, "cannot listen on 127.0.0.1:0: not permitted")

    monkeypatch.setattr(Server, "start", start)
    assert run(["demo"]) == 1
    assert "two free local ports: cannot listen on 127.0.0.1:0: not permitted" in capsys.readouterr().err


def test_defaults_end_soon() -> None:
    """Long enough to be followed, and well under a minute (X-4)."""
    assert 15 <= demo.SECONDS / demo.SPEED <= 25
