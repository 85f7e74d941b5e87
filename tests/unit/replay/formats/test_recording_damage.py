"""Damaged transcripts: whatever stands where something else should be, nothing breaks and the rest is read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakloop.replay.formats.recording import Recording, RecordingError
from tests.unit.replay import transcripts

STEPS = [*transcripts.FINE, *transcripts.STUCK[:3]]
WHOLE: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "claude-code": lambda: list(transcripts.claude(STEPS)),
    "codex": lambda: list(transcripts.rollout(STEPS)),
    "openhands": lambda: list(transcripts.openhands(STEPS)),
    "openhands sdk": lambda: list(transcripts.openhands_sdk(STEPS)),
    "swe-agent": lambda: [transcripts.trajectory(STEPS)] * 3,
    "chat": lambda: [transcripts.conversation(STEPS), transcripts.conversation(transcripts.FINE)],
}
STRANGE: tuple[Any, ...] = (None, True, -1, 1e300, "", "x", "\ud800", [], [None], [[1]], {}, {"type": []}, {"id": {}})


def turns(content: bytes) -> int:
    recording = Recording(io.BufferedReader(io.BytesIO(content)), "file")
    try:
        return sum(len(piece.turns) for piece in recording.pieces())
    except RecordingError:
        return 0


def spoiled(value: Any, chance: Any, share: float) -> Any:
    if chance.random() < share:
        return chance.choice(STRANGE)
    if isinstance(value, dict):
        return {name: spoiled(one, chance, share) for name, one in value.items()}
    return [spoiled(one, chance, share) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=60, deadline=None)
@given(chance=st.randoms(use_true_random=False), share=st.sampled_from((0.002, 0.02, 0.2)))
def test_values_of_other_types_break_nothing(name: str, chance: Any, share: float) -> None:
    """Whatever types the fields have (X-6)."""
    records = [spoiled(record, chance, share) for record in WHOLE[name]()]
    count = turns("".join(json.dumps(one) + "\n" for one in records).encode())
    assert 0 <= count <= 3 * len(STEPS) + 3


@pytest.mark.parametrize("name", WHOLE)
def test_cut_off_anywhere(name: str) -> None:
    """A program that died while it wrote leaves half a line; what stands before it is read (X-6)."""
    content = "".join(json.dumps(one) + "\n" for one in WHOLE[name]()).encode()
    found = [turns(content[:end]) for end in range(0, len(content), max(len(content) // 60, 1))]
    assert found == sorted(found)
    assert turns(content) >= found[-1] >= 0


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_rubbish_between_the_lines(name: str) -> None:
    """Binary, half a character, and a line that is no object are passed over and counted (X-6)."""
    lines = [json.dumps(one).encode() for one in WHOLE[name]()]
    rubbish = [b"\x00\x01\x02\xff", b'{"type": "user", "mess', b"[1, 2]", b'"text"', b"\xed\xa0\x80"]
    mixed = [line for pair in zip(lines, rubbish * len(lines), strict=False) for line in pair]
    recording = Recording(io.BufferedReader(io.BytesIO(b"\n".join(mixed))), "file")
    assert sum(len(piece.turns) for piece in recording.pieces()) == turns(b"\n".join(lines)) == len(STEPS)
    assert recording.skipped >= len(lines)
    assert recording.problems[0] == "line 2: is not JSON"
