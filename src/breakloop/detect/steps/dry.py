"""`dry` and `novelty` (DETECTION): how long nothing new has come from outside. Own answers, copies of them between
agents of one session and messages seen before are not news; lines are compared by digest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import xxhash

from breakloop.detect.steps.finding import Finding
from breakloop.detect.steps.masks import own, shape, steady
from breakloop.detect.steps.prints import ACK, EMPTY, NONE, UNSEEN, Printer, Prints
from breakloop.detect.steps.window import COUNT_MAX, Window
from breakloop.model.step import Step

NEW_SHARE: Final = 0.4
NEW_WORDS: Final = 0.5
WORDS_MIN: Final = 4
_FLOW: Final = 0.25  # weight of the newest step in the moving average
_FLOW_LOW: Final = 0.1
_LONG_LINE: Final = 300
_LINES_MAX: Final = 256  # of one message: more would push everything else out of the filter
_LINE_WEIGHT: Final = 40
_PIECES: Final = re.compile(rb"(?<=[.,;}\])]) |\\\\n").split


class Look(NamedTuple):
    """What a step brought."""

    new: float  # share of lines not seen before
    lines: int
    dried: bool  # it counted as a turn without news
    news: bool


def digests(text: str, seed: int, masked: bool) -> list[tuple[int, int]]:  # noqa: FBT001
    """Return the digests of a steady text's lines and what each weighs; of an error's by their form.

    Very long lines are taken in pieces. Lines weigh by length, so that a wrapper's short ones do not drown a result.
    """
    if masked:
        text = shape(text)
    lines: list[bytes] = []
    for raw in text.lower().encode("utf-8", "surrogatepass").split(b"\n"):
        line = raw.strip()
        if b"  " in line or b"\t" in line:
            line = b" ".join(line.split())
        if len(line) > _LONG_LINE:
            lines += [piece for piece in _PIECES(line) if piece]
        elif line:
            lines.append(line)
    if len(lines) > _LINES_MAX:
        lines = lines[: _LINES_MAX // 2] + lines[-_LINES_MAX // 2 :]
    return [(xxhash.xxh3_64_intdigest(line, seed), min(len(line), _LINE_WEIGHT)) for line in lines]


def look(window: Window, step: Step, prints: Prints, printer: Printer, weight: float) -> Look:
    """Compare a step with what the session has seen, remember it, and move the counts."""
    masked = any(pair.failed or pair.kind == EMPTY for pair in prints.pairs)
    lines = new = 0
    for text in _outside(window, prints):
        found = digests(text, printer.seed, masked)
        lines += sum([weight for _, weight in found])
        new += window.lines.sift(found)
    share = new / lines if lines else 0.0
    fresh_words = _own_words(window, prints)
    unseen = [pair for pair in prints.pairs if not _known(window, pair.a)]
    known_round = _known(window, prints.round)
    known_twice = known_round and _known(window, _second(prints.round))
    _remember(window, [prints.round, *(pair.a for pair in prints.pairs)])
    if known_round:
        _remember(window, [_second(prints.round)])
    wrote = any(pair.changes and not pair.failed and pair.kind != UNSEEN for pair in unseen)
    if share > NEW_SHARE or wrote:
        window.dry /= 2
        window.new_at = window.steps
        news, dried = True, False
    else:
        news = False
        visible = bool(step.results or step.users or not step.calls)  # where nothing was called, nothing is hidden
        begins = not step.said and not step.calls
        silent = bool(unseen) and all(pair.kind in (EMPTY, ACK) for pair in prints.pairs)
        second = bool(prints.pairs) and known_round and not known_twice
        dried = visible and not (begins or silent or fresh_words or second)
    if dried:
        if window.dry < 1:
            window.dry_id = prints.round
        window.dry = min(window.dry + weight, COUNT_MAX)
    _flow(window, share, lines)
    return Look(share, lines, dried, news)


def findings(window: Window, seen: Look) -> Iterator[Finding]:
    """Yield `dry` and `novelty`, where this step belongs to them."""
    if not seen.dried:
        return
    ago = window.steps - window.new_at
    yield Finding("dry", window.dry, b"dry" + window.dry_id, f"nothing new for {ago} turns")
    if window.stale:
        evidence = f"{window.stale} results in a row with hardly a new line"
        yield Finding("novelty", window.stale, b"novelty" + window.dry_id, evidence)


def heard(window: Window, said: str, printer: Printer) -> None:
    """Remember an answer of the model, so that a copy of it in another agent's request is no news."""
    if said:
        key = printer.text(steady(own(said)).strip())
        _remember(window, [key, _second(key)])


def is_answer(window: Window, key: bytes) -> bool:
    """Tell whether a text was an answer of the model in its session."""
    return _known(window, _second(key))


def _outside(window: Window, prints: Prints) -> Iterator[str]:
    if prints.said != NONE:
        _remember(window, [prints.said, _second(prints.said)])
    for key, text, _ in prints.incoming:
        if text and not _known(window, key):
            _remember(window, [key])
            yield text


def _own_words(window: Window, prints: Prints) -> bool:
    found = prints.words
    new = window.words.sift([(word, 1) for word in found])
    return len(found) >= WORDS_MIN and new >= NEW_WORDS * len(found)


def _flow(window: Window, share: float, lines: int) -> None:
    if lines:
        window.flow += _FLOW * (share - window.flow)
    window.stale = min(window.stale + 1, 60_000) if lines and window.flow < _FLOW_LOW else 0


def _known(window: Window, key: bytes) -> bool:
    return window.marks.knows(int.from_bytes(key, "little"))


def _remember(window: Window, keys: Iterable[bytes]) -> None:
    window.marks.sift([(int.from_bytes(key, "little"), 1) for key in keys])


def _second(key: bytes) -> bytes:
    return bytes(one ^ 0x5A for one in key)
