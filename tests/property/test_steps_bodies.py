"""The same conversation however it is written down, in every dialect: ids, the order of keys and white space never
change a verdict; what is new from outside only lowers one; and judging costs the same for ever (LD-4, C18)."""

from __future__ import annotations

import json
import re
import zlib
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.model.call import Result, Step, ToolCall
from breakloop.testing.factories import Conversation, mcp_call
from tests.unit.dialects.parsing import newest_step

Json = dict[str, Any]
Turn = tuple[int, int, int]  # which call, which result, what is said
Spelling = tuple[int, int, str]  # seed of the order of keys, indent, how ids begin

DIALECTS = (
    "openai_chat",
    "openai_responses",
    "anthropic_messages",
    "gemini",
    "ollama_chat",
    "cohere_chat",
    "bedrock_converse",
)
EACH = pytest.mark.parametrize("dialect", DIALECTS)
CALLS: list[tuple[str, Json]] = [
    ("read_file", {"path": "src/a.py", "page": 1, "options": {"tail": True, "depth": [1, 2]}}),
    ("read_file", {"path": "src/b.py", "page": 1}),
    ("search", {"query": "where is it \u00e9 defined", "limit": 5}),
    ("write_file", {"path": "src/a.py", "text": "x = 1\n"}),
    ("wait", {}),
]
RESULTS = [
    "one line of text that says something about the matter\nand another line of it, somewhat longer than the first",
    "a second result, which is of about the same length\nas the first one, and says something else",
    "ok",
    "",
    "Error: no such file",
]
SAID = ["", "I will look at it once more.", "Let me try something else instead now."]
IDS = re.compile(r'"(call_\d{6})"')

turns = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2))
laps = st.builds(lambda lap, count: lap * count, st.lists(turns, min_size=1, max_size=4), st.integers(1, 8))
histories = st.one_of(laps, st.lists(turns, min_size=1, max_size=20))
spellings = st.tuples(
    st.integers(0, 99), st.integers(0, 3), st.sampled_from(["call_", "toolu_01Ab", "x", "f47ac10b-58cc-"])
)


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8, key=b"test").digest()


DETECTOR = StepEvaluator(StepsSettings(), digest)


def bodies(dialect: str, history: list[Turn]) -> list[Json]:
    """The requests of an agent that took these turns: the first, and one after each."""
    talk = Conversation(dialect=dialect)
    return [talk.request(), *(take(talk, *turn).request() for turn in history)]


def take(talk: Conversation, call: int, result: int, said: int) -> Conversation:
    name, arguments = CALLS[call]
    text = RESULTS[result]
    return talk.tool(name, arguments, text, text=SAID[said], failed=text.startswith("Error"))


def spelled(value: Any, seed: int, indent: int) -> Any:
    """The same JSON with its keys in another order, arguments that are JSON in a string included."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: zlib.crc32(f"{seed} {key}".encode()))
        made = {key: spelled(value[key], seed, indent) for key in keys}
        if isinstance(made.get("arguments"), str):
            inner = spelled(json.loads(made["arguments"]), seed, indent)
            made["arguments"] = json.dumps(inner, indent=indent or None, ensure_ascii=bool(indent % 2))
        return made
    return [spelled(one, seed, indent) for one in value] if isinstance(value, list) else value


def written(body: Json, spelling: Spelling, number: int) -> bytes:
    """A body whose keys are in another order than in the one before it, its ids renamed; one id gets the same name each
    time. A client indents all of its bodies alike: their size tells whether it has cut the context."""
    seed, indent, begin = spelling
    seed += number
    text = json.dumps(spelled(body, seed, indent), indent=indent or None, ensure_ascii=bool(indent % 2))
    return IDS.sub(lambda found: f'"{begin}{int(found[1][5:]) * 7919}"', text).encode()


def judged(dialect: str, requests: list[bytes]) -> list[Evaluation]:
    window, found = b"", []
    for number, body in enumerate(requests):
        step = newest_step(dialect, body)
        assert step is not None
        found.append(DETECTOR.evaluate(window, step, 1000.0 + number))
        window = found[-1].window
    return found


def verdicts(dialect: str, requests: list[bytes]) -> list[tuple[Any, ...]]:
    return [astuple(one)[1:] for one in judged(dialect, requests)]


@EACH
@given(history=histories, spelling=spellings)
def test_spelling_changes_no_verdict(dialect: str, history: list[Turn], spelling: Spelling) -> None:
    """Ids of calls, the order of keys, white space and escapes, in bodies and in arguments (LD-4, C18)."""
    requests = bodies(dialect, history)
    plain = verdicts(dialect, [json.dumps(body).encode() for body in requests])
    assert verdicts(dialect, [written(body, spelling, number) for number, body in enumerate(requests)]) == plain


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), spellings, st.sampled_from([1, "a", "req-77-"]))
def test_json_rpc_ids_change_no_verdict(calls: list[int], spelling: Spelling, base: int | str) -> None:
    """MCP's calls likewise (LD-4, C18)."""
    seed, indent, _ = spelling
    plain = [mcp_call(*CALLS[call], call_id=number) for number, call in enumerate(calls)]
    other = [
        mcp_call(*CALLS[call], call_id=base + number if isinstance(base, int) else f"{base}{number}")
        for number, call in enumerate(calls)
    ]
    respelled = [
        json.dumps(spelled(body, seed + number, indent), indent=indent or None).encode()
        for number, body in enumerate(other)
    ]
    assert verdicts("mcp", respelled) == verdicts("mcp", [json.dumps(body).encode() for body in plain])


