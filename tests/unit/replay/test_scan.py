"""Loops in transcripts, through the real engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from breakloop.replay.scan import Scan, ScanFinding, ScanResult, find, summary
from breakloop.replay.sessions import ModelPricing
from tests.unit.replay import transcripts
from tests.unit.replay.recorded import rig
from tests.unit.replay.transcripts import FINE, STUCK, write

BOTH = "[{similarity: steps}, {similarity: tail}]"


def scan(path: Path) -> tuple[list[ScanResult], Scan]:
    made = Scan(rig(BOTH), ModelPricing(3.0, 15.0))
    return list(made.sessions(find(path)[0])), made


def claude(path: Path) -> None:
    write(path / "p/s.jsonl", transcripts.claude([*FINE, *STUCK]))


def codex(path: Path) -> None:
    write(path / "2026/03/rollout-1.jsonl", transcripts.rollout([*FINE, *STUCK]))


def openhands(path: Path) -> None:
    for number, event in enumerate(transcripts.openhands([*FINE, *STUCK])):
        file = path / f"sid/events/{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(event, indent=2))


def openhands_sdk(path: Path) -> None:
    (path / "trajectory.json").write_text(json.dumps(list(transcripts.openhands_sdk([*FINE, *STUCK]))))


def swe_agent(path: Path) -> None:
    (path / "run.traj").write_text(json.dumps(transcripts.trajectory([*FINE, *STUCK]), indent=2))


def chat(path: Path) -> None:
    write(path / "chat.jsonl", [transcripts.conversation([*FINE, *STUCK])])


@pytest.mark.parametrize("make", [claude, codex, openhands, openhands_sdk, swe_agent, chat])
def test_the_stuck_agent_is_found_in_every_format(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Where it begins, where it would have been stopped, and what it cost from there (X-6, LD-4)."""
    make(tmp_path)
    (found,), made = scan(tmp_path)
    assert (made.files.read, made.files.skipped, made.files.problems) == (1, 0, [])
    assert found.outcome.timeline is not None
    (loop,) = found.outcome.timeline.loops
    assert loop.first == len(FINE) + 1
    assert loop.block is not None
    assert len(FINE) + 3 <= loop.block <= len(FINE) + 6
    assert loop.last >= len(FINE) + len(STUCK) - 1
    assert "times" in loop.evidence
    assert 0 < loop.after.tokens < loop.spent.tokens < found.outcome.spent.tokens
    assert loop.after.money is not None
    assert transcripts.SECRET not in repr(found.outcome.timeline)


def test_healthy_work_is_left_alone(tmp_path: Path) -> None:
    """Healthy work is left alone (X-6)."""
    write(tmp_path / "a.jsonl", transcripts.claude(FINE))
    write(tmp_path / "b.jsonl", transcripts.rollout(FINE))
    found, _ = scan(tmp_path)
    assert [one.outcome.timeline for one in found] == [None, None]
    assert [(one.format, one.outcome.model, one.outcome.turns) for one in found] == [
        ("claude-code", "claude-opus-4-5", 5),
        ("codex", "gpt-5-codex", 5),
    ]


def test_a_loop_over_compactions_is_one_loop(tmp_path: Path) -> None:
    """A summary before every third step resets nothing, and the compactions are reported themselves (X-6, LD-4)."""

    def compacted(session: str, steps: Sequence[transcripts.Step]) -> Iterator[transcripts.Record]:
        boundary = {"type": "system", "subtype": "compact_boundary", "sessionId": session, "content": "compacted"}
        for number, record in enumerate(transcripts.claude(steps, session)):
            if number > 8 and number % 9 == 2:
                words = f"The work is continued from a previous conversation. Part {number}: {number * 7}."
                summary = {"role": "user", "content": words}
                yield boundary
                yield {"type": "user", "uuid": f"c{number}", "sessionId": session, "message": summary}
            yield record

    write(tmp_path / "a.jsonl", compacted("a", [*FINE, *[("cat notes.md", "The notes are empty so far.")] * 14]))
    write(tmp_path / "b.jsonl", compacted("b", [(f"cat {at}.md", f"page {at}: {at * 77} lines") for at in range(20)]))
    found, _ = scan(tmp_path)
    stuck, thrashing = (one.outcome.timeline for one in found)
    assert stuck is not None
    assert stuck.loops[0].kind == "repeat"
    assert stuck.loops[0].block is not None
    assert thrashing is not None
    assert [loop.kind for loop in thrashing.loops] == ["thrash"]


