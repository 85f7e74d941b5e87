"""Kinds that compare what was said (DETECTION): `monologue`, `nested`, `continue`, `rejected`. Each function counts a
step in and yields what it finds. Texts that are only nearly the same are `similar`'s matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import xxhash

from breakloop.detect.steps.dry import is_answer
from breakloop.detect.steps.finding import Finding, times
from breakloop.detect.steps.masks import own
from breakloop.detect.steps.prints import NONE, Printer, Prints
from breakloop.detect.steps.tools import is_shell
from breakloop.detect.steps.window import COUNT_MAX, TEXTS, Window
from breakloop.model.step import Step

_TEXT_MIN: Final = 20
_REMINDER: Final = "<system-reminder"


def growing(window: Window, prints: Prints) -> int:
    """Return how many texts of the tail were in the last step's already: some harnesses do not hand the model's
    answers back as its own, so that the tail behind the last one grows and grows."""
    anchor = bytes(a ^ b for a, b in zip(prints.said, prints.users[0], strict=True)) if prints.users else NONE
    count = len(prints.users)
    kept = int(window.tail_count) if anchor != NONE and anchor == window.anchor and count > window.tail_count else 0
    window.anchor, window.tail_count = anchor, float(count)
    return kept


def monologue(window: Window, prints: Prints, kept: int, weight: float) -> Iterator[Finding]:
    """The same words again, and nothing called."""
    if kept:
        return
    if prints.pairs or prints.said == NONE:
        if prints.pairs:
            window.said_count = 0.0
        return
    if prints.said in (window.said, window.said_before):
        window.said_count = min(window.said_count + weight, COUNT_MAX)
    else:
        window.said_count = 0.0
    if prints.said != window.said:
        window.said, window.said_before = prints.said, window.said
    if window.said_count:
        count = window.said_count + weight
        yield Finding("monologue", count, b"said" + prints.said, f"the same answer {times(count)}, and nothing called")


def nested(window: Window, step: Step, printer: Printer, weight: float) -> Iterator[Finding]:
    """A prompt that holds the one before whole: "that was not valid, try again: ..."."""
    if step.calls or not step.users:
        return
    text = own(step.users[-1])
    size = window.prompt_size
    if _TEXT_MIN <= size < len(text) and window.prompt in (printer.text(text[:size]), printer.text(text[-size:])):
        window.nested = min(window.nested + weight, COUNT_MAX)
        evidence = f"each prompt holds the one before it, {times(window.nested)}"
        yield Finding("nested", window.nested, b"nested", evidence)
    elif printer.text(text) != window.prompt:
        window.nested = 0.0
    window.prompt_size, window.prompt = len(text), printer.text(text)


def continued(window: Window, prints: Prints, kept: int, weight: float) -> Iterator[Finding]:
    """`continue`: the same prompt to go on again, and nothing called."""
    if prints.pairs or prints.said == NONE or len(prints.users) <= kept:
        return
    cue = prints.users[-1]
    window.cues = min(window.cues + weight, COUNT_MAX) if cue == window.cue else weight
    window.cue = cue
    if window.cues > 1:
        evidence = f"told the same {times(window.cues)}, and nothing called"
        yield Finding("continue", window.cues, b"cue" + cue, evidence)


def rejected(window: Window, step: Step, prints: Prints, kept: int, weight: float) -> Iterator[Finding]:
    """The same text of the user or the harness again, whatever happens between."""
    if not (step.said or step.calls):
        return
    for user, text in dict(zip(prints.users[kept:], step.users[kept:], strict=True)).items():
        if len(text) < _TEXT_MIN or is_answer(window, user):
            continue
        key = user
        if prints.pairs:  # a reminder beside each result is no rejection; one that answers the same tool may be
            name = prints.pairs[-1].name
            if text.startswith(_REMINDER) or is_shell(name):
                continue
            key = xxhash.xxh3_64_digest(user + name.encode("utf-8", "surrogatepass"))
        count, last = window.texts.pop(key, (0.0, 0))
        if not prints.pairs:
            count += weight
        elif not count or last < window.steps - 1:
            count += 1
        window.texts[key] = (min(count, COUNT_MAX), window.steps)
        evidence = f"the same {len(text)} characters came back {times(count)}"
        yield Finding("rejected", count, b"text" + key, evidence)
    while len(window.texts) > TEXTS:  # the rarest goes, of equals the one not seen for longest
        del window.texts[min(window.texts, key=lambda one: window.texts[one])]