@given(history=histories)
def test_every_dialect_tells_the_same(history: list[Turn]) -> None:
    """One agent, one judgement, whatever the wire looks like (LD-4)."""
    told = {
        dialect: [
            one[1:3] for one in verdicts(dialect, [json.dumps(body).encode() for body in bodies(dialect, history)])
        ]
        for dialect in ("openai_chat", "openai_responses", "anthropic_messages")
    }
    assert told["openai_chat"] == told["openai_responses"] == told["anthropic_messages"]


FRESH = "\n".join(f"unheard-of line {letter * 9}, which nobody has seen before" for letter in "qwertzuiop")


@EACH
@given(history=histories, steps_in=st.integers(1, 19))
def test_a_fresh_result_never_raises_the_level(dialect: str, history: list[Turn], steps_in: int) -> None:
    """A step whose result is new is judged no harder than the same step with a result that was seen (LD-4)."""
    history = history[:steps_in]
    requests = bodies(dialect, history)
    call, _, said = history[-1]
    talk = Conversation(dialect=dialect)
    for turn in history[:-1]:
        take(talk, *turn)
    name, arguments = CALLS[call]
    fresh = [*requests[:-1], talk.tool(name, arguments, FRESH, text=SAID[said]).request()]
    repeated, better = (judged(dialect, [json.dumps(body).encode() for body in each]) for each in (requests, fresh))
    assert better[:-1] == repeated[:-1]
    assert better[-1].level <= repeated[-1].level


@EACH
@given(history=histories)
def test_judging_is_the_same_twice(dialect: str, history: list[Turn]) -> None:
    """The windows too, byte for byte (E-7)."""
    requests = [json.dumps(body).encode() for body in bodies(dialect, history)]
    assert judged(dialect, requests) == judged(dialect, requests)


WILD = st.builds(
    Step,
    said=st.text(max_size=60) | st.just("the same words " * 50),
    calls=st.lists(st.builds(ToolCall, st.text(max_size=200), st.text(max_size=60)), max_size=40).map(tuple),
    call_ids=st.just(()),
    results=st.lists(
        st.builds(Result, st.text(max_size=300), st.booleans(), st.just(""), st.just(("image/png 64K",)) | st.just(())),
        max_size=40,
    ).map(tuple),
    users=st.lists(st.text(max_size=80), max_size=30).map(tuple),
    tools=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    messages=st.integers(0, 2**31 - 1),
    size=st.integers(0, 2**31 - 1),
    as_text=st.booleans(),
)


@given(st.lists(WILD, min_size=1, max_size=6), st.integers(1, 6))
@settings(max_examples=60)
def test_a_window_is_never_larger_than_it_may_be(wild: list[Step], again: int) -> None:
    """Whatever comes, and however often; and it can be read again (Q-3)."""
    window = b""
    for number, step in enumerate(wild * again):
        found = DETECTOR.evaluate(window, step._replace(messages=(step.messages + number) % 2**31), 1000.0 + number)
        assert len(found.window) <= 6 * 1024
        assert len(found.evidence) <= 200
        assert DETECTOR.evaluate(found.window, step, 1000.0 + number) == DETECTOR.evaluate(
            found.window, step, 1000.0 + number
        )
        window = found.window


def test_cost_does_not_depend_on_the_history() -> None:
    """After two thousand steps as after fifty, a step is judged with a window of the same size and digests of the same
    number and length; reading it is in proportion to the tail (`test_steps_reading`) (LD-4)."""
    work: list[int] = []

    def counted(data: bytes) -> bytes:
        work.append(len(data))
        return digest(data)

    detector = StepEvaluator(StepsSettings(), counted)
    probe = Step("I look.", (ToolCall("look", '{"n": "probe"}'),), ("call_probe_1",), (Result(FRESH, call_id="call_probe_1"),), (), (), 9, 9)  # fmt: skip
    window, sizes, costs = b"", [], []
    for number in range(2001):
        key = f"call_{number:08}"
        text = f"result {number} of the many, and {number * 7919 % 1009} things beside\nline {number % 50}"
        step = Step(
            "", (ToolCall("look", f'{{"n": {number}}}'),), (key,), (Result(text, call_id=key),), (), (), number, 9
        )
        window = detector.evaluate(window, step, 1000.0 + number).window
        if number in (50, 200, 1000, 2000):
            work.clear()
            sizes.append(len(detector.evaluate(window, probe, 1001.0 + number).window))
            costs.append(list(work))
    assert len(set(sizes)) == 1
    assert costs[0] == costs[1] == costs[2] == costs[3]
