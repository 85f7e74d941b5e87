"""What the dialects share in reading a step (SPEC LD-4): what is gathered behind the last answer of the model, and how
it becomes a `Step`: bounded, without our own notes, media in results as type and size class.

Where a dialect keeps its messages, calls and results is its own file's business.

How much of a step is read: of one text, and in all, for a request of 10 MB may hold a thousand texts, and must not
hold up everybody else. What is newest is read; of the rest its edges and a digest are kept, so that steps that differ
still do.

Whether a result says of itself that it failed: by exit status, or by the error form that a harness writes at its
beginning. Words further down are output and no errors (DETECTION: test reports are full of them). Flags of a dialect
are the dialect's own business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import xxhash

from breakloop.dialects import text_actions
from breakloop.dialects.base import (
    ITEMS_MAX,
    BodyFields,
    ParsedBody,
    arguments,
    clean,
    content,
    is_silent,
    json_text,
    text,
    without_ids,
)
from breakloop.model.call import END, MARK, Result, Step, ToolCall

# Characters of all results of a step, of all its arguments, of all texts of the user: judging takes up to 0.1 us each.
ALL_MAX: Final = 512 * 1024
# Characters of one text. Of a longer one the beginning, the end and a digest of the whole are kept: a large file that
# was changed in its middle is another result.
TEXT_MAX: Final = 64 * 1024
_HEAD: Final = 48 * 1024
_TAIL: Final = 16 * 1024
_FEW: Final = 8  # texts, each within its own bound, that are never too much
_KEPT_EDGE: Final = 120
NAME_MAX: Final = 1000


class ResultBudget:
    """What is left of the characters that are read."""

    __slots__ = ("left",)

    def __init__(self, left: int = ALL_MAX) -> None:
        self.left = left

    def take(self, said: str) -> str:
        """Return a text, or what stands for it where there were too many characters before it."""
        self.left -= len(said)
        return said if self.left >= 0 else edges(said)


def newest(results: list[Result]) -> list[Result]:
    """Return results, which come newest first, with so much text in all."""
    if len(results) <= _FEW:  # as nearly always
        return results
    budget = ResultBudget()
    return [one._replace(text=budget.take(one.text)) for one in results]


def bounded(said: str) -> str:
    """Return a text of at most `TEXT_MAX` characters and a little more: its beginning, a digest, and its end."""
    if len(said) <= TEXT_MAX:
        return said
    return f"{said[:_HEAD]}\n<cut:{digest(said)}>\n{said[-_TAIL:]}"


def edges(said: str) -> str:
    """Return the beginning and the end of a text and a digest of the whole; a short text as it is."""
    return said if len(said) <= 3 * _KEPT_EDGE else f"{said[:_KEPT_EDGE]}\n<cut:{digest(said)}>\n{said[-_KEPT_EDGE:]}"


def short(name: str) -> str:
    """Return a tool's name; of an absurdly long one the beginning and a digest."""
    return name if len(name) <= NAME_MAX else f"{name[:_KEPT_EDGE]}<cut:{digest(name)}>"


def digest(said: str) -> str:
    """Return 16 hex digits that stand for a text."""
    return xxhash.xxh3_64_hexdigest(said.encode("utf-8", "replace"))


# Of the beginning and of the end, so much is looked at, whatever a result's length.
_LOOKED_AT: Final = 400
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
    begins = text[:_LOOKED_AT]
    if text[0] in _PLAIN or begins.lstrip()[:1] in _PLAIN:
        return False
    preface = _PREFACE(begins)
    at = preface.end() if preface is not None else 0
    if begins.startswith("{", at):
        return _ERROR_OBJECT(begins, at) is not None
    return _ERROR(begins, at) is not None


def exit_status(text: str) -> int | None:
    """Return the exit status that stands in the first or last lines of a result; None where there is none."""
    begins = text[:_LOOKED_AT]
    ends = text[-_LOOKED_AT:] if len(text) > _LOOKED_AT else ""
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


_SPELLED_MAX: Final = 4 * TEXT_MAX  # characters of arguments that are brought into one spelling
_PARTS_MAX: Final = 100  # of one content that are read one by one
_PARTS_OF_USERS_MAX: Final = 2 * ITEMS_MAX  # of all contents of the user
_LONG: Final = 4 * TEXT_MAX  # only at both ends of a longer text is looked for what does not belong to it
_CALLS_MAX: Final = ITEMS_MAX + 1  # one more, which stands for all the others
_NOTE_MAX: Final = 1100
_REMOVED_MAX: Final = 16
# A short text of the model's at the very end is a beginning that it shall go on with (`{`, `<answer>`), and no answer.
_PREFILL_MAX: Final = 200
# What harnesses add to the words of the user or to results, anew each time: open files, the hour, a list of things to
# do. It is no news from outside.
_ADDED: Final = (
    ("<system-reminder>", "</system-reminder>"),
    ("<environment_details>", "</environment_details>"),
)
_DATA_MARK: Final = ";base64,"
_DATA_URL: Final = re.compile(r"data:(\w+)/[\w.+-]{1,80};base64,([A-Za-z0-9+/=_-]*)").sub
_MEDIA: Final = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "image_file": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
_OPAQUE: Final = frozenset(("encrypted_content", "encrypted_index", "signature"))
_KIND_MAX: Final = 32
_OPENING_ROLES: Final = frozenset(("system", "developer"))
_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes


