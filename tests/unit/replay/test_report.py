"""Outcomes added up."""

from __future__ import annotations

import pytest

from breakloop.replay.report import (
    DetectionScore,
    differences,
    grouped,
    labelled_by,
    long_ones,
    saved_usd,
    score,
    session_json,
    spent,
    totals_json,
)
from breakloop.replay.run import SessionOutcome
from tests.unit.replay.recorded import session


def made(loop: bool | None, block: int | None, *, turns: int = 10, by: str = "", source: str = "") -> SessionOutcome:
    kind = "tail" if block else None
    blocks = turns - block + 1 if block else 0
    named = session(f"{loop}-{block}", loop=loop, by=by, source=source)
    return SessionOutcome(named, turns, first_block=block, kind=kind, blocks=blocks, saved_tokens=blocks * 100)


OUTCOMES = [
    made(True, 4, by="human", source="a"),
    made(True, 8, by="outcome", source="a", turns=20),
    made(True, None, by="outcome", source="b"),
    made(False, 5, source="b", turns=15),
    made(False, None, source="b"),
    made(False, None, source="b"),
    made(None, 2, source="c"),
]


def test_rates() -> None:
    """Precision, recall and false-positive rate of labelled sessions; the others do not count (X-5)."""
    found = score(OUTCOMES)
    assert found == DetectionScore(found=2, loops=3, wrong=1, healthy=3)
    assert (found.precision, found.recall, found.false_positive_rate) == (2 / 3, 2 / 3, 1 / 3)


def test_a_rate_of_nothing_is_none() -> None:
    """No loops among the labels is not a recall of zero (X-5)."""
    assert DetectionScore().as_json() == {
        "loops": 0,
        "found": 0,
        "healthy": 0,
        "wrong": 0,
        "precision": None,
        "recall": None,
        "false_positive_rate": None,
    }


def test_groups() -> None:
    """By who labelled the loops, by length, by source (X-5)."""
    assert score(labelled_by(OUTCOMES, "human")) == DetectionScore(1, 1, 1, 3)
    assert score(labelled_by(OUTCOMES, "human", "outcome")) == DetectionScore(2, 3, 1, 3)
    assert score(long_ones(OUTCOMES)) == DetectionScore(1, 1, 1, 1)
    assert {name: len(them) for name, them in grouped(OUTCOMES, lambda one: one.session.source).items()} == {
        "a": 2,
        "b": 4,
        "c": 1,
    }


def test_how_early() -> None:
    """The share of its turns that a loop had spent, healthy ones left out (X-5)."""
    assert spent(OUTCOMES) == pytest.approx(0.3)  # of 0.3, 0.35 and 0.1
    assert spent([made(False, 3)]) is None


def test_the_line_of_a_session() -> None:
    """The names that others build on (X-5, T-2)."""
    line = session_json(made(True, 4))
    assert {name: line[name] for name in ("id", "loop", "turns", "first_notice", "first_block", "kind")} == {
        "id": "True-4",
        "loop": True,
        "turns": 10,
        "first_notice": None,
        "first_block": 4,
        "kind": "tail",
    }
    assert "against" not in line
    assert session_json(made(None, None), made(None, 3))["against"] == {
        "first_notice": None,
        "first_block": 3,
        "kind": "tail",
    }


def test_denials_and_shadow_are_told_where_there_are_any() -> None:
    """A line has no empty fields for them (X-5)."""
    plain = session_json(made(None, None))
    assert "denied" not in plain
    assert "shadowed_turns" not in plain
    other = made(None, None)
    other.denied, other.shadowed = {"token_bucket_exceeded": 2}, 3
    assert (session_json(other)["denied"], session_json(other)["shadowed_turns"]) == ({"token_bucket_exceeded": 2}, 3)


def test_the_line_of_totals() -> None:
    """Counts, kinds, what was saved, and rates where there are labels (X-5)."""
    totals = totals_json(OUTCOMES)["totals"]
    assert (totals["sessions"], totals["turns"], totals["blocked"], totals["noticed"]) == (7, 85, 4, 0)
    assert totals["kinds"] == {"tail": 4}
    assert totals["blocked_turns"] == 7 + 13 + 11 + 9
    assert totals["saved_tokens_estimate"] == 4000
    assert totals["labelled"]["recall"] == 0.6667
    assert set(totals["labelled_by"]) == {"human", "outcome"}
    assert totals["sources"]["b"]["wrong"] == 1
    assert "labelled" not in totals_json([made(None, None)])["totals"]


def test_differences() -> None:
    """What one bundle blocks and the other does not, or not then (X-5)."""
    pairs = [
        (made(None, 3), made(None, None)),
        (made(None, None), made(None, 3)),
        (made(None, 3), made(None, 5)),
        (made(None, 5), made(None, 3)),
        (made(None, 5), made(None, 5)),
    ]
    found = differences(pairs)
    assert found == {"blocked_only": [pairs[0]], "not_blocked": [pairs[1]], "earlier": [pairs[2]], "later": [pairs[3]]}
    here, there = zip(*pairs, strict=True)
    totals = totals_json(here, there)["totals"]
    assert totals["differences"] == {"blocked_only": 1, "earlier": 1, "later": 1, "not_blocked": 1}
    assert totals["against"]["blocked"] == 4


def test_money_that_was_saved() -> None:
    """As far as prices are known; not a word about it where none is (X-5, L-5)."""
    known = SessionOutcome(session("a"), 10, blocks=2, saved_usd=0.25)
    also = SessionOutcome(session("b"), 10, blocks=2, saved_usd=0.125)
    unknown = SessionOutcome(session("c"), 10, blocks=2)
    assert saved_usd([known, also, unknown]) == 0.375
    assert session_json(known)["saved_usd_estimate"] == 0.25
    assert totals_json([known, also, unknown])["totals"]["saved_usd_estimate"] == 0.375
    assert "saved_usd_estimate" not in session_json(unknown) | totals_json([unknown])["totals"]
