"""Simple loop detectors as other people build them, to measure ours beside: each gives every turn of a session a score
and flags the session at the first one that reaches its threshold. None of this is part of the product."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from breakloop.model.call import Answer
from breakloop.replay.run import SPACING_S, SessionOutcome
from breakloop.replay.sessions import Delta, RecordedSession, RecordedTurn

WINDOW_S = 60.0
WINDOW_REQUESTS = 20
SIMILAR_BITS = 3  # fewer than so many bits apart
TEXT_MAX = 4000


@dataclass(slots=True)
class Seen:
    """One request as these detectors see it. They look at its answer after they have given its score."""

    at_s: float
    messages: tuple[str, ...]  # each as one text, without ids
    prompt: str  # the last message of the user
    fresh: tuple[str, ...]  # what came since the last answer of this thread
    answer: Answer
    thread: str = ""
    agent: str = ""


class Baseline(NamedTuple):
    """A detector: its name, the score from which it flags, and what gives one score for each request."""

    name: str
    threshold: float
    scores: Callable[[Iterable[Seen]], Iterator[float]]

    def outcome(
        self, session: RecordedSession, turns: Sequence[RecordedTurn], scores: Sequence[float]
    ) -> SessionOutcome:
        """Return what it would have said, as a replay does."""
        return flagged(session, len(turns), scores, self.threshold)


def flagged(session: RecordedSession, turns: int, scores: Sequence[float], threshold: float) -> SessionOutcome:
    """Return the outcome by the first score that reaches a threshold."""
    first = next((number for number, score in enumerate(scores, 1) if score >= threshold), None)
    return SessionOutcome(session, turns, first_block=first, kind="baseline" if first else None)


def seen(turns: Sequence[RecordedTurn]) -> Iterator[Seen]:
    """Put the requests of a session together."""
    known: dict[str, tuple[str, ...]] = {}
    prompts: dict[str, str] = {}
    now = -SPACING_S
    for turn in turns:
        delta = turn.request
        assert isinstance(delta, Delta)  # noqa: S101 - only sessions in our own format are measured
        now = turn.at_s if turn.at_s is not None else now + SPACING_S
        messages = known.get(delta.thread, ())[: delta.keep] + tuple(message_text(one) for one in delta.messages)
        for one in delta.messages:
            if one.get("role") == "user" and isinstance(one.get("content"), str):
                prompts[delta.thread] = one["content"]
        fresh = tuple(message_text(one) for one in delta.messages if one.get("role") != "assistant")
        prompt = prompts.get(delta.thread, messages[-1] if messages else "")
        yield Seen(now, messages, prompt, fresh, turn.answer, delta.thread, turn.agent)
        known[delta.thread] = (*messages, message_text({"role": "assistant", "content": _spelled(turn.answer)}))


def message_text(message: Any) -> str:
    """Return a message as one text, without its ids."""
    kept = {name: said for name, said in message.items() if name not in ("id", "tool_call_id")}
    return json.dumps(kept, sort_keys=True)


def _spelled(answer: Answer) -> str:
    return json.dumps([answer.text, [[call.name, call.arguments] for call in answer.calls]])


def turn_counter(requests: Iterable[Seen]) -> Iterator[float]:
    """How many turns there were."""
    for number, _ in enumerate(requests, 1):
        yield float(number)


def exact(requests: Iterable[Seen]) -> Iterator[float]:
    """How often the whole request came within a minute."""
    return _repeats((one.at_s, one.messages) for one in requests)


def last_three(requests: Iterable[Seen]) -> Iterator[float]:
    """How often the last three messages came within a minute."""
    return _repeats((one.at_s, one.messages[-3:]) for one in requests)


def _repeats(keys: Iterator[tuple[float, Hashable]]) -> Iterator[float]:
    times: dict[Hashable, deque[float]] = {}
    for now, key in keys:
        hits = times.setdefault(key, deque())
        hits.append(now)
        while hits[0] <= now - WINDOW_S:
            hits.popleft()
        yield float(len(hits))


def action_and_result(requests: Iterable[Seen]) -> Iterator[float]:
    """How often in a row the same action brought the same result."""
    acted: dict[str, str] = {}
    last: object = None
    streak = 0
    for one in requests:
        if one.thread in acted:
            step = (acted[one.thread], one.fresh)
            streak = streak + 1 if step == last else 1
            last = step
        yield float(streak)
        acted[one.thread] = _spelled(one.answer)


def same_call(requests: Iterable[Seen]) -> Iterator[float]:
    """How often in a row the model made the same calls, whatever came back."""
    last, streak = "", 0
    answer: Answer | None = None
    for one in requests:
        if answer is not None:
            calls = json.dumps([list(call) for call in answer.calls]) if answer.calls else ""
            streak = streak + 1 if calls and calls == last else int(bool(calls))
            last = calls
        yield float(streak)
        answer = one.answer


def stuck_patterns(requests: Iterable[Seen]) -> Iterator[float]:
    """How near the last steps are to a pattern: the same action and result 4 times in a row, the same action with an
    error 3 times, the same answer without a call 3 times, or two steps in turn 3 times."""
    steps: deque[tuple[str, tuple[str, ...]]] = deque(maxlen=6)
    same = failed = said = 0
    answer: Answer | None = None
    for one in requests:
        if answer is not None:
            step = _spelled(answer), one.fresh
            again = bool(steps) and steps[-1][0] == step[0]
            same = same + 1 if again and steps[-1][1] == step[1] else 1
            failed = (failed + 1 if again else 1) if any(_ERROR.search(text[:TEXT_MAX]) for text in one.fresh) else 0
            said = 0 if answer.calls else said + 1 if again else 1
            steps.append(step)
        turns = len(steps) == 6 and steps[0] != steps[1] and all(steps[at] == steps[at % 2] for at in range(6))
        yield max(same / 4, failed / 3, said / 3, float(turns))
        answer = one.answer


def simhash_score(requests: Iterable[Seen]) -> Iterator[float]:
    """Similar prompts (1), similar answers (2) and repeated calls (1.5) among an agent's last twenty requests."""
    windows: dict[str, deque[tuple[int, int, str]]] = {}
    for one in requests:
        window = windows.setdefault(one.agent, deque(maxlen=WINDOW_REQUESTS - 1))
        prompt = simhash(one.prompt)
        score = 1.0 * sum(_similar(prompt, entry[0]) for entry in window)
        if window:
            *older, (_, answer, called) = window
            score += 2.0 * sum(_similar(answer, entry[1]) for entry in older)
            score += 1.5 * sum(called == entry[2] for entry in older if called)
        yield score
        calls = json.dumps([list(call) for call in one.answer.calls]) if one.answer.calls else ""
        window.append((prompt, simhash(one.answer.text or calls), calls))