class StepBuilder:
    """What stands behind the last answer, and that answer. Filled from the end backwards, so all is newest first."""

    __slots__ = ("_to_read", "_to_spell", "answered", "calls", "ids", "joint", "results", "said", "users")

    def __init__(self, joint: str = "\n") -> None:
        self.answered = False
        self.joint = joint  # between the pieces of the answer
        self.said: list[str] = []
        self.calls: list[ToolCall] = []
        self.ids: list[str] = []
        self.results: list[Result] = []
        self.users: list[tuple[str, Any]] = []  # role and content
        self._to_read = ALL_MAX
        self._to_spell = _SPELLED_MAX

    def call(self, name: object, given: str, call_id: object) -> None:
        """Take a call of the answer."""
        if type(name) is not str or len(name) > NAME_MAX:
            name = short(text(name))
        if len(given) > TEXT_MAX:
            given = bounded(given)
        self._to_read -= len(given)
        self.calls.append(_new(ToolCall, (name, given if self._to_read >= 0 else edges(given))))
        self.ids.append(call_id if type(call_id) is str else text(call_id))

    def called(self, name: object, given: object, call_id: object) -> None:
        """Take a call whose arguments are a value, or JSON as a text: in one spelling, unless there is too much. Where
        the tail was read before, a text comes in a pair with its spelling."""
        sent, known = given if type(given) is tuple else (given, None)
        size = len(sent) if isinstance(sent, str) else 1
        spelled = text(sent) if size > self._to_spell else arguments(sent) if known is None else known
        self._to_spell -= len(spelled)
        self.call(name, spelled, call_id)


Gather = Callable[[list[Any], int], StepBuilder]
Tools = Callable[[Any], list[str]]


def read_step(taken: ParsedBody, gather: Gather, tools: Tools) -> Step | None:
    """Read the step of a body that was taken apart; None where nothing can be read.

    `gather` gets the items and how many of them stand before the conversation; `tools` the fields, typed or as a dict.
    """
    size = len(taken.body)

    def step(parts: BodyFields) -> Step:
        names = tuple(tools(parts.fields))
        return finished(gather(parts.items, parts.lead), names, len(parts.items) - parts.lead, size)

    found = taken.view(step)
    return found if found is None or not taken.tolerant else _cleaned(found)


def finished(found: StepBuilder, tools: tuple[str, ...], messages: int, size: int) -> Step:
    """Make a step of what was gathered; an action in the text is the call, where the answer has no other."""
    said = own(found.joint.join(reversed(found.said))) if found.said else ""
    calls = tuple(found.calls[_CALLS_MAX - 1 :: -1])  # the newest come first there
    ids = tuple(found.ids[_CALLS_MAX - 1 :: -1]) if any(found.ids) else ()
    results = found.results if len(found.results) <= 1 else newest(found.results[:ITEMS_MAX])[::-1]
    users = found.users[::-1]
    if users and not found.answered:
        users = [(role, value) for role, value in users if role not in _OPENING_ROLES]
    action = text_actions.read(said, declared=bool(tools)) if said and not calls else None
    if action is not None:
        calls = (ToolCall(short(action.name), bounded(action.arguments)),)
        if not results and users:
            results.append(result(users.pop(0)[1]))
    texts = _users(users, by_digest=not results) if users else ()
    return _new(Step, (said, calls, ids, tuple(results), texts, tools, messages, size, action is not None))


def _users(users: list[tuple[str, Any]], *, by_digest: bool) -> tuple[str, ...]:
    # A picture from a person counts by its bytes; one that a harness sends along with results by its size, as theirs.
    texts: list[str] = []
    parts, budget = _PARTS_OF_USERS_MAX, ResultBudget()
    for _, value in reversed(users):
        if isinstance(value, list):
            parts -= min(len(value), ITEMS_MAX)
        said = own((content(value) if by_digest else _with_media(value)) if parts >= 0 else text(value))
        if said:
            texts.append(budget.take(said))
    return tuple(reversed(texts))


def _with_media(value: object) -> str:
    if isinstance(value, str):
        return value
    said, media = seen(value)
    return "\n".join(filter(None, (said, *(f"<{one}>" for one in media))))


