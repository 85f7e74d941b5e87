"""What an agent hands to another is not new when it comes back (LD-4)."""

from __future__ import annotations

import json

from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import ToolTable
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.novelty import TEXT_MAX, handed_on
from breakloop.detect.steps.window import load
from breakloop.model.call import Answer, ToolCall
from tests.each import each
from tests.growth import GROWTH_MAX, growth
from tests.unit.detect.steps.stepping import digest, spoken

ORDER = "Please open the page with the prices, and read it."
EVALUATOR = StepEvaluator(StepsSettings(), digest)


@each("text", [
    json.dumps({"next": "reader", "order": ORDER}),
    f"Here is the plan:\n{json.dumps({'next': {'name': 'reader', 'order': {'text': ORDER}}}, indent=2)}\nDone.",
    f"```json\n{json.dumps({'orders': [[ORDER]]})}\n```",
    f"The next order is {json.dumps({'order': ORDER})}.",
])  # fmt: skip
def test_fields_of_an_answer(text: str) -> None:
    """An object may stand alone, in a fence or behind a sentence; short fields are names (LD-4)."""
    assert handed_on(text, ()) == [ORDER]


@each("text", ["", "no object", "}{", "if (a) { b(); }", "{", json.dumps({"order": "short"}), json.dumps({"n": 1} | {"a": [[[ORDER]]]})])  # fmt: skip
def test_nothing_is_handed_on(text: str) -> None:
    """Code, short values and what is nested too deep are left out (LD-4)."""
    assert handed_on(text, ()) == []


def test_arguments() -> None:
    """Arguments count as fields do (LD-4)."""
    calls = [ToolCall("ask_reader", json.dumps({"order": ORDER})), ToolCall("ask_reader", "no JSON at all, and so on")]
    assert handed_on("", calls) == [ORDER]


def test_bounds() -> None:
    """Few texts of each answer are kept, none of them long, and a long answer is not read to its end (Y-2)."""
    many = json.dumps([f"{ORDER} {number}" for number in range(100)])
    assert handed_on(many, ()) == []  # a list is not an object
    assert len(handed_on("", [ToolCall("ask", many)] * 3)) == 12
    assert handed_on(json.dumps({"a": "x" * (TEXT_MAX + 1), "b": "x" * TEXT_MAX}), ()) == ["x" * TEXT_MAX]
    assert growth(lambda size: handed_on("{" * size + "}" * size, ()), 50_000) <= GROWTH_MAX


@each("size, found", [(19, 0), (20, 1), (4000, 1), (4001, 0)])
def test_how_long_a_text_is(size: int, found: int) -> None:
    """Shorter ones are names and settings, longer ones are documents (LD-4)."""
    given = json.dumps({"order": "x" * size})
    assert len(handed_on(given, ())) == len(handed_on("", [ToolCall("ask", given)])) == found


@each("size, found", [(16_384, [ORDER]), (16_385, [])])
def test_how_much_is_read(size: int, found: list[str]) -> None:
    """Of arguments, of an object, and of the text before and after an object (Y-2)."""
    given = json.dumps({"order": ORDER})
    padded = f"{given[:-1]}{' ' * (size - len(given))}}}"
    assert len(padded) == size
    assert handed_on("", [ToolCall("ask", padded)]) == handed_on(padded, ()) == found
    before, after = " " * (size - 1) + given, given + " " * (size - 1)
    assert (handed_on(before, ()), handed_on(after, ())) == (found, found)


def test_names_of_tools_that_hand_on() -> None:
    """Tools that stand for an agent, or send it something; not shells, files and searches (LD-4)."""
    tool = ToolTable({}).of
    assert all(
        tool(name).hands_on for name in ("run_agent", "send_message", "transfer_to_reader", "Task", "researcher")
    )
    assert not any(tool(name).hands_on for name in ("bash", "write_file", "search_web", "str_replace_based_edit_tool"))


def test_a_text_that_was_handed_on_is_no_news() -> None:
    """The order of one agent is the next message to another, and brings nothing new (LD-4)."""
    written = json.dumps({"order": ORDER})

    def dry(answer: Answer) -> float:
        window = EVALUATOR.evaluate(b"", spoken("", "Find out the prices."), 1000.0).window
        window = EVALUATOR.answered(window, answer)
        return load(EVALUATOR.evaluate(window, spoken("Let us begin now", ORDER), 1003.0).window).dry

    assert dry(Answer(200, f"The next order: {written}")) == 1
    assert dry(Answer(200, calls=(ToolCall("ask_reader", written),))) == 1
    assert dry(Answer(200, calls=(ToolCall("bash", written),))) == 0
    assert dry(Answer(200, "Nothing to hand on.")) == 0
