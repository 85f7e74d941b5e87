"""`make photograph`: the record is steady, does not depend on names, and a comparison finds what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.photograph import compare
from scripts.photograph_bundles import BUILTIN, BUNDLES
from scripts.photograph_gateway import masked, parsed
from scripts.photograph_surface import shape_lines
from scripts.photograph_verdicts import camera, is_plain, scripted, session_lines


def written(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_equal_records_are_equal(tmp_path: Path) -> None:
    old, new = (written(tmp_path / name, verdicts="a\nb\n", timing="1 ms") for name in ("old", "new"))
    assert compare(old, new, []) == 0


@pytest.mark.parametrize("files", [{"verdicts": "a\nc\n"}, {"verdicts": "a\nb\n", "more": ""}, {}])
def test_a_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str]) -> None:
    """A line, a file too many, a file too few."""
    old, new = written(tmp_path / "old", verdicts="a\nb\n"), written(tmp_path / "new", **files)
    assert compare(old, new, []) == 1
    assert "1 different" in capsys.readouterr().out
    assert compare(old, new, ["*.txt"]) == 0


def test_measurements_are_no_difference_and_packages_are(tmp_path: Path) -> None:
    old = written(tmp_path / "old", imports="x: packages click\nx: own modules 5", timing="x: 5 ms")
    moved = written(tmp_path / "moved", imports="x: packages click\nx: own modules 3", timing="x: 9 ms")
    heavier = written(tmp_path / "heavier", imports="x: packages click rich\nx: own modules 5", timing="x: 5 ms")
    assert compare(old, moved, []) == 0
    assert compare(old, heavier, []) == 1


def test_missing_folders_are_an_error(tmp_path: Path) -> None:
    assert compare(tmp_path / "none", tmp_path, []) == 2


@pytest.mark.parametrize("name", BUNDLES)
def test_the_same_sessions_give_the_same_text(name: str) -> None:
    """Two engines of one process; that two processes agree is what `make photograph-compare` shows."""
    for title, pieces in list(scripted())[:4]:
        first, second = (list(session_lines(title, camera(name).photograph(pieces)[0])) for _ in range(2))
        assert first == second


def test_a_session_shows_what_is_not_plain() -> None:
    turns, _ = camera(BUILTIN).photograph(dict(scripted())["openai_chat named"])
    lines = list(session_lines("s", turns))
    assert len(lines) < len(turns)
    assert any('"reason": "loop_detected"' in line and "Retry-After" in line for line in lines)
    next(turn for turn in turns if is_plain(turn))["status"] = 201
    changed = list(session_lines("s", turns))
    assert changed[0] != lines[0], "the digest is of every turn"
    assert changed[1:] == lines[1:]


def test_names_of_definitions_do_not_matter() -> None:
    def document(name: str, kind: str) -> dict[str, object]:
        definition = {"title": name, "type": kind}
        return {"properties": {"a": {"$ref": f"#/$defs/{name}", "description": "d"}}, "$defs": {name: definition}}

    assert shape_lines(document("Old", "object")) == shape_lines(document("New", "object"))
    assert shape_lines(document("Old", "object")) != shape_lines(document("Old", "string"))


def test_masks_leave_what_matters() -> None:
    assert masked("Retry-After: 30") == "Retry-After: *"
    assert masked('RateLimit: "p";r=0;t=12') == 'RateLimit: "p";r=0;t=*'
    assert masked("X-Breakloop-Reason: loop_detected") == "X-Breakloop-Reason: loop_detected"
    assert masked("seen in abc-1", "abc-1") == "seen in REQUEST-ID"


def test_answers_are_put_together() -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"
    assert parsed(data).body == b"abcde"
