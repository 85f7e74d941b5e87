"""Writes the sessions of loopbench from the scenarios of tests/corpus: each in one of its dialects, or in all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from bench.loopbench.suite import FORMAT, Json, changes
from breakloop.replay.sessions import RecordedBody, RecordedTurn
from tests.corpus.catalogue import CorpusSession
from tests.corpus.run import sessions

T = TypeVar("T")

DIALECTS = (
    "anthropic_messages",
    "gemini",
    "openai_chat",
    "openai_completions",
    "openai_embeddings",
    "openai_responses",
)
POLICIES = ("", "{similarity: steps}")  # others are about settings of breakloop
PAUSE_S = 10.0  # a healthy session with longer pauses than this may be a loop without them


def chosen(*, every_dialect: bool = False) -> list[CorpusSession]:
    """Return the sessions that any detector can be asked about, by default one for each scenario."""
    fit = [one for one in sessions() if _fits(one)]
    if every_dialect:
        return fit
    by_scenario: dict[str, dict[str, list[CorpusSession]]] = {}
    for one in fit:
        by_scenario.setdefault(one.scenario.name, {}).setdefault(one.form.dialect, []).append(one)
    # By the name, so that a new scenario changes no other line.
    return [_pick(_pick(list(forms.values()), name), f"{name} form") for name, forms in by_scenario.items()]


def _pick(some: Sequence[T], name: str) -> T:
    return some[_number(name) % len(some)]


def _fits(one: CorpusSession) -> bool:
    told_only = one.expected.loop and one.expected.block is None
    at_once = one.scenario.takes_s > 0  # a runner that sends one request after the other cannot play it
    kept_by_provider = one.form.chained  # the ids of responses are those of the provider
    usual = one.scenario.policy in POLICIES and one.form.dialect in DIALECTS
    return usual and not (told_only or at_once or kept_by_provider)


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")


def line(one: CorpusSession) -> Json:
    """Return a session as a line of the suite."""
    turns = one.slice().turns
    requests = [_request(one, turn) for turn in turns]
    common = {
        name: value for name, value in requests[0][1].items() if all(sent[1].get(name) == value for sent in requests)
    }
    found: Json = {"format": FORMAT, "id": one.id, "about": one.scenario.about, "dialect": one.form.dialect}
    found["loop"] = one.expected.loop
    if one.expected.block is not None:
        found |= {"kind": one.expected.kind, "stop_by": one.expected.block[1]}
    elif _longest_pause_s(turns) > PAUSE_S:
        found["pauses_matter"] = True
    found |= {"headers": common, "turns": []}
    before: Json = {}
    for at, (turn, (path, headers, body)) in enumerate(zip(turns, requests, strict=True)):
        own = {name: value for name, value in headers.items() if name not in common}
        told: Json = {"at_s": round(turn.at_s or 0.0, 3), "path": path}
        told |= {"headers": own} if own else {}
        told |= {"body": changes(before, body)}
        answer = _answer(turn, list(_call_ids(requests[at + 1][2])) if at + 1 < len(requests) else [])
        found["turns"].append(told | ({"answer": answer} if answer else {}))
        before = body
    return found


def _request(one: CorpusSession, turn: RecordedTurn) -> tuple[str, dict[str, str], Json]:
    assert isinstance(turn.request, RecordedBody)
    headers = {name: value.decode() for name, value in turn.headers.items()}
    # A caller of its own for each session, so that a gateway can be asked about all of them, one after the other.
    headers["authorization"] = f"Bearer sk-loopbench-{_number(one.id):08x}"
    return turn.request.path, headers, json.loads(turn.request.body)


def _longest_pause_s(turns: Iterable[RecordedTurn]) -> float:
    times = [turn.at_s or 0.0 for turn in turns]
    return max((after - before for before, after in pairwise(times)), default=0.0)


def _answer(turn: RecordedTurn, ids: list[str]) -> Json:
    answer = turn.answer
    found: Json = {}
    if answer.status != 200:
        found["status"] = answer.status
    if answer.text:
        found["text"] = answer.text
    if answer.calls:
        known = ids[-len(answer.calls) :] if len(ids) >= len(answer.calls) else [""] * len(answer.calls)
        found["calls"] = [
            {"name": call.name, "arguments": call.arguments} | ({"id": by} if by else {})
            for call, by in zip(answer.calls, known, strict=True)
        ]
    return found


def _call_ids(body: Json) -> Iterator[str]:
    """Return the ids of all tool calls in a request, oldest first."""
    for message in [*body.get("messages", ()), *body.get("input", ())]:
        if not isinstance(message, dict):
            continue
        if message.get("type") == "function_call":
            yield message["call_id"]
        yield from (call["id"] for call in message.get("tool_calls", ()))
        blocks: Any = message.get("content")
        for block in blocks if isinstance(blocks, list) else ():
            if block.get("type") == "tool_use":
                yield block["id"]


def write(folder: Path, *, every_dialect: bool = False) -> int:
    """Write `loops.jsonl` and `healthy.jsonl`; return how many sessions they have."""
    found = chosen(every_dialect=every_dialect)
    folder.mkdir(parents=True, exist_ok=True)
    for name, loop in (("loops", True), ("healthy", False)):
        lines = sorted((line(one) for one in found if one.expected.loop is loop), key=lambda told: str(told["id"]))
        text = "".join(json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n" for told in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return len(found)
