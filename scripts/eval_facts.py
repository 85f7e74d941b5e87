"""What is known of a recorded session without a label and without a detector: what its turns cost, and how often the
same came again. `make eval` measures lag and savings with it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from breakloop.model.call import CHARS_A_TOKEN
from breakloop.replay.run import SessionOutcome
from scripts.eval_baselines import Seen

THIRD = 3
RECOVERED_REPEATS = 5  # of one step in a session that succeeded: it looped, and then it succeeded
RECOVERED_LABEL = "recovered_loop"
INFORMATIVE_CHARS = 60  # shorter texts ("ok", "done") come again for good reasons
_DIGITS = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Facts:
    """One session. Turns are numbered from 1."""

    tokens: tuple[int, ...]  # of each turn, estimated
    third: int | None  # the turn at which the same step, or the same incoming text, came for the third time
    repeats: int  # how often the step came that came most often

    def saved(self, first_block: int | None) -> int:
        """Return the tokens that are not spent if the session ends with its first block."""
        return sum(self.tokens[first_block - 1 :]) if first_block is not None else 0


def facts(requests: Iterable[Seen]) -> Facts:
    """Look at a session. A step is an action and its result; numbers are masked."""
    acted: dict[str, str] = {}
    steps, texts = Counter[tuple[str, str]](), Counter[str]()
    tokens: list[int] = []
    third: int | None = None
    for number, one in enumerate(requests, 1):
        calls = json.dumps([list(call) for call in one.answer.calls]) if one.answer.calls else ""
        tokens.append((sum(map(len, one.messages)) + len(one.answer.text) + len(calls)) // CHARS_A_TOKEN)
        if one.thread in acted:
            came = masked("\n".join(one.fresh))
            step = acted[one.thread], came
            steps[step] += 1
            texts[came] += len(came) >= INFORMATIVE_CHARS
            if third is None and (steps[step] >= THIRD or texts[came] >= THIRD):
                third = number
        acted[one.thread] = masked(calls or one.answer.text)
    return Facts(tuple(tokens), third, max(steps.values(), default=0))


def masked(text: str) -> str:
    """Return a text with its numbers and spaces alike."""
    return _SPACE.sub(" ", _DIGITS.sub("0", text))


def recovered(one: SessionOutcome, known: Facts) -> bool:
    """Return whether a session looped for a while and then succeeded: by its label, or by what happened in it."""
    label = one.session.label
    return label.kind == RECOVERED_LABEL or (label.loop is False and known.repeats >= RECOVERED_REPEATS)
