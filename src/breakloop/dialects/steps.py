"""The newest step of a request, as all dialects build it: bounded, without our own notes, media by their content.

A dialect fills a `StepBuilder` from the end of a conversation; `StepBuilder.build` makes the `Step`. A request of 10 MB
may hold a thousand texts, so the newest are read in full; of the others the edges and a digest are kept, so that
different steps still differ.

`result_error` and `exit_status` decide from the text of a result whether a call failed: by its exit status, or by the
error form that a harness writes at its beginning. Words further down are output, not errors: test reports are full of
them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import xxhash

from breakloop.dialects import text_actions
from breakloop.dialects.content import (
    ITEMS_MAX,
    arguments,
    clean,
    is_reasoning,
    json_text,
    lazy_pattern,
    text,
    without_ids,
)
from breakloop.dialects.text_actions import NewestAction
from breakloop.model.call import Result, Step, ToolCall
from breakloop.model.decision import END, MARK, MARKED_NOTE_MAX

# Characters of all results of a step, of all its arguments, of all texts of the user. Each takes up to 0.1 us.
ALL_MAX: Final = 512 * 1024
# Characters of one text. Of a longer one the beginning, the end and a digest of the whole are kept, so that a change in
# the middle of a large file is noticed.
TEXT_MAX: Final = 64 * 1024
_HEAD: Final = 48 * 1024
_TAIL: Final = 16 * 1024
_FEW: Final = 8  # results, each within its own bound, that never exceed the total
_KEPT_EDGE: Final = 120
NAME_MAX: Final = 1000


class TextBudget:
    """The number of characters that may still be read in full."""

    __slots__ = ("left",)

    def __init__(self, left: int = ALL_MAX) -> None:
        self.left = left

    def take(self, value: str) -> str:
        """Return the text, or its edges and a digest once the budget is spent."""
        self.left -= len(value)
        return value if self.left >= 0 else edges(value)


def bounded_results(results: list[Result]) -> list[Result]:
    """Limit the total text of results, given newest first."""
    if len(results) <= _FEW:
        return results
    budget = TextBudget()
    return [one._replace(text=budget.take(one.text)) for one in results]


def bounded(value: str) -> str:
    """Return a text of little more than `TEXT_MAX` characters: beginning, digest and end of a longer one."""
    if len(value) <= TEXT_MAX:
        return value
    return f"{value[:_HEAD]}\n<cut:{digest(value)}>\n{value[-_TAIL:]}"


def edges(value: str) -> str:
    """Return both ends of a text and a digest of the whole; a short text unchanged."""
    if len(value) <= 3 * _KEPT_EDGE:
        return value
    return f"{value[:_KEPT_EDGE]}\n<cut:{digest(value)}>\n{value[-_KEPT_EDGE:]}"


def short_name(name: str) -> str:
    """Return the name of a tool; of an absurdly long one its beginning and a digest."""
    return name if len(name) <= NAME_MAX else f"{name[:_KEPT_EDGE]}<cut:{digest(name)}>"


def digest(value: str) -> str:
    """Return 16 hexadecimal digits that represent a text."""
    return xxhash.xxh3_64_hexdigest(value.encode("utf-8", "replace"))


# Characters at each end of a result that are searched for an exit status or an error form, whatever its length.
_SEARCHED: Final = 400
_LINES_FIRST: Final = 4
_LINES_LAST: Final = 6
# The whole line has to be about the status: `Exit code: 1`, `exitcode: 1 (execution failed)`, `[Command finished with
# exit code 1]`, `(exit status 2)`, `<returncode>1</returncode>`, `Process exited with code 1`.
_STATUS_LINE: Final = lazy_pattern(
    r"""[\[(<*#]*+\ ?
    (?:(?:the\ )?(?:command|process|script|program|shell|task|bash|execution|it)\b[^\n:]{0,40}?\ )?
    (?:(?:finished|completed|failed|ended|terminated|exited|done|returned)\ )?(?:with\ )?(?:an?\ )?
    (?:(?:non-?zero\ )?(?:exit|return)[\ _-]?(?:code|status|value)|exited\ with(?:\ code|\ status)?|(?<=with\ )code)
    [>*\]]{0,3}\s*+(?:of|is|was)?[:\s]*+(-?\d{1,10})\b
    (?:[\])>.*\s]|</\w+>|\([^()\n]{0,60}\))*""",
    re.IGNORECASE | re.VERBOSE,
)
# What harnesses write before an observation.
_PREFACE: Final = lazy_pattern(
    r"""\s*(?:(?:Call\ id:[^\n]{0,80}|(?:\[)?OBSERVATION(?:\])?:?|Tool\ (?:output|result|response):|
    Observed\ output\ of\ cmd[^\n]{0,120}executed:|\[[^\]\n]{0,120}\]\ Result:|
    \[error\](?=\s*Traceback)|<(?:output|observation|tool_response|tool_result|function_results|result)>)\s*){0,3}""",
    re.IGNORECASE | re.VERBOSE,
)
_ERROR: Final = lazy_pattern(
    r"""(?:\[?(?:tool[ _])?error\]?[:!]|<(?:tool_use_)?error>|error\ (?:executing|calling|running|invoking|in\ code)\b|
    Traceback\ \(most\ recent\ call\ last\)|(?:Tool|Command|Code)\ (?:call\ |execution\ )?failed\b|success:\ *false\b|
    (?-i:[A-Z]\w{2,40}(?:Error|Exception)):)""",
    re.IGNORECASE | re.VERBOSE,
)
# An object whose first fields mark an error: `{"error": "..."}`, `{"isError": true`, `{"success": false`, also as
# Python prints them. A missing or empty error is none.
_ERROR_OBJECT: Final = lazy_pattern(
    r"""\{\s*(?:["']\w{1,40}["']\s*:\s*(?:"[^"\\]{0,200}"|'[^'\\]{0,200}'|[\w.+-]{1,30})\s*,\s*){0,3}
    (?:["']error["']\s*:\s*(?!null|None|false|0\b|""|''|\{\s*\}|\[\s*\])\S
      |["'](?:is_?error|failed)["']\s*:\s*true
      |["'](?:success|ok)["']\s*:\s*false
      |["']status["']\s*:\s*["'](?:error|failed|failure)["'])""",
    re.IGNORECASE | re.VERBOSE,
)
# What a shell writes itself if it cannot run a command, and nothing else: `bash: line 1: gh: command not found`. Of a
# command that was not found among others, output follows. A warning at the start of a shell is no error.
_SHELLS: Final = ("bash: ", "sh: ", "/bin/sh: ", "/bin/bash: ", "zsh:", "dash: ", "ksh: ", "-bash: ")
_SHELL_ERROR: Final = lazy_pattern(
    r"""(?:-?bash|sh|/bin/(?:ba)?sh|zsh|dash|ksh):(?:\s?(?:line\s)?\d+:)?\s?[^\n]{0,300}?
    (?:command\ not\ found|not\ found|no\ such\ file\ or\ directory|permission\ denied|is\ a\ directory|cannot\ execute|
    syntax\ error|unexpected\ (?:eof|end\ of\ file|token)|unbound\ variable|bad\ substitution|no\ matches\ found)""",
    re.IGNORECASE | re.VERBOSE,
)
_SHELL_LINES: Final = 4
# Characters with which neither a preface nor an error form begins. Most results begin with one and need no search.
_PLAIN: Final = frozenset(("", *"abdfghijklmnpqruvwxyz0123456789!\"#$%&'()*+,-./:;=>?@\\]^_`|}~"))
# The other small letters, and how each word begins that a preface or an error form has after one of them.
_OTHERS: Final = frozenset("ceost")
_WORDS: Final = frozenset(("call", "code", "comm", "erro", "obse", "succ", "tool", "trac"))
_EXIT_FIELD: Final = lazy_pattern(
    r"""["'](?:exit_?code|return_?code|exit_?status)["']\s*:\s*(-?\d{1,10})\b""", re.IGNORECASE
)


def result_error(value: str) -> bool:
    """Return whether a result is an error by its own text. An exit status takes precedence over error forms."""
    if not value:
        return False
    status = exit_status(value)
    if status is not None:
        return status != 0
    if value.startswith(_SHELLS):
        return _shell_failed(value)
    if value[0] in _PLAIN:
        return False
    begins = value[:_SEARCHED]
    start = begins.lstrip()[:4]
    if start[:1] in _PLAIN or (start[0] in _OTHERS and start.isascii() and start.lower() not in _WORDS):
        return False
    preface = _PREFACE().match(begins)
    at = preface.end() if preface is not None else 0
    if begins.startswith("{", at):
        return _ERROR_OBJECT().match(begins, at) is not None
    return _ERROR().match(begins, at) is not None


def _shell_failed(value: str) -> bool:
    lines = value.rstrip().split("\n", _SHELL_LINES)
    return len(lines) <= _SHELL_LINES and _SHELL_ERROR().match(value) is not None and lines[-1].startswith(_SHELLS)


def exit_status(value: str) -> int | None:
    """Return the exit status in the first or last lines of a result; None if there is none."""
    begins, ends = value, ""
    if len(value) > _SEARCHED:
        begins, ends = value[:_SEARCHED], value[-_SEARCHED:]
    if begins.lstrip().startswith("{"):
        field = _EXIT_FIELD().search(begins) or _EXIT_FIELD().search(ends)
        return int(field[1]) if field is not None else None
    if not _may_hold_status(begins + ends):
        return None
    if not ends or _may_hold_status(begins):
        status = _status_in(begins.split("\n", _LINES_FIRST)[:_LINES_FIRST])
        if status is not None:
            return status
        if not ends:
            ends = begins
    if ends and _may_hold_status(ends):
        return _status_in(ends.rsplit("\n", _LINES_LAST)[-_LINES_LAST:])
    return None


def _may_hold_status(value: str) -> bool:
    # Three searches for a word cost a hundredth of the regular expression.
    low = value.lower()
    return ("x" in low and "exit" in low) or "return" in low or "with code" in low


def _status_in(lines: list[str]) -> int | None:
    for line in lines:
        found = _STATUS_LINE().fullmatch(line.rstrip())  # an indented line is code
        if found is not None:
            return int(found[1])
    return None


_SPELLED_MAX: Final = 4 * TEXT_MAX  # characters of arguments that are brought into one spelling
_PARTS_MAX: Final = 100  # parts of one content that are read one by one
_USER_PARTS_MAX: Final = 2 * ITEMS_MAX  # parts of all contents of the user
_LONG: Final = 4 * TEXT_MAX  # a longer text is searched for additions at both ends only
_CALLS_MAX: Final = ITEMS_MAX + 1  # the last one represents all further calls
_REMOVED_MAX: Final = 16
# A short text of the assistant at the very end is a prefill (`{`, `<answer>`), which the model continues.
_PREFILL_MAX: Final = 200
# What harnesses add to texts of the user and to results, different each time: open files, the time, a to-do list. It is
# not new information.
_ADDITIONS: Final = (("<system-reminder>", "</system-reminder>"), ("<environment_details>", "</environment_details>"))
_DATA_MARK: Final = ";base64,"
_DATA_URL: Final = re.compile(r"data:(\w+)/[\w.+-]{1,80};base64,([A-Za-z0-9+/=_-]*)").sub
_MEDIA: Final = (
    dict.fromkeys(("image", "image_url", "input_image", "image_file", "computer_screenshot"), "image")
    | dict.fromkeys(("audio", "input_audio"), "audio")
    | dict.fromkeys(("video", "video_url", "input_video"), "video")
    | dict.fromkeys(("file", "input_file", "document"), "file")
)
_OPAQUE: Final = frozenset(("encrypted_content", "encrypted_index", "signature"))
_DATA_MIN: Final = 256  # characters of a medium's data; what is shorter is an address or a name
_KIND_MAX: Final = 32
_OPENING_ROLES: Final = frozenset(("system", "developer"))
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class


class StepBuilder:
    """Collects the last answer of a conversation and everything after it, from the end backwards: newest first."""

    __slots__ = (
        "_to_read", "_to_spell", "answered", "calls", "continues", "ids", "results", "separator", "stored", "texts",
        "users",
    )  # fmt: skip

    def __init__(self, separator: str = "\n") -> None:
        self.answered = False  # an answer of the model was found
        self.separator = separator  # between the pieces of the answer's text
        self.texts: list[str] = []  # of the answer
        self.calls: list[ToolCall] = []
        self.ids: list[str] = []
        self.results: list[Result] = []
        self.users: list[tuple[str, Any]] = []  # role and content
        self.continues: str | None = None  # as in `Step`
        self.stored = False
        self._to_read = ALL_MAX
        self._to_spell = _SPELLED_MAX

    def add_raw_call(self, name: object, given: str, call_id: object) -> None:
        """Add a call of the answer, with its arguments as they are."""
        if type(name) is not str or len(name) > NAME_MAX:
            name = short_name(text(name))
        if len(given) > TEXT_MAX:
            given = bounded(given)
        self._to_read -= len(given)
        self.calls.append(_new(ToolCall, (name, given if self._to_read >= 0 else edges(given))))
        self.ids.append(call_id if type(call_id) is str else text(call_id))

    def add_call(self, name: object, given: object, call_id: object, spelled: str | None = None) -> None:
        """Add a call whose arguments are a value, or JSON as text. They are brought into one spelling, unless that
        would cost too much; `spelled` is that spelling if it is known already."""
        size = len(given) if isinstance(given, str) else 1
        if size > self._to_spell:
            spelled = text(given)
        elif spelled is None:
            spelled = arguments(given)
        self._to_spell -= len(spelled)
        self.add_raw_call(name, spelled, call_id)

    def add_read_call(self, call: object, read: ToolCall) -> bool:
        """Add a call that was read before; return False if it is too long to be taken as it is."""
        if type(call) is not dict or len(read[0]) > NAME_MAX or len(read[1]) > TEXT_MAX:
            return False
        call_id = call.get("id")
        self.calls.append(read)
        self.ids.append(call_id if type(call_id) is str else text(call_id))
        return True

    def is_prefill(self, value: object) -> bool:
        """Return whether the text of a last answer may be a prefill."""
        if self.results or self.users or not isinstance(value, str) or len(value) > _PREFILL_MAX:
            return False
        return text_actions.read(value) is None

    def build(self, tools: tuple[str, ...], messages: int, size: int) -> Step:
        """Return the step. An action spelled out in the text is the call, if the answer has no other."""
        said = without_additions(self.separator.join(reversed(self.texts))) if self.texts else ""
        calls, ids = tuple(self.calls), tuple(self.ids)
        if len(calls) > 1:
            calls, ids = calls[_CALLS_MAX - 1 :: -1], ids[_CALLS_MAX - 1 :: -1]  # these are newest first
        if ids and not (ids[0] or any(self.ids)):
            ids = ()
        results = self.results if len(self.results) <= 1 else bounded_results(self.results[:ITEMS_MAX])[::-1]
        users = self.users[::-1] if self.users else []
        if users and not self.answered:
            users = [(role, value) for role, value in users if role not in _OPENING_ROLES]
        if users and not (calls or results):
            made = text_actions.read_run(_plain(users[-1][1]))
            if made is not None:
                return self._of_trajectory(made, tools, messages, size)
        action = text_actions.read(said, declared=bool(tools)) if said and not calls else None
        if action is not None:
            calls = (ToolCall(short_name(action.name), bounded(action.arguments)),)
            if not results and users:
                results.append(result(users.pop(0)[1]))
        texts = _user_texts(users) if users else ()
        as_text, continues, stored = action is not None, self.continues, self.stored
        return _new(Step, (said, calls, ids, tuple(results), texts, tools, messages, size, as_text, continues, stored))

    def _of_trajectory(self, made: NewestAction, tools: tuple[str, ...], messages: int, size: int) -> Step:
        """Return the newest step of a run that is in one message: as if each action were two messages."""
        name, given = made.call
        calls, results = (ToolCall(short_name(name), bounded(given)),), (result(made.observation),)
        said, length = without_additions(made.thought), messages + 2 * made.number
        return _new(Step, (said, calls, (), results, (), tools, length, size, True, self.continues, self.stored))


def _plain(value: object) -> str:
    """Return a content that is a single text, or ""."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("text")
    return value if isinstance(value, str) else ""


def _user_texts(users: list[tuple[str, Any]]) -> tuple[str, ...]:
    texts: list[str] = []
    parts, budget = _USER_PARTS_MAX, TextBudget()
    for _, value in reversed(users):
        if isinstance(value, list):
            parts -= min(len(value), ITEMS_MAX)
        said = without_additions(_with_media(value) if parts >= 0 else text(value))
        if said:
            texts.append(budget.take(said))
    return tuple(reversed(texts))


def _with_media(value: object) -> str:
    if isinstance(value, str):
        return value
    said, media = text_and_media(value)
    return "\n".join(filter(None, (said, *(f"<{one}>" for one in media))))


def result(value: object, call_id: object = "", *, failed: bool = False) -> Result:
    """Return the result of a call from its content. It is an error by the dialect's flag or by its own text."""
    said, media = (value, ()) if type(value) is str and ";" not in value else text_and_media(value)
    if len(said) > TEXT_MAX or "[" in said or "<" in said:  # else there is nothing to remove
        said = without_additions(said)
    if type(call_id) is not str:
        call_id = text(call_id)
    return _new(Result, (said, failed or result_error(said), call_id, media))


def without_additions(value: str) -> str:
    """Remove our own notes and the additions of harnesses from a text, and bound it."""
    if len(value) > _LONG:
        half = _LONG // 2
        return bounded(_remove_additions(value[:half]) + value[half:-half] + _remove_additions(value[-half:]))
    value = _remove_additions(value)
    return value if len(value) <= TEXT_MAX else bounded(value)


def _remove_additions(value: str) -> str:
    # Searching for one character takes a twentieth of the time.
    if "[" in value and END in value:
        value = _without(value, MARK, END, MARKED_NOTE_MAX)
    if "<" in value:
        for begin, end in _ADDITIONS:
            if end in value:
                value = _without(value, begin, end, len(value))
    return value


def _without(value: str, begin: str, end: str, within: int) -> str:
    at = 0
    for _ in range(_REMOVED_MAX):
        stop = value.find(end, at)
        if stop < 0:
            break
        start = value.rfind(begin, max(0, stop - within), stop)
        if start < 0:  # an end without a beginning: part of the text
            at = stop + len(end)
            continue
        before, behind = value[:start].rstrip(), value[stop + len(end) :]
        value = before + behind if before else behind.lstrip()
        at = min(at, len(before))
    return value


def text_and_media(value: object) -> tuple[str, tuple[str, ...]]:
    """Return the text of a content, and its media as type and digest, such as `image:8c61f0d2a97b35e4`."""
    if isinstance(value, str):
        return _without_data_urls(value) if ";" in value and _DATA_MARK in value else (value, ())
    if isinstance(value, dict) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        return text(value), ()
    texts: list[str] = []
    media: list[str] = []
    for part in value[:_PARTS_MAX]:
        if is_reasoning(part):
            continue
        said, part_media = _part(part)
        if said:
            texts.append(said)
        media.extend(part_media)
    if len(value) > _PARTS_MAX:
        texts.append(_further_parts(value[_PARTS_MAX:]))
    return "\n".join(texts), tuple(media)


def _further_parts(parts: list[Any]) -> str:
    """Return the number of parts and a digest of their texts, and of the media among the first ones."""
    said = [
        (part.get("text") or media_key("part", part)) if isinstance(part, dict) else part for part in parts[:ITEMS_MAX]
    ]
    said += [part.get("text") if isinstance(part, dict) else part for part in parts[ITEMS_MAX:]]
    return f"<more:{len(parts)}:{digest(chr(10).join([one for one in said if isinstance(one, str)]))}>"


def _part(part: object) -> tuple[str, tuple[str, ...]]:
    if not isinstance(part, dict):
        return text_and_media(part) if isinstance(part, str) else (text(part), ())
    kind, said = part.get("type"), part.get("text")
    if isinstance(said, str):
        return text_and_media(said)
    source = part.get("source") or part.get("resource")
    inside = source if isinstance(source, dict) else None
    if inside is not None and (inside.get("type") == "text" or isinstance(inside.get("text"), str)):
        return text_and_media(text(inside.get("text") or inside.get("data")))
    if isinstance(kind, str) and (kind in _MEDIA or "data" in part or inside is not None):
        return "", (media_key(_MEDIA.get(kind, "file"), part),)
    return json_text({key: one for key, one in without_ids(part).items() if key not in _OPAQUE}).decode(), ()


def _without_data_urls(value: str) -> tuple[str, tuple[str, ...]]:
    media: list[str] = []

    def remove(found: re.Match[str]) -> str:
        media.append(f"{found[1].lower()[:_KIND_MAX]}:{digest(found[2])}")
        return ""

    rest = _DATA_URL(remove, value, ITEMS_MAX)
    return rest, tuple(media)


def media_key(kind: str, item: object) -> str:
    """Return the type of a medium and a digest of its content: of its encoded bytes, or of its address and whatever
    else names it. A picture of the same screen is the same only if its bytes are."""
    strings = _strings(without_ids(item) if isinstance(item, dict) else item, 3)
    longest = max(strings, key=len, default="")
    if len(longest) < _DATA_MIN:
        longest = "\n".join(strings)
    elif longest.startswith("data:"):
        longest = longest[longest.find(",", 0, 200) + 1 :]
    return f"{kind[:_KIND_MAX]}:{digest(longest)}"


def _strings(item: object, depth: int) -> list[str]:
    if isinstance(item, str):
        return [item]
    if not isinstance(item, dict) or depth == 0:
        return []
    return [one for key, value in item.items() if key != "type" for one in _strings(value, depth - 1)]


def clean_step(step: Step) -> Step:
    """Replace lone surrogates in all texts of a step."""
    return step._replace(
        said=clean(step.said),
        calls=tuple([ToolCall(clean(call.name), clean(call.arguments)) for call in step.calls]),
        call_ids=tuple(map(clean, step.call_ids)),
        results=tuple(
            [Result(clean(r.text), r.error, clean(r.call_id), tuple(map(clean, r.media))) for r in step.results]
        ),
        users=tuple(map(clean, step.users)),
        tools=tuple(map(clean, step.tools)),
    )