def result(value: object, call_id: object = "", *, failed: bool = False) -> Result:
    """Return the result of a call from its content; it failed if the dialect's flag or its own form says so."""
    said, media = (value, ()) if type(value) is str and ";" not in value else seen(value)
    if len(said) > TEXT_MAX or "[" in said or "<" in said:  # else there is nothing to take out
        said = own(said)
    if type(call_id) is not str:
        call_id = text(call_id)
    return _new(Result, (said, failed or result_error(said), call_id, media))


def own(said: str) -> str:
    """Return a text without our notes and what harnesses add to it, bounded."""
    if len(said) > _LONG:
        half = _LONG // 2
        return bounded(_plain(said[:half]) + said[half:-half] + _plain(said[-half:]))
    said = _plain(said)
    return said if len(said) <= TEXT_MAX else bounded(said)


def _plain(said: str) -> str:
    # One character is looked for in a twentieth of the time.
    if "[" in said and END in said:
        said = _without(said, MARK, END, _NOTE_MAX)
    if "<" in said:
        for begin, end in _ADDED:
            if end in said:
                said = _without(said, begin, end, len(said))
    return said


def _without(said: str, begin: str, end: str, within: int) -> str:
    for _ in range(_REMOVED_MAX):
        stop = said.find(end)
        start = said.rfind(begin, max(0, stop - within), stop) if stop >= 0 else -1
        if start < 0:
            break
        before, behind = said[:start].rstrip(), said[stop + len(end) :]
        said = before + behind if before else behind.lstrip()
    return said


def seen(value: object) -> tuple[str, tuple[str, ...]]:
    """Return the text of a content, and its media as type and size class, such as `image:~2^17`."""
    if isinstance(value, str):
        return _without_data(value) if ";" in value and _DATA_MARK in value else (value, ())
    if isinstance(value, dict) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        return text(value), ()
    texts: list[str] = []
    media: list[str] = []
    for part in value[:_PARTS_MAX]:
        if is_silent(part):
            continue
        said, beside = _part(part)
        if said:
            texts.append(said)
        media.extend(beside)
    if len(value) > _PARTS_MAX:
        texts.append(_more(value[_PARTS_MAX:]))
    return "\n".join(texts), tuple(media)


def _more(parts: list[Any]) -> str:
    """Return what stands for further parts: how many, and a digest of their texts; media are new each time."""
    said = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return f"<more:{len(parts)}:{digest(chr(10).join([one for one in said if isinstance(one, str)]))}>"


def _part(part: object) -> tuple[str, tuple[str, ...]]:
    if not isinstance(part, dict):
        return seen(part) if isinstance(part, str) else (text(part), ())
    kind, said = part.get("type"), part.get("text")
    if isinstance(said, str):
        return seen(said)
    source = part.get("source") or part.get("resource")
    inside = source if isinstance(source, dict) else None
    if inside is not None and (inside.get("type") == "text" or isinstance(inside.get("text"), str)):
        return seen(text(inside.get("text") or inside.get("data")))
    if isinstance(kind, str) and (kind in _MEDIA or "data" in part or inside is not None):
        return "", (sized(_MEDIA.get(kind, "file"), part),)
    return json_text({key: one for key, one in without_ids(part).items() if key not in _OPAQUE}).decode(), ()


def _without_data(said: str) -> tuple[str, tuple[str, ...]]:
    media: list[str] = []

    def stand_in(found: re.Match[str]) -> str:
        media.append(f"{found[1].lower()[:_KIND_MAX]}:{_size_class(len(found[2]) * 3 // 4)}")
        return ""

    rest = _DATA_URL(stand_in, said, ITEMS_MAX)
    return rest, tuple(media)


def sized(kind: str, item: object) -> str:
    """Return the type and the size class of a medium: its bytes are new each time, even where it shows the same."""
    longest = ""
    for one in _strings(item, 3):
        if len(one) > len(longest):
            longest = one
    if longest[:8].lower().startswith(("http://", "https://", "gs://")):
        return f"{kind[:_KIND_MAX]}:url"
    data = len(longest) - longest.find(",", 0, 200) - 1
    return f"{kind[:_KIND_MAX]}:{_size_class(data * 3 // 4)}"


def _strings(item: object, depth: int) -> list[str]:
    if isinstance(item, str):
        return [item]
    if not isinstance(item, dict) or depth == 0:
        return []
    return [one for value in item.values() for one in _strings(value, depth - 1)]


def _size_class(size: int) -> str:
    return f"~2^{max(size.bit_length() - 1, 0)}"


def is_prefill(said: object, found: StepBuilder, before: Callable[[], bool]) -> bool:
    """Say whether an answer that stands last is only the beginning of one; `before`: so does another before it."""
    if found.results or found.users or not isinstance(said, str) or len(said) > _PREFILL_MAX:
        return False
    return text_actions.read(said) is None and not before()


def _cleaned(step: Step) -> Step:
    """Replace lone surrogates in all that a step says."""
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
