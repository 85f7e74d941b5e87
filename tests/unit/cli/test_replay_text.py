"""What `breakloop replay` tells people."""

from __future__ import annotations

import pytest

from breakloop.cli.replay import tell, tell_differences
from breakloop.replay.run import SessionOutcome
from tests.unit.replay.recorded import session


def made(name: str, block: int | None = None, notice: int | None = None, *, loop: bool | None = None) -> SessionOutcome:
    seen = bool(block or notice)
    return SessionOutcome(
        session(name, loop=loop, source=name[0]),
        turns=20,
        first_notice=notice,
        first_block=block,
        kind="dry" if seen else None,
        evidence="nothing new for 8 turns" if seen else "",
        blocks=5 if block else 0,
        saved_tokens=12_345 if block else 0,
    )


def test_what_was_flagged_and_what_it_saved(capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks first, with kind and evidence; the saving is called an estimate (X-5)."""
    tell([made("a1", notice=3), made("b1", 9, 4), made("c1")], "policy.yaml")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["b1", "20", "4", "9", "dry", "nothing", "new", "for", "8", "turns"]
    assert lines[2].split()[:4] == ["a1", "20", "3", "-"]
    assert lines[4] == "3 sessions, 60 turns, evaluated with policy.yaml: 1 blocked, 1 noticed only"
    assert lines[5:] == ["kinds: dry 1", "saved: 12,345 tokens"]


def test_an_estimate_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens and money are of one source; one session without recorded tokens makes it an estimate (X-5, L-5)."""
    one, other = made("a1", 9), made("b1", 9)
    one.saved_usd = other.saved_usd = 0.25
    tell([one, other], "p")
    assert capsys.readouterr().out.endswith("saved: 24,690 tokens ($0.50)\n")
    other.saved_estimated = True
    tell([one, other], "p")
    assert capsys.readouterr().out.endswith(
        "saved: about 25,000 tokens ($0.50); where no tokens were recorded, four bytes count as one token\n"
    )


def test_rates_by_source_where_there_are_labels(capsys: pytest.CaptureFixture[str]) -> None:
    """Precision, recall, false positives (X-5)."""
    tell([made("a1", 5, loop=True), made("a2", loop=True), made("b1", loop=False), made("b2", 11, loop=False)], "p")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["all", "2", "1", "2", "1", "0.500", "0.500", "0.500"] in lines
    assert ["a", "2", "1", "0", "0", "1.000", "0.500", "-"] in lines
    assert ["b", "0", "0", "2", "1", "0.000", "-", "0.500"] in lines
    assert "before 20% of their turns" in " ".join(lines[-1])


def test_nothing_found_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing found is one line (X-5)."""
    tell([made("a1")], "the built-in protection")
    assert capsys.readouterr().out == (
        "1 session, 20 turns, evaluated with the built-in protection: 0 blocked, 0 noticed only\n"
    )


def test_limits_and_shadow_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Limits and shadow are told apart (X-5, E-1)."""
    one, other = made("a1"), made("a2")
    one.denied, other.denied, other.shadowed = {"token_bucket_exceeded": 2}, {"token_bucket_exceeded": 1}, 4
    tell([one, other], "p")
    said = capsys.readouterr().out
    assert "denied for token_bucket_exceeded: 3 turns\n" in said
    assert "policies in shadow mode would have acted in 4 turns\n" in said


def test_long_lists_and_long_names_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """--json has them all (X-5)."""
    tell([made("x" * 100, 3) for _ in range(25)], "p")
    said = capsys.readouterr().out
    assert "and 5 more (--json lists them)" in said
    assert "x" * 57 + "..." in said
    assert "x" * 58 not in said


def test_differences(capsys: pytest.CaptureFixture[str]) -> None:
    """What the other bundle says otherwise (X-5)."""
    tell_differences([made("a1", 5), made("a2", 3), made("a3")], [made("a1"), made("a2", 9), made("a3")], "q.yaml")
    said = capsys.readouterr().out
    assert "compared with q.yaml:" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["blocked", "by", "--policy", "only", "a1", "5", "-", "dry"] in lines
    assert ["blocked", "earlier", "by", "--policy", "a2", "3", "9", "dry"] in lines
    assert "a3" not in said
    tell_differences([made("a1")], [made("a1")], "q.yaml")
    assert capsys.readouterr().out == "\nno session has a different result with q.yaml\n"
    tell_differences([made(f"a{number}", 5) for number in range(22)], [made(f"a{number}") for number in range(22)], "q")
    assert "and 2 more" in capsys.readouterr().out


def test_what_would_have_been_landed(capsys: pytest.CaptureFixture[str]) -> None:
    """In a column of its own; a session that is landed would not have been blocked later (X-5, LD-10)."""
    one, other = made("a1", 8, 4), made("b1", 9)
    one.first_land, one.lands = 6, 2
    tell([one, other], "p")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["session", "turns", "notice", "land", "block"]
    assert [line.split()[:5] for line in lines[1:3]] == [["a1", "20", "4", "6", "8"], ["b1", "20", "-", "-", "9"]]
    assert "1 landed, 1 blocked, 0 noticed only" in lines[4]


def test_where_a_person_would_have_been_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """In a column of its own (X-5, K-6)."""
    one = made("a1", None, 4)
    one.first_pause = 6
    tell([one], "p")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines[:2]] == [
        ["session", "turns", "notice", "pause", "block"],
        ["a1", "20", "4", "6", "-"],
    ]
    assert "1 paused, 0 blocked, 0 noticed only" in lines[3]
