"""Sessions of loopbench, as README.md describes them. This file needs the standard library only: other projects may
copy it, or use it as a template for a reader in another language."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

FORMAT = "loopbench/1"
SESSIONS = Path(__file__).parent / "sessions"
CHARS_A_TOKEN = 4

Json = dict[str, Any]


class FormatError(ValueError):
    """A line is not a session of this format."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model. `id` is empty where the dialect has no ids."""

    name: str
    arguments: str  # JSON
    id: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the provider answers."""

    status: int = 200
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sends, and how many seconds after the first request of the session."""

    at_s: float
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    def content(self) -> bytes:
        """Return the body as it is sent."""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Turn:
    """A request, and its answer if it is allowed."""

    request: Request
    answer: Answer

    def tokens(self) -> int:
        """Return an estimate of the tokens that this turn costs."""
        said = len(self.answer.text) + sum(len(call.arguments) for call in self.answer.calls)
        return (len(self.request.content()) + said) // CHARS_A_TOKEN


@dataclass(frozen=True, slots=True)
class Session:
    """One session, and what a detector has to do with it. Turns are numbered from 1."""

    id: str
    about: str
    dialect: str
    loop: bool
    turns: tuple[Turn, ...] = field(repr=False)
    kind: str = ""  # of the loop, in the words of breakloop
    stop_by: int | None = None  # the turn at which a loop should be stopped at the latest
    pauses_matter: bool = False  # healthy because of its pauses: played without them, it says nothing


def read(*files: Path) -> Iterator[Session]:
    """Read all sessions of these files; by default those of this folder."""
    for file in files or sorted(SESSIONS.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield session(json.loads(line))
                except ValueError as error:
                    raise FormatError(f"{file.name}, line {number}: {error}") from None


def session(line: Json) -> Session:
    """Return one session. Raises FormatError with what is missing or unknown."""
    if line.get("format") != FORMAT:
        raise FormatError(f"the format is {line.get('format')!r}, expected {FORMAT!r}")
    try:
        found = Session(
            id=line["id"],
            about=line["about"],
            dialect=line["dialect"],
            loop=line["loop"],
            turns=tuple(_turns(line["turns"], line["headers"])),
            kind=line.get("kind", ""),
            stop_by=line.get("stop_by"),
            pauses_matter=line.get("pauses_matter", False),
        )
    except KeyError as error:
        raise FormatError(f"{error} is missing") from None
    if not found.turns or found.loop != (found.stop_by is not None):
        raise FormatError("a session has turns, and a loop has the turn at which it should be stopped")
    return found


def _turns(turns: Iterable[Json], headers: Mapping[str, str]) -> Iterator[Turn]:
    body: Json = {}
    for turn in turns:
        body = changed(body, turn["body"])
        sent = Request(turn["at_s"], turn["path"], {**headers, **turn.get("headers", {})}, body)
        answer = turn.get("answer", {})
        calls = tuple([ToolCall(**call) for call in answer.get("calls", ())])
        yield Turn(sent, Answer(answer.get("status", 200), answer.get("text", ""), calls))


def changed(before: Json, changes: Json) -> Json:
    """Return the body of a turn: that of the turn before with these changes."""
    body = dict(before)
    for name, value in changes.items():
        if value == {"$remove": True}:
            body.pop(name, None)
        elif isinstance(value, dict) and "$keep" in value:
            body[name] = [*before[name][: value["$keep"]], *value["$add"]]
        else:
            body[name] = value
    return body


def changes(before: Json, body: Json) -> Json:
    """Return what `changed` needs: the reverse, for writers of sessions."""
    found: Json = {name: {"$remove": True} for name in before if name not in body}
    for name, value in body.items():
        old = before.get(name)
        if isinstance(value, list) and isinstance(old, list) and value != old:
            pairs = zip(value, old, strict=False)
            keep = next((at for at, (new, known) in enumerate(pairs) if new != known), min(len(value), len(old)))
            found[name] = {"$keep": keep, "$add": value[keep:]}
        elif name not in before or value != old:
            found[name] = value
    return found


def digest(*files: Path) -> str:
    """Return what results are compared by: the same digest, the same sessions."""
    found = blake2b(digest_size=6)
    for file in files or sorted(SESSIONS.glob("*.jsonl")):
        found.update(file.read_bytes())
    return found.hexdigest()
