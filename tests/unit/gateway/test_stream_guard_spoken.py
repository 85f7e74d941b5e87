"""How much was said in a stream, and when that is too much."""

from __future__ import annotations

import pytest

from breakloop.gateway.stream_guard import OPEN_MAX, CapReached, CompletionCounter, StreamRepetition
from breakloop.model.call import CompletionCap
from tests.unit.gateway.repeating import LOOPED, UNIT


def capped(tokens: int, told: str = "", answers: int = 1, heard: list[str] | None = None) -> CapReached:
    def tell(cap: CompletionCap, what: str) -> None:
        if heard is not None:
            heard.append(f"{cap.tokens} {what}")

    return CapReached(CompletionCap(tokens, "p", "r", cuts=not told), answers, tell, told)


@pytest.mark.parametrize(
    ("piece", "fits"),
    [
        ("abcd", 10),  # a token
        ("abc", 13),
        ("中", 13),  # counts three times
        ("é", 40),
    ],
)
def test_a_token_is_four_characters(piece: str, fits: int) -> None:
    """Exactly as much passes; one piece more is too much (L-3)."""
    spoken = CompletionCounter([capped(10)])
    for _ in range(fits):
        spoken.said(0, 0, piece)
    assert not spoken.found
    spoken.said(0, 0, piece)
    assert spoken.found


def test_thoughts_and_arguments_count() -> None:
    """They are paid for like what is said (L-3)."""
    spoken = CompletionCounter([capped(10)])
    spoken.said(0, 0, "x" * 10)
    spoken.thought(0, 1, "x" * 20)
    spoken.argued(0, "x" * 10)
    assert (spoken.found, spoken.chars, spoken.thought_chars) == (False, 40, 20)
    spoken.argued(0, "x")
    assert spoken.found


def test_all_answers_together() -> None:
    """A request for three may have three times as much, whoever of them says it (L-3)."""
    spoken = CompletionCounter([capped(10, answers=3)])
    for choice in (0, 1, 2):
        spoken.said(choice, 0, "x" * 40)
    assert (spoken.found, spoken.open) == (False, [0, 1, 2])
    spoken.ended(1)
    spoken.said(2, 0, "x")
    assert (spoken.found, spoken.open) == (True, [0, 2])


def test_several_caps() -> None:
    """The lower one comes first; each is told once (L-3, E-3)."""
    heard: list[str] = []
    spoken = CompletionCounter([capped(20, heard=heard), capped(10, "cut", heard=heard), capped(30, heard=heard)])
    spoken.said(0, 0, "x" * 41)
    (first,) = spoken.matters()
    assert (first.told, first.is_told) == ("cut", False)
    for _ in range(2):
        first.say("cut")
    assert (first.is_told, heard) == (True, ["10 cut"])
    spoken.said(0, 0, "x" * 40)
    assert [one.told for one in spoken.matters()] == ["cut", ""]
    spoken.said(0, 0, "x" * 4000)
    assert len(spoken.matters()) == 3


def test_the_stream_guard_hears_the_same() -> None:
    """Both on one stream (LD-8, L-3)."""
    spoken = CompletionCounter([capped(10_000)], StreamRepetition(lambda *_: None))
    for _ in range(LOOPED):
        spoken.thought(0, 0, UNIT)
        spoken.argued(0, UNIT)
    found = [spoken.found]
    (matter,) = spoken.matters()
    assert isinstance(matter, StreamRepetition)
    spoken.ended(0)
    found.append(spoken.found)
    for _ in range(LOOPED):
        spoken.said(1, 0, UNIT)
    assert [*found, spoken.found] == [True, False, True]


def test_answers_without_end_are_not_all_kept() -> None:
    """An upstream may number them as it likes (Y-2)."""
    spoken = CompletionCounter([])
    for choice in range(2 * OPEN_MAX):
        spoken.said(choice, 0, "x")
    assert (len(spoken.open), spoken.chars, spoken.found) == (OPEN_MAX, 2 * OPEN_MAX, False)
