"""The part of `make eval` about the sessions of this repository (`tests/corpus`): its section of
docs/reference/evaluation.md, and the sessions as request logs, which `breakloop scan` and `breakloop replay` read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from breakloop.replay.sessions import RecordedBody
from scripts.eval_page import table
from tests.corpus.catalogue import CorpusSession
from tests.corpus.floor import KNOWN_BLOCKED, KNOWN_MISSED
from tests.corpus.run import Judged, sessions

HEADING = "\n## Sessions of this repository\n"

_INTRO = """\
`tests/corpus` has {sessions} sessions, generated from {scenarios} scenarios in every dialect: with and without a name
of the session, with and without ids of calls, streamed or not. They contain no text of other projects. CI runs all of
them with the built-in loop protection (or with the policy that a scenario states), and fails with the name of the
session if a loop is not blocked at the turn that is stated for it, or a healthy session is blocked.
"""

_MISSED = """
Loops that are known to be missed. The list may get shorter, never longer.
"""

_BLOCKED = """
Healthy sessions that are known to be blocked. The same applies.
"""

# Dialects whose requests a log may contain (`breakloop.replay.formats.requests`).
LOGGED = ("openai_chat", "openai_responses", "anthropic_messages", "openai_completions")


def section(judged: Sequence[Judged]) -> str:
    """Return the section of the page, with its heading."""
    scenarios = {one.id.partition("/")[0] for one in judged}
    kinds = [one for one in judged if one.kind]
    parts = [
        HEADING,
        _INTRO.format(sessions=len(judged), scenarios=len(scenarios)),
        _by_dialect(judged),
        "",
        _by_kind(kinds),
        _MISSED,
        _known(judged, KNOWN_MISSED),
        _BLOCKED,
        _known(judged, KNOWN_BLOCKED),
    ]
    return "\n".join(parts) + "\n"


def mistakes(judged: Iterable[Judged]) -> list[str]:
    """Return what is not as expected, one line each."""
    return [f"{one.id}: {mistake}" for one in judged for mistake in one.mistakes]


def _grouped(judged: Sequence[Judged], key: Callable[[Judged], str]) -> Mapping[str, list[Judged]]:
    return {name: [one for one in judged if key(one) == name] for name in sorted({key(one) for one in judged})}


def _by_dialect(judged: Sequence[Judged]) -> str:
    rows = []
    for name, of_dialect in [*_grouped(judged, lambda one: one.dialect).items(), ("all", list(judged))]:
        loops = [one for one in of_dialect if one.loop]
        healthy = [one for one in of_dialect if not one.loop]
        counts = (loops, [one for one in loops if one.stopped], healthy, [one for one in healthy if one.stopped])
        rows.append([name, *[str(len(some)) for some in counts]])
    return table(["dialect", "loops", "found", "healthy", "blocked"], rows)


def _by_kind(judged: Sequence[Judged]) -> str:
    rows = []
    for kind, of_kind in _grouped(judged, lambda one: one.kind).items():
        rows.append([f"`{kind}`", str(len(of_kind)), str(sum(one.stopped for one in of_kind))])
    return table(["expected kind", "loops", "found"], rows)


def _known(judged: Sequence[Judged], known: Mapping[str, str]) -> str:
    rows = []
    for name, reason in known.items():
        listed = [one for one in judged if name in (one.id, one.id.partition("/")[0])]
        rows.append([f"`{name}`", str(len(listed)), reason])
    return table(["scenario", "sessions", "reason"], rows)


def export(folder: Path) -> int:
    """Write sessions as request logs, one file each, in `loops` and `healthy`; return how many."""
    written = 0
    for one in sessions():
        if one.form.dialect in LOGGED and not one.form.chained:
            target = folder / ("loops" if one.expected.loop else "healthy") / f"{one.id.replace('/', '.')}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(json.dumps(record) + "\n" for record in records(one)), encoding="utf-8")
            written += 1
    return written


def records(session: CorpusSession) -> Iterable[dict[str, Any]]:
    """Return the requests of a session, as a gateway would log them."""
    for turn in session.slice().turns:
        assert isinstance(turn.request, RecordedBody)  # noqa: S101 - the corpus has whole requests
        headers = {name: value.decode() for name, value in turn.headers.items() if name != "authorization"}
        yield {
            "timestamp": 1_760_000_000 + (turn.at_s or 0.0),
            "request": {"path": turn.request.path, "headers": headers, "body": json.loads(turn.request.body)},
            "response": {"status_code": turn.answer.status, "body": turn.answer.text},
        }
