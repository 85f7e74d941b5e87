"""What `doctor` says about kept counters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakloop.cli.doctor import examine_state
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from tests.durable_state import Life, state_file


def says(folder: Path, clock: FakeClock, **values: object) -> list[str]:
    settings = Settings.model_validate({"data_dir": str(folder), **values})
    return [f"{one.level} {one.about}: {one.message}" for one in examine_state(settings, clock)]


def test_nothing_to_say(tmp_path: Path, clock: FakeClock) -> None:
    """Before the first start there is no file, and no word (T-1)."""
    assert says(tmp_path, clock) == []
    assert says(tmp_path / "nowhere", clock) == []


def test_how_much_and_how_old(tmp_path: Path, clock: FakeClock) -> None:
    """A good file is a note. Its time is that of its content: writes that fail on a full disk change the file (T-1)."""
    life = Life(tmp_path, clock)
    for number in range(1234):
        life.spend(f"tpd:{number}")
    life.end()
    for more_s, ago in ((3.0, "3 s"), (297.0, "5 min"), (6900.0, "2 h"), (165_600.0, "2 d")):
        clock.advance(more_s)
        os.utime(state_file(tmp_path), (clock.now(),) * 2)
        (line,) = says(tmp_path, clock)
        assert line == (
            f"note data_dir: {state_file(tmp_path)} stores the counters: up to 1,234 entries, 0.1 MB, the last of {ago} ago"
        )


def test_a_file_that_will_be_set_aside(tmp_path: Path, clock: FakeClock) -> None:
    """Said beforehand, and what was set aside before is named (T-1)."""
    state_file(tmp_path).write_bytes(b"nonsense" * 1000)
    (line,) = says(tmp_path, clock)
    assert line.startswith(f"warning data_dir: {state_file(tmp_path)} cannot be used (file is not a database): the")
    Life(tmp_path, clock).end()
    _, line = says(tmp_path, clock)
    assert line == "note data_dir: contains state.db.damaged-1: unusable state files; inspect or delete them"


def test_a_directory_in_its_place(tmp_path: Path, clock: FakeClock) -> None:
    """A directory in its place: no traceback (T-1)."""
    state_file(tmp_path).mkdir()
    (line,) = says(tmp_path, clock)
    assert line.startswith("warning data_dir: ")


NO_CLUSTER = "agent has no effect, because `state` is not a cluster; limits shared by agents need an extra script call"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("memory://", ["agent has no effect with memory://"]),
        (
            "redis://h:1/0",
            [NO_CLUSTER],
        ),
        ("redis+cluster://h:1/", []),
    ],
)
def test_agents_are_spread_over_a_cluster(tmp_path: Path, clock: FakeClock, state: str, said: list[str]) -> None:
    """`shard_by: agent` is for nothing else (T-1, E-5)."""
    settings = Settings(data_dir=str(tmp_path), state=state, shard_by="agent")
    assert [one.message for one in examine_state(settings, clock) if one.about == "shard_by"] == said
