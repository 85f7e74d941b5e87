"""Timelines of the pages that no other test repeats, on a simulated clock. `tests/pages/coverage.py` lists all of them."""

from __future__ import annotations

import json
import re
from typing import Any

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.detect.stream import StreamProbe
from breakloop.gateway.http_request import Reply
from breakloop.model.verdict import Verdict
from breakloop.testing import Conversation, conversation
from tests.builders import CHAT, World, about, bundle, chat, header, lines, policy, tail, user, world
from tests.pages.blocks import ROOT, blocks_of


def block(page: str, beginning: str) -> str:
    (text,) = (one.text for one in blocks_of(ROOT / page) if one.text.startswith(beginning))
    return text


def each_second(here: World, asked: Any, times: int) -> list[Verdict]:
    verdicts = []
    for _ in range(times):
        verdicts.append(here.decide(asked))
        here.clock.advance(1)
    return verdicts


def test_tail() -> None:
    """Five pass, the sixth begins a cooldown, and each further one takes twice as long (LD-2)."""
    here, asked = world(bundle(policy("p", loop=tail()))), chat()
    assert [one.allowed for one in each_second(here, asked, 5)] == [True] * 5
    denied = each_second(here, asked, 30)  # t=5 to 34
    assert not any(one.allowed for one in denied)
    assert [one.loop.hit_count for one in denied if one.loop] == list(range(6, 36))
    assert [one.retry_after_s for one in denied] == list(range(30, 0, -1))
    assert [one.allowed for one in each_second(here, asked, 5)] == [True] * 5  # t=35 to 39
    cooldowns = []
    for _ in range(7):
        verdict = here.decide(asked)
        assert verdict.loop is not None
        cooldowns.append(verdict.loop.cooldown_s)
        here.clock.advance(verdict.loop.cooldown_s)
        each_second(here, asked, 5)
    assert cooldowns == [60, 120, 240, 480, 900, 900, 900]
    here.clock.advance(900)
    assert each_second(here, asked, 6)[5].retry_after_s == 30


def test_tail_of_one_key() -> None:
    """Each line of the page: a sequence of openings, and what becomes of its last one (LD-2)."""
    for line in block("docs/explanation/loop-detection.md", "max_hits 5, window 60 s; one key").splitlines()[1:]:
        sent, _, outcome = re.split(" {4,}(the 6th .*?: )", line)
        here = world(bundle(policy("p", loop=tail())))
        *before, last = [each_second(here, chat(user(text)), 1)[0] for text in sent.split()]
        assert all(one.allowed and not one.warning for one in before)
        assert last.allowed is outcome.startswith("passes with a warning") is bool(last.warning)
        assert last.allowed or outcome.startswith("429")


def test_steps() -> None:
    """The fourth failure of a call is blocked, another call passes at once, and a repeat is blocked for longer (LD-4)."""
    here, talk = world(), conversation()

    def ask(talk: Conversation) -> Reply:
        body = json.dumps(talk.request()).encode()
        return here.ask(about(CHAT, "POST", {"authorization": "Bearer sk-one"}, body=body))

    def fail(path: str = "config.yml") -> Conversation:
        return talk.tool("read", {"path": path}, f"Error: {path}: no such file", failed=True)

    replies = [ask(talk)]
    for _ in range(4):  # t=3 to 12
        here.clock.advance(3)
        replies.append(ask(fail()))
    warnings = ["X-Breakloop-Warning: loop_detected" in lines(one) for one in replies]
    assert ([one.status for one in replies], warnings) == ([200] * 4 + [429], [False, False, True, True, False])
    assert b"Blocked: the same call of `read` failed 4 times. Read the error again, " in replies[4].body
    here.clock.advance(3)
    other = conversation().tool("read", {"path": "a.yml"}, "port: 8080")
    assert ask(other).status == 200
    here.clock.advance(27)  # t=42
    again = [ask(talk), ask(fail())]
    assert [one.status for one in again] == [200, 429]
    assert header(again[1], "Retry-After") == "60"


def test_steering() -> None:
    """Notes from the fourth on, and the seventh is denied (LD-5)."""
    blocks = [tail(max_hits=3, action="steer"), tail(max_hits=6, action="reject"), {"similarity": "steps"}]
    verdicts = each_second(world({**bundle(), "defaults": {"loop_detection": blocks}}), chat(), 7)
    counts = [re.findall(r"the same request (\d) times", one.note) for one in verdicts]
    assert counts == [[], [], [], ["4"], ["5"], ["6"], []]
    assert (verdicts[6].reason, verdicts[6].retry_after_s) == ("loop_detected", 30)
    shown = block("docs/how-to/steer.md", "[breakloop]")
    assert shown == f"[breakloop] {verdicts[3].note} [/breakloop]\n"


def test_landing() -> None:
    """The sixth request is denied without `land`; with it, it and the next are landed (LD-10)."""

    def decided(**steps: Any) -> list[Verdict]:
        here = world({**bundle(), "defaults": {"loop_detection": [tail(), {"similarity": "steps", **steps}]}})
        task, verdicts = [user("How many orders has customer 4711?")], []
        for number in range(8):
            verdicts += each_second(here, chat(*task, headers={"x-agent-session": "run-1"}), 1)
            made = {"name": "find_orders", "arguments": '{"customer": 4711}'}
            task += [
                {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": made}]},
                {"role": "tool", "tool_call_id": f"c{number}", "content": "There are no orders of this customer."},
            ]
        return verdicts

    assert [one.allowed for one in decided()] == [True] * 5 + [False] * 3
    landed = decided(ladder={"notice": "warn", "block": "land", "stop": "reject"})
    assert [(one.allowed, one.landed) for one in landed] == [(True, False)] * 5 + [(True, True)] * 2 + [(False, False)]
    assert block("docs/how-to/land.md", "[breakloop]") == f"[breakloop] {landed[5].note} [/breakloop]\n"


def test_stream_guard() -> None:
    """A sentence of 79 characters is cut at the 16th time (LD-8)."""
    sentence = "I should check the configuration file again before I go on with the migration. "
    assert len(sentence) == 79
    probe = StreamProbe()
    cut = next(times for times in range(1, 100) if probe.feed(sentence))
    assert (cut, probe.period, probe.times) == (16, 79, 16)
    shown = block("docs/explanation/stream-guard.md", "a sentence")
    assert f"the same {probe.period} characters {probe.times} times" in shown


def test_guarded_tool(clock: FakeClock) -> None:
    """When a tool is warned about, stopped, and not run at all (LD-4)."""
    guard, ran = Guard(clock=clock), 0

    @guard.tool(on_block="return")
    def search(query: str) -> str:
        nonlocal ran
        ran += 1
        return "no results"

    with guard.run():
        said = [search("x") for _ in range(6)]
    assert said[:2] == ["no results"] * 2
    printed = "[breakloop] You repeat yourself: `search` returned the same 10 bytes 3 times"
    assert printed in said[2]
    assert printed in block("docs/how-to/python-guard.md", "call 1")
    assert [one.startswith("Blocked") for one in said[3:]] == [False, True, True]
    assert ran == 5
