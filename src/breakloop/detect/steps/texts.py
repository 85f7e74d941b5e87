"""Kinds that compare texts: `monologue`, `nested`, `continue`, `rejected`. Each function counts a step and returns its
findings. Similar texts are compared in `repeats.reword`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import xxhash

from breakloop.detect.steps.findings import Finding, StepState, times
from breakloop.detect.steps.fingerprints import NONE, RUNS, StepFingerprinter, StepFingerprints, folded, own
from breakloop.detect.steps.novelty import CHAPTER, is_answer, is_opening, opening_marks
from breakloop.detect.steps.window import COUNT_MAX, TEXT, TEXTS, SessionWindow, find_row
from breakloop.model.call import Step

_TEXT_MIN: Final = 20
_REMINDER: Final = "<system-reminder"
_TAIL_MAX: Final = 0xFFFF
# How summaries of compacted conversations open, in several agents.
_SUMMARIES: Final = (
    "continued from a previous conversation", "another language model started", "summary of the conversation",
    "conversation summary", "<summary>", "<state_snapshot", "i spoke to you previously",
)  # fmt: skip
_HEAD: Final = 300  # characters
_COMPACTED_MAX: Final = 4  # messages
_LONG_HISTORY: Final = 8
_APART_S: Final = 120
_APART_WEIGHT: Final = 0.5
_WORDED_WEIGHT: Final = 0.5  # of a text that follows new content
_SECONDS: Final = 0xFFFFFFFF
_ROW: Final = TEXT.size


class PromptState(Protocol):
    """The last prompt, as `nested` needs it: of a session, or of a series of prompts (`detect.unnamed_sessions`)."""

    prompt: bytes
    prompt_size: int
    added: bytes  # what it has more than the one before it; NONE: it does not contain it
    nested: float


def known_texts(window: SessionWindow, prints: StepFingerprints) -> int:
    """Return how many of the user's texts were in the last step already. Some harnesses do not send answers back as the
    model's, so that the texts after the last answer accumulate."""
    if not prints.users:
        window.tail_anchor, window.tail_texts = NONE, 0
        return 0
    count, kept = len(prints.users), 0
    anchor = (int.from_bytes(prints.said, "little") ^ int.from_bytes(prints.users[0], "little")).to_bytes(8, "little")
    if anchor == window.tail_anchor != NONE and count > window.tail_texts:
        kept = window.tail_texts
    window.tail_anchor, window.tail_texts = anchor, min(count, _TAIL_MAX)
    return kept


def is_summary(window: SessionWindow, step: Step, prints: StepFingerprints) -> bool:
    """Tell whether a request without an answer continues a session whose context was compacted: its text opens as
    summaries do, or follows the text that opened the session. A new task begins otherwise."""
    if step.messages > _COMPACTED_MAX:
        return False
    if window.messages >= _LONG_HISTORY and len(prints.users) > 1 and is_opening(window, prints.users[0]):
        return True
    heads = [text[:_HEAD].lower() for text in step.users[:_COMPACTED_MAX]]
    return any(words in head for head in heads for words in _SUMMARIES)


def monologue(state: StepState) -> Sequence[Finding]:
    """The same answer again, and nothing called. In a conversation that has not grown, it is only shown again: examples
    before each item of a batch, or another question at the same position."""
    window, prints, weight = state.window, state.prints, state.weight
    if state.known_texts or (prints.said == window.answer and state.step.messages <= window.messages):
        return ()
    if prints.pairs or prints.said == NONE:
        if prints.pairs:
            window.answer_count = 0.0
        return ()
    if prints.said in (window.answer, window.answer_before):
        window.answer_count = min(window.answer_count + weight, COUNT_MAX)
    else:
        window.answer_count = 0.0
    if prints.said != window.answer:
        window.answer, window.answer_before = prints.said, window.answer
    if not window.answer_count:
        return ()
    count = window.answer_count + weight
    return (Finding("monologue", count, b"said" + prints.said, f"the same answer {times(count)}, and nothing called"),)


