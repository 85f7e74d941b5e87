"""A whole run in one message, as DSPy sends it: the newest step is read, and the conversation stays the same one."""

from __future__ import annotations

import json

from breakloop.dialects.registry import parse
from breakloop.dialects.trajectories import LastAction, last_action, opening
from breakloop.model.call import Result, Step, ToolCall
from breakloop.model.verdict import Verdict
from tests.builders import CHAT, call, chat_body, user, world
from tests.each import each

END = "\n\nRespond with the corresponding output fields, starting with the field `[[ ## next_thought ## ]]`."
SYSTEM = {"role": "system", "content": "Your input fields are: 1. `question` 2. `trajectory`"}


def field(name: str, value: str) -> str:
    return f"[[ ## {name} ## ]]\n{value}"


def message(*steps: tuple[str, str, str, str], question: str = "Which tree?") -> str:
    """The user's message after these steps: thought, tool, arguments and observation of each."""
    names = ("thought", "tool_name", "tool_args", "observation")
    past = [
        field(f"{name}_{at}", value) for at, step in enumerate(steps) for name, value in zip(names, step, strict=True)
    ]
    return "\n\n".join([field("question", question), field("trajectory", "\n\n".join(past))]) + END


LOOK = ("I look.", "look", '{"b": 1, "a": 2}', "an oak\n\nand an elm")
FIRST, SECOND = message(LOOK), message(LOOK, ("Again.", "search", "{}", "Execution error in search: no such tree"))


def step(text: str) -> Step:
    parsed = parse("POST", CHAT, chat_body(SYSTEM, user(text)))
    found = None if parsed is None else parsed.newest_step()
    assert found is not None
    return found


def test_the_newest_step_is_read() -> None:
    """Thought, call and result; the question is no text that is new (LD-4)."""
    assert last_action(FIRST) == LastAction(0, *LOOK)
    first, second = step(FIRST), step(SECOND)
    assert (first.said, first.calls, first.users) == ("I look.", (ToolCall("look", '{"a":2,"b":1}'),), ())
    assert first.results == (Result("an oak\n\nand an elm", False),)
    assert (second.said, second.calls) == ("Again.", (ToolCall("search", "{}"),))
    assert (first.as_text, first.messages, second.messages) == (True, 4, 6)


def test_the_opening_stays() -> None:
    """Whatever was done since, it is the same conversation; another question is another one (C-7)."""

    def opened(text: str) -> str:
        parsed = parse("POST", CHAT, chat_body(SYSTEM, user(text)))
        return "" if parsed is None else parsed.opening()

    assert opening(FIRST) == field("question", "Which tree?") + "\n\n"
    assert opened(message()) == opened(FIRST) == opened(SECOND) != opened(message(LOOK, question="Which bush?"))


@each(
    "text",
    [
        "What does `[[ ## observation_0 ## ]]\nx` mean in DSPy?",
        message(),
        field("question", "x"),
        field("observation_0", "without a call"),
        field("observation_", "x"),
        field("observation_1234567", "x"),
        field("question", "[[ ## observation_0 ## "),
        "",
    ],
)
def test_what_is_no_trajectory(text: str) -> None:
    """A text of the user stays one."""
    assert last_action(text) is None
    assert step(text or "x").users == (text or "x",)
    assert opening("about [[ ## trajectory ## ]]") == "about [[ ## trajectory ## ]]"


def test_content_that_is_no_text() -> None:
    """Parts are not read."""
    assert last_action([{"type": "text", "text": FIRST}]) is None


def asked(steps: list[tuple[str, str, str, str]]) -> list[Verdict]:
    here = world()
    verdicts = []
    for count in range(len(steps) + 1):
        body = chat_body(SYSTEM, user(message(*steps[:count])))
        verdicts.append(here.decide(call(CHAT, "POST", {"authorization": "Bearer sk-one"}, body=body)))
        here.clock.advance(2.0)
    return verdicts


def test_loops_and_work() -> None:
    """The same call with the same result is blocked at the sixth request, thirty different steps pass (LD-4, C1, C26)."""
    same = asked([(f"Thought {at}.", "look", '{"query": "oak"}', "nothing") for at in range(8)])
    assert [one.allowed for one in same[:6]] == [True] * 5 + [False]
    assert same[5].loop is not None
    assert same[5].loop.kind == "repeat"
    equal = asked([("I look.", "look", '{"query": "oak"}', "nothing")] * 8)
    assert [one.allowed for one in equal[:6]] == [True] * 5 + [False]
    trees = ("oak", "elm", "fir", "ash", "yew")
    work = [
        (f"On to {at}.", "look", json.dumps({"item": at}), f"{trees[at % 5]} {at * 7919 % 997}") for at in range(30)
    ]
    assert [one.warning for one in asked(work)] == [""] * 31
