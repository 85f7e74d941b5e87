"""Kinds that compare what was said (DETECTION): `monologue`, `nested`, `continue`, `rejected`. Each function counts a
step in and returns what it finds. Texts that are only nearly the same are `similar`'s matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import xxhash

from breakloop.detect.steps.fingerprints import NONE, RUNS, StepFingerprinter, StepFingerprints
from breakloop.detect.steps.kinds import Finding, times
from breakloop.detect.steps.masks import folded, own
from breakloop.detect.steps.novelty import is_answer
from breakloop.detect.steps.window import COUNT_MAX, TEXT, TEXTS, SessionWindow, place
from breakloop.model.call import Step

CHAPTER: Final = 100  # content words: who writes so many new ones was told to go on, not turned down
_TEXT_MIN: Final = 20
_REMINDER: Final = "<system-reminder"
_TAIL_MAX: Final = 0xFFFF
_ROW: Final = TEXT.size


class PromptState(Protocol):
    """What `nested` remembers of the last prompt; a session's window does, and whatever else has these."""

    prompt: bytes
    prompt_size: int
    added: bytes  # what it had more than the one before it; NONE: it did not hold it
    nested: float


def growing(window: SessionWindow, prints: StepFingerprints) -> int:
    """Return how many texts of the tail were in the last step's already: some harnesses do not hand the model's
    answers back as its own, so that the tail behind the last one grows and grows."""
    if not prints.users:
        window.anchor, window.tail_count = NONE, 0
        return 0
    count, kept = len(prints.users), 0
    anchor = (int.from_bytes(prints.said, "little") ^ int.from_bytes(prints.users[0], "little")).to_bytes(8, "little")
    if anchor == window.anchor != NONE and count > window.tail_count:
        kept = window.tail_count
    window.anchor, window.tail_count = anchor, min(count, _TAIL_MAX)
    return kept


def monologue(
    window: SessionWindow, step: Step, prints: StepFingerprints, kept: int, weight: float
) -> Sequence[Finding]:
    """The same words again, and nothing called. In a conversation that has not grown they are not said again, but
    shown again: examples before each item of a batch, or another question at the same place."""
    if kept or (prints.said == window.said and step.messages <= window.messages):
        return ()
    if prints.pairs or prints.said == NONE:
        if prints.pairs:
            window.said_count = 0.0
        return ()
    if prints.said in (window.said, window.said_before):
        window.said_count = min(window.said_count + weight, COUNT_MAX)
    else:
        window.said_count = 0.0
    if prints.said != window.said:
        window.said, window.said_before = prints.said, window.said
    if not window.said_count:
        return ()
    count = window.said_count + weight
    return (Finding("monologue", count, b"said" + prints.said, f"the same answer {times(count)}, and nothing called"),)


def nested(window: PromptState, step: Step, printer: StepFingerprinter, weight: float) -> Iterator[Finding]:
    """A prompt that holds the one before whole: "that was not valid, try again: ...".

    A log or a conversation that a client sends in one message grows as well, at its end or at its beginning: so it
    goes on only where the same is added as the last time. At the beginning the first time counts too.
    """
    if step.calls or not step.users:
        return
    text = own(step.users[-1].encode("utf-8", "surrogatepass"))
    now, size, holds = printer.plain(text), window.prompt_size, False
    added = NONE
    if _TEXT_MIN <= size < len(text):
        if printer.plain(text[-size:]) == window.prompt:
            added = printer.plain(folded(text[:-size]))
            holds = True
        elif printer.plain(text[:size]) == window.prompt:
            added = printer.plain(folded(text[size:]))
            holds = added == window.added
    if holds:
        window.nested = min(window.nested + weight, COUNT_MAX) if added == window.added else weight
        yield Finding(
            "nested", window.nested, b"nested", f"each prompt holds the one before it, {times(window.nested)}"
        )
    elif now == window.prompt:
        return
    else:
        window.nested = 0.0
    window.prompt_size, window.prompt, window.added = len(text), now, added


def continued(
    window: SessionWindow,
    prints: StepFingerprints,
    kept: int,
    worded: bool,  # noqa: FBT001
    weight: float,
) -> Sequence[Finding]:
    """`continue`: the same prompt to go on again, and nothing called. A model that writes new matter (`worded`) does
    go on: that counts for nothing."""
    if prints.pairs or prints.said == NONE or len(prints.users) <= kept:
        return ()
    cue = prints.users[-1]
    if cue != window.cue:
        window.cue, window.cues = cue, weight
    elif not worded:
        window.cues = min(window.cues + weight, COUNT_MAX)
    if worded or window.cues <= 1:
        return ()
    return (Finding("continue", window.cues, b"cue" + cue, f"told the same {times(window.cues)}, and nothing called"),)


def rejected(
    window: SessionWindow, step: Step, prints: StepFingerprints, kept: int, weight: float
) -> Sequence[Finding]:
    """The same text of the user or the harness again, whatever happens between."""
    if not (step.said or step.calls):
        return ()
    found: list[Finding] = []
    for user, text in dict(zip(prints.users[kept:], step.users[kept:], strict=True)).items():
        if len(text) < _TEXT_MIN or is_answer(window, user):
            continue
        key = user
        if prints.pairs:  # a reminder beside each result is no rejection; one that answers the same tool may be
            tool = prints.pairs[-1].tool
            if text.startswith(_REMINDER) or tool.manner == RUNS:
                continue
            key = xxhash.xxh3_64_digest(user + tool.raw)
        count = _came(window, key, weight if not prints.pairs else 0.0)
        evidence = f"the same {len(text)} characters came back {times(count)}"
        found.append(Finding("rejected", count, b"text" + key, evidence))
    rows = window.texts
    while len(rows) > TEXTS * _ROW:  # the rarest goes, of equals the one not seen for longest
        _, at = min((one[1:], number * _ROW) for number, one in enumerate(TEXT.iter_unpack(rows)))
        del rows[at : at + _ROW]
    return found


def _came(window: SessionWindow, key: bytes, weight: float) -> float:
    """Count a text in; without a weight once for as many steps in a row as it comes in."""
    rows, count, last = window.texts, 0.0, 0
    at = place(rows, key, _ROW)
    if at >= 0:
        _, count, last = TEXT.unpack_from(rows, at)
        del rows[at : at + _ROW]
    if weight:
        count += weight
    elif not count or last < window.steps - 1:
        count += 1
    rows += TEXT.pack(key, min(count, COUNT_MAX), window.steps)
    return count
