"""Patterns of agents, healthy and looping, from a file beside this tree, in every shape in which clients send them.
`make eval ARGS="--cases FILE"` runs them with the built-in protection and lists those that are not judged as expected.

A file is a JSON list, gzipped. A case has `id`, `task`, `expected` and `steps`. A step is a call of a tool (`call`,
`args`, `result`) or an answer (`say`) with what the user says to it (`user`), some `seconds` after the step before it.
Optional: `more` (calls in the same answer), `compact` (a summary replaces the history before it), `bytes` (size of the
request), `status` (an error of the provider), `agent`, `session` with `parent` and `child`, `stream` (one answer).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.corpus.answers import StreamedAnswer
from tests.corpus.catalogue import NO_TASK, CorpusSession, Expected, Scenario
from tests.corpus.run import outcome
from tests.corpus.script import Item, Made, Script
from tests.corpus.wire import FORMS
from tests.corpus.words import line, text

Case = Mapping[str, Any]

_SHAPES: Final = (
    *("chat", "chat-unnamed", "chat-counted", "chat-text", "chat-text-unnamed", "chat-roles"),
    *("responses", "responses-unnamed", "responses-chain", "responses-conversation"),
    *("messages", "messages-unnamed", "gemini", "gemini-unnamed", "ollama", "cohere"),
    *("bedrock_converse", "mistral_conversations"),
)
_ONE_MESSAGE: Final = ("dspy", "dspy-unnamed", "react", "react-unnamed")
_ADDED: Final = 50_000  # bytes of a large result


def mistakes(path: Path) -> Iterator[str]:
    """Run all cases; yield what is wrong, one line for each case and shape."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        cases = json.load(file)
    for case in cases:
        if "stream" in case["steps"][0]:
            most = case["expected"]["stream_cut_by_chars"]
            answer = StreamedAnswer(case["id"], case["steps"][0]["stream"], (0, most))
            yield from [f"{case['id']}, stream: {wrong}" for wrong in answer.mistakes()]
            continue
        for shape in shapes(case):
            yield from [f"{case['id']}, {shape}: {wrong}" for wrong in judge(case, shape)]


def shapes(case: Case) -> Iterable[str]:
    """Return the shapes in which a case can be sent."""
    if "session" in case["steps"][0]:  # who started whom is named, or nobody can know
        return [name for name in _SHAPES if FORMS[name].named]
    if "bytes" in case["steps"][0]:  # a conversation at the provider is not sent
        return [name for name in _SHAPES if not FORMS[name].conversation]
    fields = {name for step in case["steps"] for name in step if step[name]}
    plain = fields <= {"call", "args", "result", "seconds", "say"} and all(step["call"] for step in case["steps"])
    return (*_SHAPES, *_ONE_MESSAGE) if plain else _SHAPES


def judge(case: Case, shape: str) -> Iterator[str]:
    """Yield what is wrong with the verdicts on a case in one shape."""
    steps_at: list[int] = []  # the last step in each request

    def scene(script: Script) -> None:
        (_tree if "session" in case["steps"][0] else _run)(script, case, steps_at)
        if not FORMS[shape].named:
            for sent in script.sent:
                sent.names = {}

    scenario = Scenario(case["id"], case["summary"], scene, {}, every_s=0.0, task=NO_TASK)
    found = outcome(CorpusSession(case["id"], scenario, FORMS[shape], Expected(loop=case["kind"] == "loop")))
    expected, turn = case["expected"], found.first_block
    noticed, by = "noticed_by_step" in expected, expected.get("noticed_by_step") or expected.get("blocked_by_step")
    if noticed:
        turn = found.first_notice or turn
    at = None if turn is None else steps_at[turn - 1]
    if found.denied:
        yield f"denied for another reason: {found.denied}"
    if expected.get("blocked") is False:
        if at is not None:
            yield f"blocked at step {at} ({found.kind}: {found.evidence}), and must not be"
    elif "blocked_by_agent" in expected:
        agents = len({step["session"] for step in case["steps"][: at or None]})
        if at is None or agents > expected["blocked_by_agent"]:
            yield f"{agents} agents began, expected {expected['blocked_by_agent']} at most"
    elif at is None or at > by:
        yield f"{'noticed' if noticed else 'blocked'} at step {at} ({found.kind}), expected by step {by}"


def _tree(script: Script, case: Case, steps_at: list[int]) -> None:
    """Write agents that start each other, each in a session of its own."""
    orders: dict[str, str] = {}
    begun: dict[str, tuple[list[Item], int]] = {}
    for number, step in enumerate(case["steps"], 1):
        script.wait(step["seconds"])
        session = step["session"]
        if session in begun:
            script.items, script.number = begun[session]
            script.names = {"session": session, "parent": step["parent"]}
        else:
            script.begin(orders.get(session, f"{case['task']} ({session})"), session=session, parent=step["parent"])
            begun[session] = script.items, script.number
            steps_at.append(number)
        orders[step["child"]] = " ".join(map(str, step["args"].values()))
        script.call(step["call"], step["args"], step["result"])
        steps_at.append(number)


def _run(script: Script, case: Case, steps_at: list[int]) -> None:
    """Write one conversation; its agents, if there are several, take turns in it."""
    script.begin(case["task"])
    steps_at.append(0)
    for number, step in enumerate(case["steps"], 1):
        script.wait(step["seconds"])
        if step.get("agent"):
            script.names = {"agent": step["agent"]}
        result = _grow(script, step, number) if "bytes" in step else step["result"]
        if step.get("compact") and "bytes" not in step:
            script.compact(f"Summary of what was done so far: {line(number, 'summary')} {line(number, 'next')}")
        if step.get("status", 200) >= 400:
            script.again(status=step["status"])
        elif step["call"]:
            made = [Made(step["call"], step["args"], result)]
            made += [Made(one["call"], one["args"], one["result"]) for one in step.get("more", ())]
            script.calls(*made, said=step.get("say", ""), then=step.get("user", ""))
        else:
            script.says(step.get("say", ""), step["user"])
        steps_at.append(number)


def _grow(script: Script, step: Case, number: int) -> str:
    """Return a result with which the request has the size that is stated. A compaction drops the oldest messages."""
    if number == 1:  # there is something to drop
        for part in range(step["bytes"] // _ADDED - 1):
            made = Made("read_file", {"path": f"part {part}"}, text(part, lines=_ADDED // 60), id=f"part-{part}")
            script.items.append(Item(calls=(made,), is_answer=True))
    if step.get("compact"):
        task, *kept = script.items
        script.compact("")
        while kept and _size(kept) > step["bytes"] - _ADDED:
            kept.pop(0)
        script.items = [task, *kept]
    missing = step["bytes"] - _size(script.items)
    return f"{step['result']}\n{text(number, lines=missing // 60)}"


def _size(items: Iterable[Item]) -> int:
    return sum(len(made.result) for item in items for made in item.calls)
