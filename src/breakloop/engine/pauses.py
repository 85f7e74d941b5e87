"""Pauses: a run is held, and a person is asked whether it may go on.

A pause is a hold on the run (`quarantine.Hold`) with a `Question`. It is stored and shared as other holds are, and so
is its answer, which takes the place of the question:

once          the run goes on, until it is detected again
5usd, 1h      `pause` does not hold the run until it has spent this much more, or for this long
land          the next calls pass with tools switched off, and later ones are denied
deny          nobody answered in time (`then: deny`): the run stays held

`kill` ends the pause, and the run is held as if an operator had killed it. A question that is due is answered with its
default by every instance on its own, whenever it looks at it, so that a restart or a lost instance delays nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from breakloop.errors import OrderError
from breakloop.model.verdict import ANSWERS
from breakloop.store.ops import LAND_CALLS

ONCE, LAND, KILL, DENY = "once", "land", "kill", "deny"
DEFAULTS: Final = {"deny": DENY, "land": LAND, "continue": ONCE}  # by `then`
KEPT_S: Final = 86_400.0  # how long an answer without a time of its own applies at the most
ASK_AGAIN_S: Final = 60  # a longer `Retry-After` is ignored by the SDKs of OpenAI and Anthropic
_USD: Final = re.compile(r"(\d{1,4}(?:\.\d{1,2})?)usd")
_SPAN: Final = re.compile(r"(\d{1,4})([mh])")
_UNITS: Final = {"m": (60, "minute"), "h": (3600, "hour")}


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked about a held run, and the answer."""

    id: str
    due: float  # when the default applies
    then: str  # the default: a key of `DEFAULTS`
    hold_open_s: float = 0.0
    answer: str = ""  # "" as long as it is open
    by: str = ""  # who answered; "" if nobody did in time
    left: int = 0  # calls of `once` and `land`, or micro-dollars

    @property
    def is_open(self) -> bool:
        return not self.answer

    @property
    def grants(self) -> bool:
        """Whether the answer lets calls pass."""
        return self.answer not in {"", DENY} and (self.answer != LAND or self.left > 0)

    def answered(self, answer: str, by: str, now: float) -> tuple[Question, float]:
        """Return the question with its answer, and until when that applies."""
        usd, span = _USD.fullmatch(answer), _SPAN.fullmatch(answer)
        left = round(float(usd[1]) * 1_000_000) if usd else {ONCE: 1, LAND: LAND_CALLS}.get(answer, 0)
        lasts_s = int(span[1]) * _UNITS[span[2]][0] if span else KEPT_S
        return replace(self, answer=answer, by=by, left=left), now + lasts_s

    def value(self) -> dict[str, object]:
        """Return it as JSON, for the record of its hold."""
        return {name: getattr(self, name) for name in _TEXTS + _NUMBERS}


_TEXTS: Final = ("id", "then", "answer", "by")
_NUMBERS: Final = ("due", "hold_open_s", "left")


def question_of(value: object) -> Question | None:
    """Return the question in a record; None if there is none, or it is invalid."""
    if not isinstance(value, dict):
        return None
    texts, numbers = [value.get(name) for name in _TEXTS], [value.get(name) for name in _NUMBERS]
    if not all(isinstance(text, str) for text in texts) or value.get("then") not in DEFAULTS:
        return None
    if not all(isinstance(number, int | float) for number in numbers):
        return None
    found = {name: value[name] for name in (*_TEXTS, *_NUMBERS)}
    return Question(**found | {"left": int(found["left"])})


def checked_answer(answer: str) -> str:
    """Return an answer that a person gave. Raises `OrderError`."""
    text = answer.strip().lower().removeprefix("$")
    text = f"{text}usd" if text != answer.strip().lower() else text
    usd, span = _USD.fullmatch(text), _SPAN.fullmatch(text)
    seconds = int(span[1]) * _UNITS[span[2]][0] if span else 0
    if text in {ONCE, LAND, KILL} or (usd and float(usd[1]) > 0) or 0 < seconds <= KEPT_S:
        return text
    raise OrderError(
        ["answer: must be once, an amount like 5usd, a time like 30m or 1h (a day at the most), land or kill"]
    )


def words(answer: str) -> str:
    """Return an answer in words, for people."""
    usd, span = _USD.fullmatch(answer), _SPAN.fullmatch(answer)
    if usd:
        return f"Go on for ${usd[1]}"
    if span:
        number, unit = int(span[1]), _UNITS[span[2]][1]
        return f"Go on for {number} {unit}" + ("" if number == 1 else "s")
    return "Nobody answered" if answer == DENY else ANSWERS.get(answer, answer)