def _similar(one: int, other: int) -> bool:
    return (one ^ other).bit_count() < SIMILAR_BITS


_ERROR = re.compile(r"\b(?:error|exception|traceback)\b", re.IGNORECASE)
_MASKS = (
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE), "<ID>"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<TS>"),
    (re.compile(r"\b[0-9a-f]{16,}\b", re.IGNORECASE), "<ID>"),
    (re.compile(r"\d+"), "<NUM>"),
    (re.compile(r"\s+"), " "),
)


@lru_cache(maxsize=20_000)
def simhash(text: str) -> int:
    """64 bits of which similar texts share most: by groups of three characters, ids and numbers masked."""
    text = text[:TEXT_MAX]
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    text = text.strip().lower()
    grams = Counter(text[at : at + 3] for at in range(max(1, len(text) - 2)))
    lanes = sum(_lanes(gram) * count for gram, count in grams.items())
    half = sum(grams.values()) / 2
    return sum(1 << bit for bit in range(64) if (lanes >> (bit * 16)) & 0xFFFF > half)


@lru_cache(maxsize=200_000)
def _lanes(gram: str) -> int:
    """The bits of a hash, 16 apart, so that one addition counts all 64 of them."""
    bits = int.from_bytes(blake2b(gram.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    return sum(((bits >> bit) & 1) << (bit * 16) for bit in range(64))


BASELINES = (
    Baseline("exact request x5", 5, exact),
    Baseline("last 3 messages x5", 5, last_three),
    Baseline("SimHash score > 10", 10.5, simhash_score),  # scores are multiples of a half
    Baseline("same action + result x4", 4, action_and_result),
    Baseline("same call x5", 5, same_call),
    Baseline("stuck patterns", 1, stuck_patterns),
    Baseline("26 turns", 26, turn_counter),
)