def nested(window: PromptState, step: Step, fingerprinter: StepFingerprinter, weight: float) -> Sequence[Finding]:
    """A prompt that contains the previous one: "that was not valid, try again: ...".

    A log or a conversation that is sent as one message grows too, at its end or at its beginning. So a prompt only
    counts if the same was added the last time; at the beginning, the first time counts too.
    """
    if step.calls or not step.users:
        return ()
    text = own(step.users[-1].encode("utf-8", "surrogatepass"))
    now, size, holds = fingerprinter.plain(text), window.prompt_size, False
    added = NONE
    if _TEXT_MIN <= size < len(text):
        if fingerprinter.plain(text[-size:]) == window.prompt:
            added = fingerprinter.plain(folded(text[:-size]))
            holds = True
        elif fingerprinter.plain(text[:size]) == window.prompt:
            added = fingerprinter.plain(folded(text[size:]))
            holds = added == window.added
    if holds:
        window.nested = min(window.nested + weight, COUNT_MAX) if added == window.added else weight
    elif now == window.prompt:
        return ()
    else:
        window.nested = 0.0
    window.prompt_size, window.prompt, window.added = len(text), now, added
    if not holds:
        return ()
    return (
        Finding("nested", window.nested, b"nested", f"each prompt contains the previous one, {times(window.nested)}"),
    )


def continued(state: StepState) -> Sequence[Finding]:
    """`continue`: the same prompt to go on again, and nothing called. It does not count if the model writes new content
    (`worded`)."""
    window, prints, worded, weight = state.window, state.prints, state.novelty.worded, state.weight
    if prints.pairs:
        window.cue_count = 0.0  # it went on
        return ()
    if prints.said == NONE or len(prints.users) <= state.known_texts:
        return ()
    cue = prints.users[-1]
    if cue != window.cue:
        window.cue, window.cue_count = cue, weight
    elif not worded:
        window.cue_count = min(window.cue_count + weight, COUNT_MAX)
    if worded or window.cue_count <= 1:
        return ()
    return (
        Finding(
            "continue", window.cue_count, b"cue" + cue, f"told the same {times(window.cue_count)}, and nothing called"
        ),
    )


def rejected(state: StepState) -> Sequence[Finding]:
    """The same text of the user or the harness again, whatever happens in between. A model that writes a chapter of new
    content (`worded`) was not rejected, but told to go on. The text that opened the session is an order: it only counts
    if nothing was changed since."""
    window, step, prints, known = state.window, state.step, state.prints, state.known_texts
    if not (step.said or step.calls):
        if not step.results:
            for user in prints.users:
                window.marks.add(*opening_marks(user))
        return ()
    if not prints.users or (state.novelty.worded and not prints.pairs and len(prints.words) >= CHAPTER):
        return ()
    found: list[Finding] = []
    for user, text in dict(zip(prints.users[known:], step.users[known:], strict=True)).items():
        if len(text) < _TEXT_MIN or is_answer(window, user):
            continue
        key = user
        if prints.pairs:  # a reminder beside each result is not a rejection
            tool = prints.pairs[-1].tool
            if text.startswith(_REMINDER) or tool.manner == RUNS:
                continue
            key = xxhash.xxh3_64_digest(user + tool.raw)
        count = _count_text(state, key, is_order=is_opening(window, user))
        evidence = f"the same {len(text)} characters came back {times(count)}"
        found.append(Finding("rejected", count, b"text" + key, evidence))
    rows = window.texts
    while len(rows) > TEXTS * _ROW:  # drop the rarest text, of equals the least recent
        _, at = min((one[1:3], number * _ROW) for number, one in enumerate(TEXT.iter_unpack(rows)))
        del rows[at : at + _ROW]
    return found


def _count_text(state: StepState, key: bytes, *, is_order: bool) -> float:
    """Count a text. Beside the result of a call, several steps in a row count once. Else it counts half if it comes
    minutes apart, because there was time to work, or if the model wrote new content: a reader may ask for the next
    question in the same words."""
    window, beside = state.window, bool(state.prints.pairs)
    weight = 1.0 if beside else state.weight
    rows, count, last, second = window.texts, 0.0, 0, int(state.now) & _SECONDS
    at = find_row(rows, key, _ROW)
    if at >= 0:
        _, count, last, epoch, before = TEXT.unpack_from(rows, at)
        del rows[at : at + _ROW]
        if is_order and epoch != window.epoch:
            count = 0.0
        if count and not beside and (second - before & _SECONDS) >= _APART_S:
            weight = min(weight, _APART_WEIGHT)
    if state.novelty.worded and not beside:
        weight *= _WORDED_WEIGHT
    if not beside or not count or last < window.steps - 1:
        count = min(count + weight, COUNT_MAX)
    rows += TEXT.pack(key, count, window.steps, window.epoch, second)
    return count
