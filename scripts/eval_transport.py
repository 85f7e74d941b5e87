"""Recorded sessions as other clients would send them: without names, and several at once over one key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from breakloop.replay.run import SPACING_S
from breakloop.replay.sessions import RecordedTurn, SessionSlice

MIXED = 5  # sessions at once


def named(pieces: Iterable[SessionSlice]) -> Iterator[SessionSlice]:
    """Yield the sessions as they are: the client names its session and its agents."""
    yield from pieces


def derived(pieces: Iterable[SessionSlice]) -> Iterator[SessionSlice]:
    """Yield the sessions without any name: only the base URL of the client was changed."""
    for session, turns, whole in pieces:
        unnamed = replace(session, named=False, agent="")
        yield SessionSlice(unnamed, [replace(turn, agent="") for turn in turns], whole)


def mixed(pieces: Iterable[SessionSlice]) -> Iterator[SessionSlice]:
    """Yield sessions without names, `MIXED` of one source at a time through one gateway, in order of time. They begin
    shortly after each other, so that their turns alternate."""
    number = 0
    for _, of_source in groupby(derived(pieces), key=lambda piece: piece.session.source):
        group: list[SessionSlice] = []
        for piece in of_source:
            group.append(piece)
            if len(group) == MIXED:
                yield from _interleave(group, f"mixed {number}")
                number, group = number + 1, []
        yield from _interleave(group, f"mixed {number}")
        number += 1


def _interleave(group: Sequence[SessionSlice], gateway: str) -> Iterator[SessionSlice]:
    timed: list[tuple[float, int, int, RecordedTurn]] = []
    for place, (_, turns, _) in enumerate(group):
        at_s = place * SPACING_S / MIXED - SPACING_S
        for number, turn in enumerate(turns):
            at_s = at_s + SPACING_S if turn.at_s is None else max(at_s, place * SPACING_S / MIXED + turn.at_s)
            timed.append((at_s, place, number, replace(turn, at_s=at_s)))
    timed.sort(key=lambda one: one[:3])
    for _, place, number, turn in timed:
        session, turns, _ = group[place]
        yield SessionSlice(replace(session, gateway=gateway), [turn], whole=number == len(turns) - 1)


TRANSPORTS: dict[str, Callable[[Iterable[SessionSlice]], Iterator[SessionSlice]]] = {
    "named": named,
    "derived": derived,
    "mixed": mixed,
}
