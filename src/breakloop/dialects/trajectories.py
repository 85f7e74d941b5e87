"""A whole run in one message: some agents write every thought, action and observation so far into the text of the user,
and send that as a new conversation each time. The newest action with its observation is the step.

Two forms are read: numbered fields, as DSPy writes them (`[[ ## tool_name_3 ## ]]`, `<tool_name_3>`), and the lines of
ReAct prompts (`Thought:`, `Action:`, `Action Input:`, `Observation:`, with or without numbers). Lines are only read if
the text ends where the model is to think on: a prompt that quotes such a run, as that of an LLM judge, ends otherwise.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from breakloop.dialects import text_actions
from breakloop.dialects.content import arguments
from breakloop.model.call import ToolCall


class NewestAction(NamedTuple):
    """The last action of a run, and what was observed."""

    thought: str
    call: ToolCall
    observation: str
    number: int  # of actions so far


_FIELD: Final = "[[ ## "
_HEADER: Final = "[[ ## trajectory ## ]]"
_TAG: Final = "<trajectory>"
_OBSERVATIONS: Final = ("observation", "code_output")
_THOUGHTS: Final = ("thought", "reasoning")
_NAMES: Final = ("tool_name", "action")
_ARGUMENTS: Final = ("tool_args", "action_input", "args")
_CODE: Final = "generated_code"
_CALLS: Final = "tool_calls"
_PYTHON: Final = "python"
_CALLED: Final = re.compile(r"name='([\w.:/-]{1,64})'").search
_NUMBER: Final = re.compile(r"(\d{1,6})(?: ## \]\]|>)").match
_ENDS: Final = ("\n\n[[ ## ", "\n\nRespond with the corresponding output fields")
_THINK: Final = re.compile(r"\n[ \t*#]*Thought(?: \d{1,4})?[ \t*]*:[ \t*]*\Z", re.IGNORECASE)
_NUMBERED_LINE: Final = re.compile(r"^(Thought|Action Input|Action) \d{1,4}[ \t]*:", re.MULTILINE | re.IGNORECASE)
_BEGINS: Final = ("\nQuestion:", "\nBegin!", "\nTask:")  # after examples and rules, which have the same lines
_THINK_MAX: Final = 60  # characters at the end in which the model is told to think on
_NAME_MAX: Final = 64


def read(text: str) -> NewestAction | None:
    """Return the newest action of the run in a text, or None."""
    if text.startswith(_FIELD):
        return _numbered(text, "[[ ## {}_{} ## ]]", "")
    if _TAG in text:
        return _numbered(text, "<{}_{}>", "</{}_{}>")
    return _lines(text) if "\nObservation" in text else None


def opening(text: str) -> str:
    """Return the part of a text before the run, which is the same in each request; all of it if there is no run."""
    at = text.find(_HEADER) if text.startswith(_FIELD) else text.find(_TAG)
    if at >= 0:
        return text[:at]
    asked = text.rfind("\nQuestion:")
    at = text.find("\nThought", asked) if asked >= 0 else -1
    return text if at < 0 else text[:at]


def _numbered(text: str, begins: str, ends: str) -> NewestAction | None:
    """Read numbered fields. A field without an end of its own ends where the next one begins."""
    before, _, after = begins.partition("{}_{}")
    name, at = max([(one, text.rfind(f"{before}{one}_")) for one in _OBSERVATIONS], key=lambda found: found[1])
    number = _NUMBER(text, at + len(before) + len(name) + 1) if at >= 0 else None
    if number is None:
        return None

    def field(*names: str) -> str:
        for one in names:
            header = f"{before}{one}_{number[1]}{after}"
            start = text.rfind(header, 0, at + len(header))
            if start >= 0:
                start += len(header)
                marks = (ends.format(one, number[1]),) if ends else _ENDS
                stops = [stop for mark in marks if (stop := text.find(mark, start)) >= 0]
                return text[start : min(stops, default=len(text))].strip()
        return ""

    call = _call(field(*_NAMES), field(*_ARGUMENTS), field(_CODE), field(_CALLS))
    return None if call is None else NewestAction(field(*_THOUGHTS), call, field(name), int(number[1]) + 1)


def _call(name: str, given: str, code: str, calls: str) -> ToolCall | None:
    if name:
        return ToolCall(name[:_NAME_MAX], arguments(given))
    if code:
        return ToolCall(_PYTHON, code)
    named = _CALLED(calls)  # a list of calls, as Python shows it
    return None if named is None else ToolCall(named[1], calls)


def _lines(text: str) -> NewestAction | None:
    end = _THINK.search(text, max(0, len(text) - _THINK_MAX))
    observed = text.rfind("\nObservation", 0, end.start()) if end is not None else -1
    if end is None or observed < 0:
        return None
    start = max(text.rfind("\nThought", 0, observed), 0)
    written = _NUMBERED_LINE.sub(r"\1:", text[start:observed].strip()) + "\n"
    call = text_actions.read(written)
    _, colon, observation = text[observed : end.start()].partition(":")
    if call is None or not colon or any(mark in observation for mark in _BEGINS):
        return None
    thought = written.partition("\nAction")[0].partition(":")[2].strip()
    return NewestAction(thought, call, observation.strip(), text.count("\nObservation", 0, end.start()))
