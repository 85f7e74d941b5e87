"""A whole run in one message: DSPy keeps what an agent did so far as numbered fields of the user's only message, which
grows from request to request.

    [[ ## question ## ]] ... [[ ## trajectory ## ]]
    [[ ## thought_0 ## ]] ... [[ ## tool_name_0 ## ]] ... [[ ## tool_args_0 ## ]] ... [[ ## observation_0 ## ]] ...

The newest of these steps is the step of the request, and what stands before the trajectory opens the conversation.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_FIELD: Final = "[[ ## "
_CLOSED: Final = " ## ]]\n"
_TRAJECTORY: Final = "[[ ## trajectory ## ]]"
_OBSERVATION: Final = "[[ ## observation_"
_ENDS: Final = ("\n\n[[ ## ", "\n\nRespond with the corresponding output fields")  # what may follow an observation
_DIGITS_MAX: Final = 6


class LastAction(NamedTuple):
    """The newest step of a trajectory, as text."""

    number: int  # from 0
    thought: str
    tool: str
    arguments: str
    observation: str


def opening(text: str) -> str:
    """Return what stands before the trajectory in the text of a message; without one, the whole text."""
    at = text.find(_TRAJECTORY) if text.startswith(_FIELD) else -1
    return text if at < 0 else text[:at]


def last_action(text: object) -> LastAction | None:
    """Return the newest step in the text of a message; None if it has no trajectory."""
    if type(text) is not str or not text.startswith(_FIELD):
        return None
    at = text.rfind(_OBSERVATION)
    start = text.find(_CLOSED, at)
    digits = text[at + len(_OBSERVATION) : start]
    if at < 0 or start < 0 or len(digits) > _DIGITS_MAX or not digits.isdecimal():
        return None
    tool = _field(text, f"tool_name_{digits}", at)
    if not tool:
        return None
    start += len(_CLOSED)
    ends = [end for mark in _ENDS if (end := text.find(mark, start)) >= 0]
    observation = text[start : min(ends, default=len(text))]
    thought, arguments = _field(text, f"thought_{digits}", at), _field(text, f"tool_args_{digits}", at)
    return LastAction(int(digits), thought, tool, arguments, observation)


def _field(text: str, name: str, before: int) -> str:
    head = f"{_FIELD}{name}{_CLOSED}"
    at = text.rfind(head, 0, before)
    if at < 0:
        return ""
    at += len(head)
    return text[at : text.find(_ENDS[0], at)].strip()
