"""Whether a result says of itself that it failed: by exit status, or by the error form that a harness writes at its
beginning. Words further down are output and no errors (DETECTION: test reports are full of them). Flags of a dialect
are the dialect's own business.
"""

from __future__ import annotations

import re
from typing import Final

# Of the beginning and of the end, so much is looked at, whatever a result's length.
_EDGE: Final = 400
_LINES_FIRST: Final = 4
_LINES_LAST: Final = 6
# The whole line has to be about the status: `Exit code: 1`, `exitcode: 1 (execution failed)`, `[Command finished with
# exit code 1]`, `(exit status 2)`, `<returncode>1</returncode>`, `Process exited with code 1`.
_STATUS_LINE: Final = re.compile(
    r"""[\[(<*#]*+\ ?
    (?:(?:the\ )?(?:command|process|script|program|shell|task|bash|execution|it)\b[^\n:]{0,40}?\ )?
    (?:(?:finished|completed|failed|ended|terminated|exited|done|returned)\ )?(?:with\ )?(?:an?\ )?
    (?:(?:non-?zero\ )?(?:exit|return)[\ _-]?(?:code|status|value)|exited\ with(?:\ code|\ status)?|(?<=with\ )code)
    [>*\]]{0,3}\s*+(?:of|is|was)?[:\s]*+(-?\d{1,10})\b
    (?:[\])>.*\s]|</\w+>|\([^()\n]{0,60}\))*""",
    re.IGNORECASE | re.VERBOSE,
).fullmatch
# What harnesses put before an observation.
_PREFACE: Final = re.compile(
    r"""\s*(?:(?:Call\ id:[^\n]{0,80}|(?:\[)?OBSERVATION(?:\])?:?|Tool\ (?:output|result|response):|
    Observed\ output\ of\ cmd[^\n]{0,120}executed:|\[[^\]\n]{0,120}\]\ Result:|
    \[error\](?=\s*Traceback)|<(?:output|observation|tool_response|tool_result|function_results|result)>)\s*){0,3}""",
    re.IGNORECASE | re.VERBOSE,
).match
_ERROR: Final = re.compile(
    r"""(?:\[?(?:tool[ _])?error\]?[:!]|<(?:tool_use_)?error>|error\ (?:executing|calling|running|invoking|in\ code)\b|
    Traceback\ \(most\ recent\ call\ last\)|(?:Tool|Command|Code)\ (?:call\ |execution\ )?failed\b|success:\ *false\b|
    (?-i:[A-Z]\w{2,40}(?:Error|Exception)):)""",
    re.IGNORECASE | re.VERBOSE,
).match
# An object that says so in its first fields: `{"error": "..."}`, `{"isError": true`, `{"success": false`; in Python's
# spelling too. Nothing, and an empty error, are none.
_ERROR_OBJECT: Final = re.compile(
    r"""\{\s*(?:["']\w{1,40}["']\s*:\s*(?:"[^"\\]{0,200}"|'[^'\\]{0,200}'|[\w.+-]{1,30})\s*,\s*){0,3}
    (?:["']error["']\s*:\s*(?!null|None|false|0\b|""|''|\{\s*\}|\[\s*\])\S
      |["'](?:is_?error|failed)["']\s*:\s*true
      |["'](?:success|ok)["']\s*:\s*false
      |["']status["']\s*:\s*["'](?:error|failed|failure)["'])""",
    re.IGNORECASE | re.VERBOSE,
).match
# What neither a preface nor an error form begins with; most results begin so, and are done with at once.
_PLAIN: Final = frozenset(("", *"abdfghijklmnpqruvwxyz0123456789!\"#$%&'()*+,-./:;=>?@\\]^_`|}~"))
_EXIT_FIELD: Final = re.compile(
    r"""["'](?:exit_?code|return_?code|exit_?status)["']\s*:\s*(-?\d{1,10})\b""", re.IGNORECASE
).search


def result_error(text: str) -> bool:
    """Say whether a result failed, as the harness that wrote it has it; an exit status has the last word."""
    if not text:
        return False
    status = exit_status(text)
    if status is not None:
        return status != 0
    begins = text[:_EDGE]
    if text[0] in _PLAIN or begins.lstrip()[:1] in _PLAIN:
        return False
    preface = _PREFACE(begins)
    at = preface.end() if preface is not None else 0
    if begins.startswith("{", at):
        return _ERROR_OBJECT(begins, at) is not None
    return _ERROR(begins, at) is not None


def exit_status(text: str) -> int | None:
    """Return the exit status that stands in the first or last lines of a result; None where there is none."""
    begins = text[:_EDGE]
    ends = text[-_EDGE:] if len(text) > _EDGE else ""
    if begins.lstrip()[:1] == "{":
        field = _EXIT_FIELD(begins) or _EXIT_FIELD(ends)
        return int(field[1]) if field is not None else None
    if not _may_say(begins + ends):  # as most
        return None
    if not ends or _may_say(begins):
        status = _in_lines(begins.split("\n", _LINES_FIRST)[:_LINES_FIRST])
        if status is not None:
            return status
        if not ends:
            ends = begins
    if ends and _may_say(ends):
        return _in_lines(ends.rsplit("\n", _LINES_LAST)[-_LINES_LAST:])
    return None


def _may_say(piece: str) -> bool:
    # Three searches for a word cost a hundredth of what the expression for lines does.
    low = piece.lower()
    return ("x" in low and "exit" in low) or "return" in low or "with code" in low


def _in_lines(lines: list[str]) -> int | None:
    for line in lines:
        found = _STATUS_LINE(line.rstrip())  # what is indented is code
        if found is not None:
            return int(found[1])
    return None
