"""Actions that a model wrote as plain text instead of a native call: code blocks that agents execute, ReAct lines, tool
calls as XML or JSON. Without them a quarter of all loops would be missed.

Of each answer one action is read, the one that harnesses execute. Its result is in the message after it (`steps`).

Some agents write the whole run, every thought, action and observation so far, into the text of the user, and send that
as a new conversation each time; the newest action with its observation is the step (`read_run`). Two forms are read:
numbered fields, as DSPy writes them (`[[ ## tool_name_3 ## ]]`, `<tool_name_3>`), and the lines of ReAct prompts
(`Thought:`, `Action:`, `Action Input:`, `Observation:`, with or without numbers). Lines are only read if the text ends
where the model is to think on: a prompt that quotes such a run, as that of an LLM judge, ends otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from breakloop.dialects.content import arguments, json_text, lazy_pattern
from breakloop.model.call import ToolCall

_SHELL: Final = "bash"
_PYTHON: Final = "python"
# Languages whose blocks are executed; others are only shown to the user.
_EXECUTED: Final = (
    dict.fromkeys(("bash", "sh", "shell", "zsh", "mswea_bash_command", "execute_bash"), _SHELL)
    | dict.fromkeys(("powershell", "pwsh"), "powershell")
    | dict.fromkeys(("python", "py", "python3", "ipython", "tool_code", "execute_ipython"), _PYTHON)
)
_FENCE: Final = "```"
# Possessive (`*+`), so that a line that does not match is not tried again from each of its characters.
_OPENED: Final = r"^[ \t]*+(?:(?:Action|Code|Command)[ \t*]*+:[ \t*]*+)?```[ \t]*+"
_CLOSED: Final = r"[^\n`]*+\n(.*?)(?:^[ \t]*```|```[ \t]*$|<end_code>|\Z)"
_FENCED: Final = lazy_pattern(_OPENED + r"([\w+.#-]*+)" + _CLOSED, re.MULTILINE | re.DOTALL)
# A fence with a language always opens a block, even if an earlier fence was not closed.
_TAGGED: Final = lazy_pattern(_OPENED + r"([\w+.#-]++)" + _CLOSED, re.MULTILINE | re.DOTALL)
_REACT: Final = lazy_pattern(
    r"^[ \t*#]*Action[ \t*]*:([^\n]*)\n+(?:[ \t*#]*Action[ _]Input[ \t*]*:(?:\*\*)?(.*))?",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_OBSERVED: Final = re.compile(r"\n[ \t*#]*Observation[ \t*]*:", re.IGNORECASE)
_REACT_NAME: Final = re.compile(r"`?([\w.:/ -]{1,64}?)`?").fullmatch
_REACT_CALL: Final = re.compile(r"`?([A-Za-z_][\w.]{0,63})[(\[](.*)[)\]]`?", re.DOTALL).fullmatch
_TOOL_CALL: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION: Final = lazy_pattern(r"<function=([\w.:/-]{1,64})>(.*?)(?:</function>|\Z)", re.DOTALL)
_INVOKE: Final = lazy_pattern(
    r"""<(?:\w+:)?invoke\s+name=["']([^"'\n]{1,64})["']\s*>(.*?)(?:</(?:\w+:)?invoke>|\Z)""", re.DOTALL
)
_PARAMETER: Final = lazy_pattern(
    r"""<(?:\w+:)?parameter(?:=([\w.-]{1,64})|\s+name=["']([^"'\n]{1,64})["'][^>\n]{0,80})>(.*?)(?:</(?:\w+:)?parameter>|\Z)""",
    re.DOTALL,
)
_EXECUTE: Final = lazy_pattern(r"<(execute_(?:bash|ipython|browse)|code(?=>\s*\n))>(.*?)(?:</\1>|\Z)", re.DOTALL)
_EXECUTE_NAMES: Final = {"execute_bash": _SHELL, "execute_ipython": _PYTHON, "code": _PYTHON}
# Calls that a framework wrote back into the conversation as Python prints them, with a new id each time.
_LIST: Final = "Calling tools:\n["
_LISTED: Final = re.compile(r"'function': \{'name': '([\w.:/-]{1,64})', 'arguments': ")
_LISTED_ID: Final = re.compile(r"\{'id': '[^'\n]{0,80}', 'type': 'function', ")
# A string that is not closed is one up to the end, so that what is in it is not searched for another.
_PYTHON_VALUE: Final = lazy_pattern(
    r"'((?:[^'\\]|\\.?)*+)'?|\"(?:[^\"\\]|\\.?)*+\"?|\b(?:True|False|None)\b", re.DOTALL
)
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}
# A tag named after the tool at the end of the answer: <read_file><path>a.py</path></read_file>. A name without `_` may
# be HTML.
_NAMED_TAG: Final = re.compile(r"</([a-z]+(?:_[a-z]+)+)>\s*\Z")
_COMMAND: Final = lazy_pattern(
    r"([a-z_][\w.-]{0,40}|[A-Z]\w{0,40}\.(?:py|sh|pl|rb|js)|\./[\w./-]{1,80}|/[\w./-]{1,80})(?:\s|\Z)"
)
_LINES_OF_ONE_COMMAND: Final = 200
_NAMES: Final = ("name", "tool", "tool_name", "function", "action", "recipient_name")
_ARGUMENTS: Final = ("arguments", "parameters", "params", "args", "action_input", "tool_input", "input", "kwargs")
_WRAPPED: Final = ("function_call", "tool_call", "function", "command", "use_tool", "action")
_ENDED: Final = frozenset(("final answer", "final_answer", "none", "n/a", "finish"))
_NAME_MAX: Final = 64
_DEPTH_MAX: Final = 2


def read(text: str, *, declared: bool = False) -> ToolCall | None:
    """Return the action in the text of an answer, or None.

    If the request declares tools (`declared`), code in an answer is shown to the user and not executed. Then only forms
    that cannot be anything but a call are read.
    """
    action: ToolCall | None = None
    if "<" in text:
        action = _marked(text)
        if action is not None:
            return action
    stripped = text.strip()
    if stripped[:1] in ("{", "[") and stripped[-1:] in ("}", "]"):
        action = _object(stripped)
        if action is not None:
            return action
    listed = -1
    if "ction" in text or "CTION" in text:
        action = _react(text)
        if action is not None:
            return action
        listed = text.rfind(_LIST)
    if _FENCE in text:
        action = _fenced(text, declared=declared)
    elif "<code>\n" in text and not declared:
        action = _executed(text)
    return _listed(text, listed) if action is None and listed >= 0 else action


def _marked(text: str) -> ToolCall | None:
    """Read the forms with their own marks, which are always calls."""
    for mark, reader in _MARKED:
        if mark in text:
            action = reader(text)
            if action is not None:
                return action
    end = _NAMED_TAG.search(text, max(0, len(text) - 100))
    if end is None:
        return None
    name = end[1]
    start = text.rfind(f"<{name}>", 0, end.start())
    inside = text[start + len(name) + 2 : end.start()].strip() if start >= 0 else ""
    return ToolCall(name, inside) if inside.startswith("<") else None


def _tool_call(text: str) -> ToolCall | None:
    found = _TOOL_CALL.findall(text)
    inside = found[-1].strip() if found else ""
    if inside.startswith("<function="):
        return _with_parameters(_FUNCTION(), inside)
    return _object(inside)


def _with_parameters(pattern: re.Pattern[str], text: str) -> ToolCall | None:
    found = pattern.findall(text)
    if not found:
        return None
    name, inside = found[-1]
    given = {key or other: value.strip("\n") for key, other, value in _PARAMETER().findall(inside)}
    return ToolCall(name, json_text(given).decode() if given else arguments(inside.strip()))


def _executed(text: str) -> ToolCall | None:
    """Read the last block between tags that mark it for execution."""
    found = _EXECUTE().findall(text)
    if not found:
        return None
    name, inside = found[-1]
    inside = _unfenced(inside.strip())
    return ToolCall(_EXECUTE_NAMES.get(name, name), inside) if inside else None


def _react(text: str) -> ToolCall | None:
    """Read the first `Action:` and `Action Input:`, because that is the one executed."""
    found = _REACT().search(text)
    if found is None:
        return None
    name, given = found[1].strip(" \t*"), found[2]
    if name.strip("`[]\"'").lower() in _ENDED:
        return None
    if given is not None:
        observed = _OBSERVED.search(given)
        given = (given[: observed.start()] if observed is not None else given).strip()
        named = _REACT_NAME(name)
        return None if named is None else ToolCall(named[1].strip(), arguments(_unfenced(given)))
    if not name:  # a block of JSON or code follows
        return None
    called = _REACT_CALL(name)
    return None if called is None else ToolCall(called[1], called[2].strip())


def _unfenced(given: str) -> str:
    if not given.startswith(_FENCE):
        return given
    found = _FENCED().search(given)
    return given if found is None else found[2].strip()


def _fenced(text: str, *, declared: bool) -> ToolCall | None:
    """Read the last code block that is executed, or that is a call as JSON; else one without a language at the end.

    Shell blocks take precedence: agents that run commands also quote Python in their reasoning.
    """
    last: ToolCall | None = None
    for language, block in reversed(_TAGGED().findall(text)):
        inside = block.strip()
        action = _object(inside) if inside[:1] in ("{", "[") else None
        if action is not None:
            return action
        name = _EXECUTED.get(language.lower())
        if name is None or declared or not inside:
            continue
        if name == _SHELL:
            return ToolCall(name, inside)
        last = last or ToolCall(name, inside)
    return last or _bare(text, declared=declared)


def _bare(text: str, *, declared: bool) -> ToolCall | None:
    blocks = _FENCED().findall(text)
    inside = blocks[-1][1].strip() if blocks and not blocks[-1][0] else ""
    if inside[:1] in ("{", "["):
        return _object(inside)
    return _command(inside) if not declared and len(blocks) == 1 and text.rstrip().endswith(_FENCE) else None


def _command(inside: str) -> ToolCall | None:
    """Read a block without a language at the end, as SWE-agent writes commands. The first word is the name."""
    found = _COMMAND().match(inside)
    if found is None or inside.count("\n") > _LINES_OF_ONE_COMMAND:
        return None
    return ToolCall(found[1], inside)


def _listed(text: str, at: int) -> ToolCall | None:
    """Read a list of calls as one: its results are in one message, too. The first name is the name. The arguments of a
    single call become JSON, by which terminals, waits and commands are recognised."""
    found = _LISTED.search(text, at)
    if found is None:
        return None
    if _LISTED.search(text, found.end()) is None:
        action = _object(_PYTHON_VALUE().sub(_as_json, text[at + len(_LIST) - 1 :].rstrip()))
        if action is not None:
            return action
    return ToolCall(found[1], _LISTED_ID.sub("", text[found.end() :]).rstrip("]} \n"))


def _as_json(value: re.Match[str]) -> str:
    """Return a string or a constant of Python as JSON spells it."""
    if value[1] is not None:
        inside = value[1].replace("\\'", "'").replace('"', '\\"').replace("\\x", "\\u00")
        return f'"{inside}"'
    return _CONSTANTS.get(value[0]) or value[0].replace("\\x", "\\u00")


def _object(inside: str) -> ToolCall | None:
    """Read a call as JSON: `{"name": ..., "arguments": ...}`, `{"action": ..., "action_input": ...}` and the like."""
    try:
        value = orjson.loads(inside)
    except ValueError:
        return None
    if isinstance(value, list):
        value = value[-1] if value else None
    return _named(value) if isinstance(value, dict) else None


def _named(value: dict[str, Any], depth: int = 0) -> ToolCall | None:
    for key in _WRAPPED if depth < _DEPTH_MAX else ():
        inner = value.get(key)
        if isinstance(inner, dict):
            action = _named(inner, depth + 1)
            if action is not None:
                return action
    steps = value.get("action")
    if isinstance(steps, list) and steps and isinstance(steps[0], dict) and len(steps[0]) == 1:
        return ToolCall(next(iter(steps[0]))[:_NAME_MAX], arguments(steps))
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), "")
    given = next((key for key in _ARGUMENTS if key in value), None)
    if not name or given is None or len(name) > _NAME_MAX or name.lower() in _ENDED:
        return None
    return ToolCall(name, arguments(value[given]))


_MARKED: Final[tuple[tuple[str, Callable[[str], ToolCall | None]], ...]] = (
    ("<tool_call>", _tool_call),
    ("<function=", partial(_with_parameters, _FUNCTION())),
    ("invoke name=", partial(_with_parameters, _INVOKE())),
    ("<execute_", _executed),
)


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
_RUN_NAMES: Final = ("tool_name", "action")
_RUN_ARGUMENTS: Final = ("tool_args", "action_input", "args")
_CODE: Final = "generated_code"
_CALLS: Final = "tool_calls"
_CALLED: Final = re.compile(r"name='([\w.:/-]{1,64})'").search
_NUMBER: Final = re.compile(r"(\d{1,6})(?: ## \]\]|>)").match
_ENDS: Final = ("\n\n[[ ## ", "\n\nRespond with the corresponding output fields")
_THINK: Final = lazy_pattern(r"\n[ \t*#]*Thought(?: \d{1,4})?[ \t*]*:[ \t*]*\Z", re.IGNORECASE)
_NUMBERED_LINE: Final = lazy_pattern(r"^(Thought|Action Input|Action) \d{1,4}[ \t]*:", re.MULTILINE | re.IGNORECASE)
_BEGINS: Final = ("\nQuestion:", "\nBegin!", "\nTask:")  # after examples and rules, which have the same lines
_THINK_MAX: Final = 60  # characters at the end in which the model is told to think on


def read_run(text: str) -> NewestAction | None:
    """Return the newest action of the run in a text, or None."""
    if text.startswith(_FIELD):
        return _numbered(text, "[[ ## {}_{} ## ]]", "")
    if _TAG in text:
        return _numbered(text, "<{}_{}>", "</{}_{}>")
    return _lines(text) if "\nObservation" in text else None


def before_run(text: str) -> str:
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

    call = _call(field(*_RUN_NAMES), field(*_RUN_ARGUMENTS), field(_CODE), field(_CALLS))
    return None if call is None else NewestAction(field(*_THOUGHTS), call, field(name), int(number[1]) + 1)


def _call(name: str, given: str, code: str, calls: str) -> ToolCall | None:
    if name:
        return ToolCall(name[:_NAME_MAX], arguments(given))
    if code:
        return ToolCall(_PYTHON, code)
    named = _CALLED(calls)  # a list of calls, as Python shows it
    return None if named is None else ToolCall(named[1], calls)


def _lines(text: str) -> NewestAction | None:
    end = _THINK().search(text, max(0, len(text) - _THINK_MAX))
    observed = text.rfind("\nObservation", 0, end.start()) if end is not None else -1
    if end is None or observed < 0:
        return None
    start = max(text.rfind("\nThought", 0, observed), 0)
    written = _NUMBERED_LINE().sub(r"\1:", text[start:observed].strip()) + "\n"
    call = read(written)
    _, colon, observation = text[observed : end.start()].partition(":")
    if call is None or not colon or any(mark in observation for mark in _BEGINS):
        return None
    thought = written.partition("\nAction")[0].partition(":")[2].strip()
    return NewestAction(thought, call, observation.strip(), text.count("\nObservation", 0, end.start()))
