"""What several transcripts show together: agents that start each other, and runs that are started again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from breakloop.replay.across import AcrossFinding, across_json
from breakloop.replay.scan import Scan, find
from breakloop.replay.sessions import ModelPricing
from tests.unit.replay.recorded import rig
from tests.unit.replay.transcripts import Record, stamp, write

STEPS = "[{similarity: steps}]"
PLACES = ("harbour", "station", "market", "tower", "bridge", "museum", "theatre", "garden", "school", "library")


def across(path: Path) -> list[AcrossFinding]:
    made = Scan(rig(STEPS), ModelPricing(3.0, 15.0))
    list(made.sessions(find(path)[0]))
    return made.across.findings()


def claude(
    session: str,
    at_s: float,
    prompt: str,
    *,
    agent: str = "",
    starts: Sequence[str] = (),
    lasts_s: float = 20.0,
    read: str = "All is well.",
    said: str = "Nothing to report.",
) -> Iterator[Record]:
    """A session of Claude Code, or one of its sub-agents: a prompt, a call with its result, and an answer."""
    same: Record = {"sessionId": session, "isSidechain": bool(agent), "version": "2.1.325"}
    same |= {"agentId": agent} if agent else {}
    name = f"{session}{agent}"

    def answer(number: int, at: float, *blocks: Record) -> Record:
        usage = {"input_tokens": 1000, "output_tokens": 100}
        head = {"id": f"msg_{name}_{number}", "role": "assistant", "model": "claude-opus-4-5", "usage": usage}
        line = {"type": "assistant", "uuid": f"{name}-a{number}", "timestamp": stamp(at), **same}
        return {**line, "message": {**head, "content": list(blocks)}}

    def heard(number: int, at: float, content: Any, **more: Any) -> Record:
        line = {"type": "user", "uuid": f"{name}-u{number}", "timestamp": stamp(at), **same, **more}
        return {**line, "message": {"role": "user", "content": content}}

    def result(number: int, content: str) -> Record:
        return {"type": "tool_result", "tool_use_id": f"toolu_{name}_{number}", "content": content}

    yield heard(0, at_s, prompt)
    yield answer(0, at_s, {"type": "tool_use", "id": f"toolu_{name}_0", "name": "Read", "input": {"file": prompt}})
    yield heard(1, at_s + 1, [result(0, read)])
    for number, child in enumerate(starts, 2):
        call = {"type": "tool_use", "id": f"toolu_{name}_{number}", "name": "Agent", "input": {"prompt": child}}
        yield answer(number, at_s + 1, call)
        told = {"isAsync": True, "status": "async_launched", "agentId": child}
        yield heard(number, at_s + 1, [result(number, f"{child} launched")], toolUseResult=told)
    yield answer(99, at_s + lasts_s, {"type": "text", "text": said})


def tree(path: Path, levels: Sequence[int], *, every_s: float = 1.0, lasts_s: float = 500.0) -> None:
    """Write a session whose sub-agents start others: so many at each level, in different words."""
    above, number = [""], 0
    started: dict[str, list[str]] = {"": []}
    for count in levels:
        here = [f"agent{number + one:04}" for one in range(count)]
        for one, name in enumerate(here):
            started[above[one % len(above)]].append(name)
            started[name] = []
        above, number = here, number + count
    for position, (name, children) in enumerate(started.items()):
        task = (
            f"Look at part {position} of the {PLACES[position % 10]}, and describe the {PLACES[position // 10 % 10]}."
        )
        file = path / ("s.jsonl" if not name else f"s/subagents/agent-{name}.jsonl")
        told = claude(
            "s", position * every_s, task, agent=name, starts=children, lasts_s=lasts_s, said=f"Part {position}."
        )
        write(file, told)


def test_fan_out_of_sub_agents_is_found(tmp_path: Path) -> None:
    """2, 10, 50 and 200 of them, each with another task: the 61st is not started, nor are those below it (LD-12, X-6)."""
    tree(tmp_path, (2, 10, 50, 200), every_s=2.0, lasts_s=550.0)
    found, *_ = across(tmp_path)
    assert (found.kind, found.first_block) == ("tree", "s/agent0059")
    assert found.evidence.startswith("61 agents of one tree are at work (1 > 2 > 10 > 48 by depth, 61 in total; ")
    assert len(found.denied) == 262 - 59
    assert found.saved.tokens > 0
    (line, *_) = across_json([found])
    assert (line["first_block"], line["blocked_sessions"], line["cost_usd"] > 0) == ("s/agent0059", 203, True)


def test_recursion_is_found(tmp_path: Path) -> None:
    """Each sub-agent starts one: by what the calls of their parents returned, the ninth is too deep (LD-12, X-6)."""
    tree(tmp_path, (1,) * 50)
    found, *_ = across(tmp_path)
    assert (found.kind, found.first_block, len(found.denied)) == ("tree", "s/agent0007", 43)
    assert found.evidence.startswith("agents start agents, 9 deep")


def test_orchestrators_are_not_reported(tmp_path: Path) -> None:
    """Eight children, and a hundred one after the other with eight at work (LD-12, X-6)."""
    tree(tmp_path / "eight", (8,))
    tree(tmp_path / "hundred", (100,), every_s=10.0, lasts_s=75.0)
    assert across(tmp_path / "eight") == []
    assert across(tmp_path / "hundred") == []


def test_threads_of_codex_are_a_tree(tmp_path: Path) -> None:
    """By the parent in the first line of a rollout (LD-12, X-6)."""

    def rollout(number: int) -> Iterator[Record]:
        def line(kind: str, at_s: float, **payload: Any) -> Record:
            return {"timestamp": stamp(at_s), "type": kind, "payload": payload}

        spawn = {"parent_thread_id": f"t-{number - 1}", "depth": number}
        source: Any = {"subagent": {"thread_spawn": spawn}} if number else "cli"
        yield line("session_meta", number, id=f"t-{number}", source=source)
        yield line("turn_context", number, model="gpt-5-codex")
        task = [{"type": "input_text", "text": f"Work on part {number}, the {PLACES[number % 10]}, please."}]
        yield line("response_item", number, type="message", role="user", content=task)
        call = {"type": "function_call", "name": "spawn_agent", "arguments": "{}", "call_id": f"call_{number}"}
        yield line("response_item", number + 0.5, **call)
        yield line("response_item", 90, type="function_call_output", call_id=f"call_{number}", output="done")
        said = [{"type": "output_text", "text": f"Part {number} is done."}]
        yield line("response_item", 100 - number, type="message", role="assistant", content=said)

    for number in range(12):
        write(tmp_path / f"2026/03/rollout-{number}.jsonl", rollout(number))
    found, *_ = across(tmp_path)
    assert (found.kind, found.first_block, len(found.denied)) == ("tree", "t-8", 4)


def reviews(path: Path, count: int, every_s: float = 300.0, **how: Any) -> None:
    for number in range(count):
        varied = {name: value.format(number) for name, value in how.items()}
        prompt = "Review commit 4f21c9ab of the shop, and report what is wrong."
        write(path / f"r{number:03}.jsonl", claude(f"r{number:03}", number * every_s, prompt, **varied))


def test_runs_that_are_started_again_are_found(tmp_path: Path) -> None:
    """41 equal reviews, five minutes apart: reported at the 8th, and the 16th would not have been started. A heartbeat
    of 20 is reported only (LD-11, X-6)."""
    reviews(tmp_path / "reviews", 41)
    (found,) = across(tmp_path / "reviews")
    assert (found.kind, found.first_notice, found.first_block) == ("rerun", "r007", "r015")
    assert (
        found.evidence == "the same run was started 16 times in 75 minutes with the same outcome; about 16,500 tokens"
    )
    assert len(found.denied) == 26
    beat = "HEARTBEAT: look at the list of tasks, and do what is due."
    for number in range(20):
        write(tmp_path / f"beats/h{number:02}.jsonl", claude(f"h{number:02}", number * 300, beat))
    (found,) = across(tmp_path / "beats")
    assert (found.kind, found.first_notice, found.first_block, found.denied) == ("rerun", "h07", "", [])


def test_runs_that_find_something_else_are_not_reported(tmp_path: Path) -> None:
    """Other answers, other results, or a day between them (LD-11, X-6)."""
    reviews(tmp_path / "answers", 20, said="I found {} remarks in the change of today.")
    reviews(tmp_path / "results", 20, read="The checks of run number {} have passed, and took that many minutes.")
    reviews(tmp_path / "days", 20, every_s=86_400)
    for name in ("answers", "results", "days"):
        assert across(tmp_path / name) == [], name