def test_a_resumed_session_is_counted_once(tmp_path: Path) -> None:
    """It begins with a copy of the old one, in a file of its own; sessions of copies alone are none (X-6)."""
    old = list(transcripts.claude([*FINE, *STUCK], "old"))
    more = [{**one, "sessionId": "new"} for one in transcripts.claude(FINE, "x")][2:]
    write(tmp_path / "1.jsonl", old)
    write(tmp_path / "2.jsonl", [*old, *more])
    write(tmp_path / "3.jsonl", old)
    found, made = scan(tmp_path)
    assert [(one.outcome.session.id, one.outcome.turns) for one in found] == [("old", 19), ("new", 5)]
    assert made.files.read == 3


def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    """File, line and reason (X-6)."""
    good = transcripts.lines(transcripts.claude(FINE))
    (tmp_path / "a.jsonl").write_text(good + '{"type": "user"\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"type": \x00\x01\x02\n' * 3)
    (tmp_path / "c.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "d.json").write_text('{"name": "package"}')
    write(tmp_path / "e.jsonl", transcripts.rollout(FINE))
    found, made = scan(tmp_path)
    assert [one.outcome.turns for one in found] == [5, 5]
    assert (made.files.read, made.files.others, made.files.skipped) == (2, 2, 2)
    assert made.files.problems == [
        f"{tmp_path}/a.jsonl: line 18: is not JSON",
        f"{tmp_path}/b.jsonl: is neither JSON Lines nor a JSON document",
    ]


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    """Between looking and reading (X-6)."""
    made = Scan(rig(BOTH))
    assert list(made.sessions([ScanFinding("gone", (tmp_path / "gone",), 1, 0.0)])) == []
    assert made.files.problems == ["gone: cannot be read: No such file or directory"]


def test_a_file_that_was_named_and_is_none(tmp_path: Path) -> None:
    """Is told; one that was only found is not (X-6)."""
    path = tmp_path / "a.txt"
    path.write_text("hello\n")
    _, made = scan(path)
    assert made.files.problems == [f"{path}: is neither JSON Lines nor a JSON document"]
    path.write_text('{"a": 1}\n')
    _, made = scan(path)
    assert made.files.problems[0].startswith(f"{path}: contains no recorded session or request")


def test_how_far_it_is(tmp_path: Path) -> None:
    """In bytes of all files together (X-3)."""
    write(tmp_path / "a.jsonl", transcripts.claude(FINE))
    write(tmp_path / "b.jsonl", transcripts.claude(STUCK, "b"))
    told: list[int] = []
    files = find(tmp_path)[0]
    list(Scan(rig(BOTH)).sessions(files, told.append))
    assert told == sorted(told)
    assert told[-1] == sum(one.size for one in files)


def test_what_it_adds_up_to(tmp_path: Path) -> None:
    """Only what would have been stopped counts as a loop (X-6)."""
    write(tmp_path / "a.jsonl", transcripts.claude([*FINE, *STUCK], "a"))
    write(tmp_path / "b.jsonl", transcripts.claude(FINE, "b"))
    write(tmp_path / "c.jsonl", transcripts.claude([*FINE, *STUCK[:3]], "c"))
    scanned, _ = scan(tmp_path)
    found = summary(scanned)
    assert (found.sessions, found.turns, found.looping, found.noticed, found.loops) == (3, 32, 1, 1, 1)
    assert 10 <= found.loop_turns <= 14
    assert found.after.tokens < found.inside.tokens < found.spent.tokens == 32 * 1050
