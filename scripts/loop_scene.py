"""Runs an agent's steps through the real detector and records the results as a table. The scenes are in
`loop_scenes`."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import count
from typing import Any, Final, NamedTuple

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import LEVELS, NEVER, PRESETS, number
from breakloop.detect.steps.window import load
from breakloop.model.call import Result, Step, ToolCall

_SHOWN: Final = 44  # characters of a text
_START: Final = 1_000_000.0
_GAP: Final = "| ... | | | | | |"


class Row(NamedTuple):
    """One turn."""

    turn: str
    did: str
    back: str
    hits: str
    level: int
    evidence: str


def digest(data: bytes) -> bytes:
    """Return a fingerprint with a fixed key."""
    return blake2b(data, digest_size=8, key=b"the docs").digest()


def short(text: str) -> str:
    """Return a text shortened for a table cell."""
    plain = " ".join(text.split()).replace("|", "\\|")
    return plain if len(plain) <= _SHOWN else f"{plain[: _SHOWN - 2]} ..."


class Scene:
    """One session at `sensitivity: normal` with a step every few seconds, and the count of one kind."""

    def __init__(self, kind: str, every_s: float = 3.0) -> None:
        self.kind = kind
        self.rows: list[Row] = []
        self.every_s = every_s
        self._ids = count(1)
        self._messages = 1
        self._now = _START
        self._evaluators: list[StepEvaluator] = []
        self.tools({})
        self._windows = [b"", b""]
        self._last = Step("", (), (), (), (), (), 0, 0)

    def tools(self, options: dict[str, ToolOptions]) -> None:
        """Set options of tools, before the first step."""
        only = {name: (0.0 if name == self.kind else NEVER, NEVER, NEVER) for name in PRESETS["normal"]}
        # The first evaluator decides; the second reports only this kind, from count 0 on, which gives the count.
        both = (StepsSettings(tools=options), StepsSettings(only, options))
        self._evaluators = [StepEvaluator(settings, digest) for settings in both]

    def call(self, name: str, arguments: dict[str, Any], result: str, **more: Any) -> None:
        """The model calls a tool.

        `more`: `failed`, `said`, `tools` (declared), `then` (text after the result), `size` (of the request), and
        `shown` (what the page displays as the result).
        """
        key = f"call_{next(self._ids):08}"
        self._messages += 2
        step = Step(
            more.get("said", ""),
            (ToolCall(name, json.dumps(arguments)),),
            (key,),
            (Result(result, bool(more.get("failed")), key),),
            (more["then"],) if "then" in more else (),
            tuple(more.get("tools", ())),
            self._messages,
            more.get("size", 0),
        )
        spelled = ", ".join(f"{key}={value}" for key, value in arguments.items())
        back = f"{'error: ' if more.get('failed') else ''}{result}"
        self._judge(step, f"`{name}({short(spelled)})`", more.get("shown", more.get("then", back)))

    def says(self, said: str, then: str) -> None:
        """The model replies with text, and the user responds."""
        self._messages += 2
        self._judge(Step(said, (), (), (), (then,), (), self._messages, 0), f"replies: {short(said)}", then)

    def prompt(self, text: str) -> None:
        """A client sends a prompt without an earlier response."""
        self._judge(Step("", (), (), (), (text,), (), 1, len(text)), f"sends: {short(text)}", "")

    def again(self) -> None:
        """The same request is sent once more."""
        self._judge(self._last, "sends the same request", "")

    def _judge(self, step: Step, did: str, back: str) -> None:
        self._last = step
        self._now += self.every_s
        found: list[Evaluation] = []
        for at, evaluator in enumerate(self._evaluators):
            found.append(evaluator.evaluate(self._windows[at], step, self._now))
            self._windows[at] = found[at].window
        judged, counted = found
        window = load(counted.window)
        hits = window.storm if self.kind == "storm" else window.hits if counted.level else 0.0
        self.add(did, back, number(hits) if hits else "", judged.level, judged.evidence)
        if judged.level and judged.kind != self.kind:
            raise AssertionError(f"{self.kind}: turn {len(self.rows)} is {judged.kind} ({judged.evidence})")

    def add(self, did: str, back: str, hits: str, level: int, evidence: str) -> None:
        """Record a turn."""
        self.rows.append(Row(str(len(self.rows) + 1), did, short(back), hits, level, evidence))

    @property
    def highest(self) -> int:
        """The highest level of any turn."""
        return max([row.level for row in self.rows], default=0)


def table(rows: list[Row]) -> list[str]:
    """Return the lines of a table, without rows that continue the previous level."""
    lines = ["| turn | agent | result | count | level | evidence |", "|---|---|---|---|---|---|"]
    for at, row in enumerate(rows):
        inner = 1 < at < len(rows) - 1
        if inner and row.level == rows[at - 1].level == rows[at + 1].level:
            if lines[-1] != _GAP:
                lines.append(_GAP)
            continue
        level = LEVELS[row.level - 1] if row.level else ""
        lines.append(f"| {row.turn} | {row.did} | {row.back} | {row.hits} | {level} | {row.evidence} |")
    return lines
