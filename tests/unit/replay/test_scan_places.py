"""Finding transcripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakloop.replay.scan import find, usual


def make(path: Path, text: str = "{}", at: float = 1000.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def names(root: Path) -> list[str]:
    return [Path(one.name).relative_to(root).as_posix() for one in find(root)[0]]


def test_by_their_names_to_the_bottom(tmp_path: Path) -> None:
    """The oldest first, so that a session is read before the one that resumes it (X-6)."""
    for name in ("b.jsonl", "a/x.traj", "a/b/c/y.JSON", "z.ndjson", "q.jsonl.gz"):
        make(tmp_path / name)
    make(tmp_path / "a/first.jsonl", at=10.0)
    for name in ("a/notes.txt", "a/b/picture.png", "node_modules/p.json", ".git/c.json", "jsonl"):
        make(tmp_path / name)
    make(tmp_path / "empty.jsonl", "")
    assert names(tmp_path) == ["a/first.jsonl", "a/b/c/y.JSON", "a/x.traj", "b.jsonl", "q.jsonl.gz", "z.ndjson"]


def test_a_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    """Somebody asked for it (X-6)."""
    path = make(tmp_path / "log.txt")
    (one,), trouble = find(path)
    assert (one.files, one.size, one.named, trouble) == ((path,), 2, True, [])


def test_folders_of_events_are_one_transcript(tmp_path: Path) -> None:
    """In the order of their numbers, both ways of naming them (X-6)."""
    for number in (0, 1, 2, 10):
        make(tmp_path / f"s/events/{number}.json")
    for number in (0, 1):
        make(tmp_path / f"c/events/event-0000{number}-0f3a-4b.json")
    make(tmp_path / "s/event_cache/0-25.json")
    found = {Path(one.name).relative_to(tmp_path).as_posix(): one for one in find(tmp_path)[0]}
    assert list(found) == ["c/events", "s/events"]
    assert [path.name for path in found["s/events"].files] == ["0.json", "1.json", "2.json", "10.json"]
    assert found["s/events"].size == 8


def test_a_folder_called_events_may_be_any_folder(tmp_path: Path) -> None:
    """A folder called events may be any folder (X-6)."""
    make(tmp_path / "events/day.jsonl")
    assert names(tmp_path) == ["events/day.jsonl"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    """A loop of links ends, and one file under two names is read once (X-6)."""
    make(tmp_path / "a/x.jsonl")
    (tmp_path / "a/up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a/x.jsonl")
    (tmp_path / "dead.jsonl").symlink_to(tmp_path / "gone")
    assert len(find(tmp_path)[0]) == 1


def test_what_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the rest is looked at (X-6)."""
    make(tmp_path / "closed/x.jsonl")
    make(tmp_path / "open/y.jsonl")
    listed = Path.iterdir

    def iterdir(self: Path) -> object:
        if self.name == "closed":
            raise PermissionError(13, "Permission denied")
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found, trouble = find(tmp_path)
    assert [Path(one.name).name for one in found] == ["y.jsonl"]
    assert trouble == [f"{tmp_path / 'closed'}: cannot be read: Permission denied"]


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    """Is the caller's to tell (X-6)."""
    with pytest.raises(FileNotFoundError):
        find(tmp_path / "gone")


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    """They would never end (X-6)."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert find(tmp_path) == ([], [])


def test_the_usual_places(tmp_path: Path) -> None:
    """Those that there are, with whose they are (X-6)."""
    assert usual(tmp_path) == []
    for name in (".claude/projects", ".codex/sessions"):
        (tmp_path / name).mkdir(parents=True)
    assert usual(tmp_path) == [
        ("Claude Code", tmp_path / ".claude/projects"),
        ("Codex", tmp_path / ".codex/sessions"),
    ]
