"""A run that is in one message of the user: its newest action and observation are the step (LD-4)."""

from __future__ import annotations

import json
from functools import partial

import pytest

from breakloop.dialects import registry, text_actions
from breakloop.model.call import Result, ToolCall
from breakloop.model.verdict import Verdict
from tests.builders import CHAT, call, world
from tests.unit.dialects.parsing import newest_step

RULES = "Use this form:\nThought: what to do\nAction: a tool\nAction Input: its input\nObservation: its output\n"
ASKED = f"{RULES}\nQuestion: How many orders are there?"
END = "Respond with the corresponding output fields, starting with the field `[[ ## next_thought ## ]]`."


def dspy(*steps: tuple[str, str, str, str], more: str = "") -> str:
    text = "[[ ## question ## ]]\nHow many?\n\n[[ ## trajectory ## ]]\n"
    for number, (thought, name, given, seen) in enumerate(steps):
        text += f"[[ ## thought_{number} ## ]]\n{thought}\n\n[[ ## tool_name_{number} ## ]]\n{name}\n\n"
        text += f"[[ ## tool_args_{number} ## ]]\n{given}\n\n[[ ## observation_{number} ## ]]\n{seen}\n\n"
    return f"{text}{more}{END}"


LIST = ("I list them.", "list_orders", '{"page": 1, "all": true}', "3 orders\n\nand a blank line")
LOOK = ("I look.", "look", "{}", "nothing")


def body(text: object, *before: dict[str, str]) -> bytes:
    return json.dumps({"model": "m", "messages": [*before, {"role": "user", "content": text}]}).encode()


read = partial(newest_step, "openai_chat")


@pytest.mark.parametrize("more", ["", "[[ ## tools ## ]]\n[look]\n\n"])
def test_numbered_fields(more: str) -> None:
    """As DSPy writes them, whatever field comes after the run; the question is not new text of the user."""
    step = read(body(dspy(LOOK, LIST, more=more)))
    assert step is not None
    assert step.calls == (ToolCall("list_orders", '{"all":true,"page":1}'),)
    assert step.results == (Result("3 orders\n\nand a blank line"),)
    assert (step.said, step.users, step.as_text, step.messages) == ("I list them.", (), True, 5)


def test_each_action_is_a_step_of_its_own() -> None:
    """The same action again is not the same request."""
    steps = [read(body(dspy(*[LOOK] * count))) for count in (1, 2, 3)]
    assert [step and step.messages for step in steps] == [3, 5, 7]


def test_nothing_was_done_yet() -> None:
    """The first request is the question."""
    for text in (dspy(), f"{ASKED}\nThought:"):
        step = read(body(text))
        assert step is not None
        assert (step.calls, step.users) == ((), (text.strip(),))


def test_tags_code_and_lists_of_calls() -> None:
    """Other fields and other marks of the same form."""
    tags = "<trajectory>\n<thought_0>a</thought_0>\n<tool_name_0>look</tool_name_0>\n<tool_args_0>{}</tool_args_0>\n"
    assert text_actions.read_run(f"{tags}<observation_0>\nnothing\n</observation_0>\n</trajectory>") == (
        "a",
        ToolCall("look", "{}"),
        "nothing",
        1,
    )
    run = "[[ ## trajectory ## ]]\n"
    code = f"{run}[[ ## generated_code_2 ## ]]\nprint(1)\n\n[[ ## code_output_2 ## ]]\n1\n\n{END}"
    assert text_actions.read_run(code) == ("", ToolCall("python", "print(1)"), "1", 3)
    calls = "tool_calls=[ToolCall(name='look', args={'at': 1})]"
    listed = f"{run}[[ ## tool_calls_0 ## ]]\n{calls}\n\n[[ ## observation_0 ## ]]\n[1] nothing"
    assert text_actions.read_run(listed) == ("", ToolCall("look", calls), "[1] nothing", 1)


def test_lines() -> None:
    """ReAct lines, with and without numbers."""
    text = f"{ASKED}\nThought: I list them.\nAction: list_orders\nAction Input: {{}}\nObservation: 3\norders\nThought:"
    assert text_actions.read_run(text) == ("I list them.", ToolCall("list_orders", "{}"), "3\norders", 2)
    text = "Question: How many?\nThought 1: I list.\nAction 1: Search[orders]\nObservation 1: 3 orders\nThought 2:"
    assert text_actions.read_run(text) == ("I list.", ToolCall("Search", "orders"), "3 orders", 1)


@pytest.mark.parametrize(
    "text",
    [
        f"{ASKED}\nThought: I list.\nAction: list\nAction Input: {{}}\nObservation: 3\n\nDid the agent do well?",
        "Thought: a\nObservation: b\nThought:",
        "[[ ## trajectory ## ]]\n[[ ## observation_x ## ]]\nb",
        "[[ ## trajectory ## ]]\n[[ ## observation_1234567 ## ]]\nb",
        "[[ ## question ## ]]\n[[ ## observation_0 ## ",
        f"What does this mean in DSPy? {dspy(LOOK)}",
        "[[ ## trajectory ## ]]\n[[ ## observation_0 ## ]]\nb",
        "<trajectory>\nlooked, found nothing\n</trajectory>",
        "My observation: it rains.\nObservation\nThought:",
    ],
)
def test_texts_that_are_no_runs(text: str) -> None:
    """The prompt of a judge, and runs without an action."""
    assert text_actions.read_run(text) is None


def test_the_session_is_the_question() -> None:
    """A client that names no session has the same one in each request of the run (C-7)."""

    def opening(text: str) -> str:
        parsed = registry.parse("POST", "/v1/chat/completions", body(text, {"role": "system", "content": "s"}))
        assert parsed is not None
        return parsed.opening()

    assert opening(dspy()) == opening(dspy(LOOK)) == opening(dspy(LOOK, LIST))
    assert opening(dspy()) != opening(dspy().replace("How many?", "How much?"))
    done = "\nThought: I look.\nAction: look\nAction Input: here\nObservation: nothing\nThought:"
    assert opening(f"{ASKED}\nThought:") == opening(ASKED + done)
    for text in ("Just a question.", "about [[ ## trajectory ## ]]"):
        assert opening(text).endswith(text)


def test_contents_of_one_part() -> None:
    """Some clients send every text as a list."""
    step = read(body([{"type": "text", "text": dspy(LOOK)}]))
    assert step is not None
    assert step.calls == (ToolCall("look", "{}"),)


def asked(*steps: tuple[str, str, str, str]) -> list[Verdict]:
    here = world()
    verdicts = []
    for count in range(len(steps) + 1):
        sent = body(dspy(*steps[:count]))
        verdicts.append(here.decide(call(CHAT, "POST", {"authorization": "Bearer sk-one"}, body=sent)))
        here.clock.advance(2.0)
    return verdicts


def test_loops_and_work() -> None:
    """The same call with the same result is blocked at the sixth request, thirty different steps pass (C1, C26)."""
    for same in ([(f"Thought {at}.", *LOOK[1:]) for at in range(8)], [LOOK] * 8):
        verdicts = asked(*same)
        assert [one.allowed for one in verdicts[:6]] == [True] * 5 + [False]
        assert verdicts[5].loop is not None
        assert verdicts[5].loop.kind == "repeat"
    trees = ("oak", "elm", "fir", "ash", "yew")
    work = [
        (f"On to {at}.", "look", json.dumps({"item": at}), f"{trees[at % 5]} {at * 7919 % 997}") for at in range(30)
    ]
    assert [one.warning for one in asked(*work)] == [""] * 31
