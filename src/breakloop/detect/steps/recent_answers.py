"""The model's last answers in a conversation that the provider keeps (`previous_response_id`, `conversation`). The next
request has the results of their calls, but neither calls nor text. What the kinds of loops need of an answer is kept
with the window, so that the step is evaluated as if the request contained the whole conversation.

Fingerprints and names of tools are kept, never what was written. Several answers are kept, because a client may send a
request again, and may continue one answer in two ways.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from breakloop.detect.steps.fingerprints import AnswerFingerprints, StepFingerprinter, ranked
from breakloop.detect.steps.window import KEPT_MAX
from breakloop.dialects.steps import StepBuilder, result
from breakloop.model.call import Answer, Step, ToolCall

_ANSWERS_MAX: Final = 4
_CALLS_MAX: Final = 20
_WORDS_MAX: Final = 100
_NAME_MAX: Final = 64
_WRITTEN: Final = "(kept)"  # in the place of a text that is not


class RecentCall(msgspec.Struct, array_like=True, gc=False):
    """One call of an answer. It has what `CallResult` gets from the call alone."""

    id: bytes  # the digest of its id; b"" without one
    tool: str
    a: bytes
    loose_a: bytes  # b"": the same
    changes: bool
    waits: int
    wait_s: float
    effect: int


class RecentAnswer(msgspec.Struct, array_like=True, gc=False):
    """One answer."""

    response: bytes  # the digest of its id
    said: bytes
    words: bytes
    calls: list[RecentCall]
    as_text: bool
    messages: int  # in the conversation up to the answer
    size: int  # of the requests


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[RecentAnswer]).decode


def add(kept: bytes, answer: Answer, messages: int, size: int, fingerprinter: StepFingerprinter) -> bytes:
    """Return the kept answers with one more; the same object if there is nothing to keep."""
    if not (answer.text or answer.calls):
        return kept
    one = _fingerprint(answer, messages, size, fingerprinter)
    known = [before for before in _load(kept) if before.response != one.response or not one.response]
    answers = [*known[1 - _ANSWERS_MAX :], one]
    packed = _encode(answers)
    while len(packed) > KEPT_MAX:
        if len(answers) > 1:
            del answers[0]
        else:
            one.calls = one.calls[: len(one.calls) // 2]
        packed = _encode(answers)
    return packed


def find(kept: bytes, step: Step, fingerprinter: StepFingerprinter) -> tuple[RecentAnswer, bool] | None:
    """Return the answer that a request continues, and whether it is the newest one: by the id of the response, as the
    newest one of a stored conversation, or by the ids of calls."""
    answers = _load(kept)
    if not answers:
        return None
    if step.continues:
        response = response_key(step.continues, fingerprinter)
        named = [one for one in answers if one.response == response]
        if named:
            return named[-1], named[-1] is answers[-1]
    ids = {_id(one.call_id, fingerprinter) for one in step.results if one.call_id}
    for one in reversed(answers):
        if not ids.isdisjoint([call.id for call in one.calls]):
            return one, one is answers[-1]
    return (answers[-1], True) if step.continues == "" and not ids else None


def restored(step: Step, kept: RecentAnswer, fingerprinter: StepFingerprinter) -> Step:
    """Return a step as if its request contained the conversation. Arguments and text are placeholders."""
    results, users = step.results, step.users
    if kept.as_text and not results and users:
        results, users = (result(users[0]),), users[1:]
    ids = {_id(one.call_id, fingerprinter): one.call_id for one in results if one.call_id}
    return step._replace(
        said=_WRITTEN if any(kept.said) else "",
        calls=tuple([ToolCall(call.tool, "") for call in kept.calls]),
        call_ids=tuple([ids.get(call.id) or call.id.hex() for call in kept.calls]) if ids else (),
        results=results,
        users=users,
        messages=kept.messages + step.messages,
        size=kept.size + step.size,
        as_text=kept.as_text,
    )


def response_key(response_id: str, fingerprinter: StepFingerprinter) -> bytes:
    return fingerprinter.of(b"response", response_id.encode("utf-8", "surrogatepass")) if response_id else b""


def fingerprints(kept: RecentAnswer, fingerprinter: StepFingerprinter) -> AnswerFingerprints:
    """Return the fingerprints of a kept answer."""
    calls = [
        fingerprinter.known_call(
            one.tool,
            one.a,
            one.loose_a or one.a,
            changes=one.changes,
            waits=one.waits,
            wait_s=one.wait_s,
            effect=one.effect,
        )
        for one in kept.calls
    ]
    return AnswerFingerprints(kept.said, list(array("I", kept.words)), calls)


def _fingerprint(answer: Answer, messages: int, size: int, fingerprinter: StepFingerprinter) -> RecentAnswer:
    builder = StepBuilder()
    if answer.text:
        builder.texts.append(answer.text)
    for made, call_id in zip(reversed(answer.calls), _ids(answer), strict=True):
        builder.add_raw_call(made.name, made.arguments, call_id)
    step = builder.build((), 0, 0)
    prints = fingerprinter.answer(step)
    return RecentAnswer(
        response_key(answer.response_id, fingerprinter),
        prints.said,
        array("I", ranked(prints.spoken, prints.words)[:_WORDS_MAX]).tobytes(),
        _calls(step, prints, fingerprinter),
        step.as_text,
        messages + 1,
        size,
    )


def _ids(answer: Answer) -> Sequence[str]:
    return answer.call_ids[::-1] if len(answer.call_ids) == len(answer.calls) else ("",) * len(answer.calls)


def _calls(step: Step, prints: AnswerFingerprints, fingerprinter: StepFingerprinter) -> list[RecentCall]:
    ids = step.call_ids or ("",) * len(prints.calls)
    return [
        RecentCall(
            _id(call_id, fingerprinter),
            pair.tool.name[:_NAME_MAX],
            pair.a,
            b"" if pair.loose_a == pair.a else pair.loose_a,
            pair.changes,
            pair.waits,
            pair.wait_s,
            pair.effect,
        )
        for pair, call_id in zip(prints.calls[:_CALLS_MAX], ids, strict=False)
    ]


def _id(call_id: str, fingerprinter: StepFingerprinter) -> bytes:
    return fingerprinter.of(b"call", call_id.encode("utf-8", "surrogatepass")) if call_id else b""


def _load(kept: bytes) -> list[RecentAnswer]:
    if not kept:
        return []
    try:
        return _decode(kept)
    except (msgspec.DecodeError, ValueError):  # of another version
        return []
