"""Effects that cannot be taken back (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import BLOCK, NOTHING, NOTICE, STOP
from breakloop.detect.steps import effects
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import NORMAL, PRESETS, StepsSettings
from breakloop.detect.steps.window import EFFECTS, load
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, called, digest, hits, prints, state
from tests.unit.detect.steps.test_waiting import Session

MAIL = ("send_mail", '{"to": "ada@example.com", "body": "The invoice is attached."}')


def test_the_same_mail_is_told_and_then_refused() -> None:
    """Told at the second, refused at the third, whatever id comes back and however slowly (LD-4)."""
    for every_s in (2.0, 200.0):
        session = Session()
        for number in range(5):
            session.call(every_s, *MAIL, f"queued as {('otter', 'lamp', 'quay')[number % 3]}-{number * 977:x}")
        assert [one.level for one in session.found] == [NOTHING, NOTICE, BLOCK, BLOCK, STOP]
        assert session.found[2].kind == "side_effect"
        assert session.found[2].evidence == (
            "`send_mail` was called with the same arguments 3 times, and it was done each time"
        )


def test_calls_of_one_answer_count_each() -> None:
    """Fifty equal issues in one answer are refused when their results arrive (LD-4)."""
    session = Session()
    made = session.call(2.0, "create_issue", '{"title": "Crash"}', *[f"created #{number}" for number in range(50)])
    assert (made.level, made.kind) == (STOP, "side_effect")


@pytest.mark.parametrize("sensitivity", PRESETS)
def test_every_sensitivity_refuses_them(sensitivity: str) -> None:
    session = Session(StepEvaluator(StepsSettings.preset(sensitivity), digest))
    for number in range(3):
        session.call(2.0, "place_order", '{"item": 7}', f"order {number}")
    assert session.found[-1].level == BLOCK


@pytest.mark.parametrize(
    ("text", "failed"),
    [("the server is down", True), ("Error: the server is down", False), ('{"success": false}', False)],
)
def test_what_failed_was_not_done(text: str, failed: bool) -> None:
    """A retry after failures is no second mail (LD-4)."""
    session = Session()
    for _ in range(2):
        session.call(30.0, *MAIL, text, failed=failed)
    session.call(30.0, *MAIL, "sent")
    assert "side_effect" not in {one.kind for one in session.found}


def test_other_arguments_are_another_effect() -> None:
    session = Session()
    for number in range(30):
        session.call(1.0, "create_event", f'{{"day": {number}}}', "created")
    assert session.highest == NOTHING


def test_new_text_of_a_person_begins_a_new_run() -> None:
    """Who asks for the mail again gets it (LD-4)."""
    session = Session()
    for number in range(4):
        session.call(2.0, *MAIL, f"sent as {number}")
        text = f"Thank you. Please send it to her again, number {number} was lost on its way to the {LONG[number:]}"
        step = Step("It is sent.", (), (), (), (text,), (), 3 * session.steps, 100)
        session.window = DETECTOR.evaluate(session.window, step, session.now + 1).window
    assert session.highest == NOTHING


DETECTOR = StepEvaluator(StepsSettings(), digest)


def test_messages_are_only_told() -> None:
    """And not even that if something was changed in between, or the answer is another one (LD-4)."""
    told = Session()
    for number in range(4):
        told.call(2.0, "post_message", '{"text": "Still working on it."}', f"ts {number * 977}")
    assert [one.level for one in told.found] == [NOTHING, NOTICE, NOTICE, NOTICE]
    working = Session()
    for number in range(8):
        working.call(2.0, "post_message", '{"text": "Still working on it."}', f"ts {number * 977}")
        working.call(2.0, "write_file", f'{{"path": "{number}.txt"}}', "written")
    assert working.highest == NOTHING
    answered = Session()
    for word in ("plums", "pears", "figs", "dates"):
        answered.call(2.0, "send_message", '{"to": "cook", "text": "What next?"}', f"Wash the {word}, then tell me.")
    assert answered.highest == NOTHING


def test_equal_orders_far_apart_may_be_meant() -> None:
    """They are told each time, and never refused (LD-4)."""
    session = Session()
    for number in range(6):
        session.call(2.0, "place_order", '{"item": 7, "count": 40}', f"order {number}")
        for page in range(17):
            session.call(2.0, "read_page", f'{{"page": {number * 17 + page}}}', f"{LONG} {number} {page}")
    assert session.highest == NOTICE


@pytest.mark.parametrize(("between", "highest"), [(15, BLOCK), (16, NOTICE)])
def test_how_far_apart_is_far(between: int, highest: int) -> None:
    """Sixteen other steps in between (LD-4)."""
    session = Session()
    for number in range(3):
        session.call(2.0, "place_order", '{"item": 7, "count": 40}', f"order {number}")
        for page in range(between):
            session.call(2.0, "read_page", f'{{"page": {number * 17 + page}}}', f"{LONG} {number} {page}")
    assert session.highest == highest


def test_calls_whose_results_are_not_known_count_half() -> None:
    """They may have failed: an MCP call is refused at the fifth, before it is made (LD-4)."""
    window, levels = b"", []
    for number in range(5):
        step = Step("", (ToolCall(*MAIL),), (f"request-{number:08}",), (), (), (), number, 100)
        found = DETECTOR.evaluate(window, step, 1000.0 + 20 * number)
        window = found.window
        levels.append(found.level)
    assert levels == [NOTHING, NOTHING, NOTICE, NOTICE, BLOCK]


def test_a_number_of_calls_per_run() -> None:
    """`max_per_run`: one more is denied, whatever it was called with; other tools have their own number (LD-4)."""
    options = {"send_*": ToolOptions(max_per_run=3), "ask": ToolOptions(max_per_run=1)}
    session = Session(StepEvaluator(StepsSettings(NORMAL, options), digest))
    for number in range(4):
        session.call(2.0, "send_mail", f'{{"to": "{number}@example.com"}}', f"{LONG} {number}")
    session.call(2.0, "send_fax", '{"to": "1"}', "sent")
    session.call(2.0, "ask", "{}", "yes", "no")
    assert [one.level for one in session.found] == [NOTHING] * 3 + [BLOCK, NOTHING, BLOCK]
    assert session.found[3].kind == "tool_limit"
    assert session.found[3].evidence == "`send_mail` was called 4 times in this run, 3 are allowed"


def test_a_number_of_calls_per_run_is_kept_whatever_else_is_done() -> None:
    """Many other effects take the place of the oldest ones, never of the number of a tool (LD-4)."""
    session = Session(StepEvaluator(StepsSettings(NORMAL, {"ask": ToolOptions(max_per_run=1)}), digest))
    session.call(2.0, "ask", "{}", "yes")
    session.call(2.0, *MAIL, "sent")
    for number in range(2 * EFFECTS):
        session.call(2.0, "create_issue", f'{{"title": "crash {number}"}}', f"created #{number}")
    assert session.call(2.0, *MAIL, "sent").level == NOTHING
    assert session.call(2.0, "ask", '{"again": true}', "no").kind == "tool_limit"


@pytest.mark.parametrize(("size", "level"), [(500, NOTHING), (501, NOTICE)])
def test_how_much_of_a_result_is_read(size: int, level: int) -> None:
    """A word that tells that nothing was done counts within the first 500 bytes (Y-2)."""
    session = Session()
    for _ in range(2):
        session.call(2.0, *MAIL, f"{'x' * (size - 8)} already")
    assert session.highest == level


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("retry after 30 s", NOTHING),  # the tool's own rate limit
        ("a duplicate of order 7", NOTHING),
        ("the import fails", NOTHING),
        ("Created: the import fails", NOTICE),
        ("order 7", NOTICE),
    ],
)
def test_what_was_done(text: str, level: int) -> None:
    """A result in words that tells neither of a refusal nor of a limit, or that opens with what was done (LD-4)."""
    session = Session()
    for _ in range(2):
        session.call(2.0, *MAIL, text)
    assert session.highest == level


def counts(name: str, *after: int, epochs: int = 0, epoch: int = 0) -> list[float]:
    """Return the count after each of some equal calls, given how many steps after the last one each is made, and how
    many changes are made before each."""
    window, found = load(b""), []
    window.epoch = epoch
    for steps in after:
        window.steps += steps
        step = called('{"text": "one"}', "order 7", name=name)
        found.append(hits(effects.findings(state(window, prints(step), step=step)), "side_effect"))
        window.epoch += epochs
    return found


def test_equal_orders_count_less_when_they_are_far_apart() -> None:
    """More than 16 steps after the last one, one is taken back, once there are two (LD-4)."""
    assert counts("place_order", 0, 1, 1, 1) == [0, 2, 3, 4]
    assert counts("place_order", 0, 17, 17, 16) == [0, 2, 2, 3]
    assert counts("place_order", 0, 1, 1, 17, 16, 17) == [0, 2, 3, 3, 4, 4]
    assert counts("post_message", 0, 1, 1, 17, 17) == [0, 2, 2, 2, 2]


@pytest.mark.parametrize("epoch", [0, 1, 0xFFFF])
def test_changes_between_equal_effects(epoch: int) -> None:
    """They begin a new count of messages, not one of orders (LD-4)."""
    assert counts("post_message", 0, 1, 1, epoch=epoch) == [0, 2, 2]
    assert counts("post_message", 0, 1, 1, epochs=-1, epoch=epoch + 3 & 0xFFFF) == [0, 0, 0]
    assert counts("place_order", 0, 1, 1, epochs=-1, epoch=epoch + 3 & 0xFFFF) == [0, 2, 3]


def test_changes_beside_a_message() -> None:
    """A change in the same answer is not between two messages, whichever comes first (LD-4)."""
    post, texts = ToolCall("post_message", '{"text": "Still working on it."}'), ("ts 1", "written", "ts 2")
    for made in (1, 2):
        window, levels = b"", []
        for number in range(3):
            calls = (post, ToolCall("write_file", f'{{"path": "{number}.txt"}}'), post)[: made + 1]
            results = tuple(Result(text) for text in texts[: made + 1])
            found = DETECTOR.evaluate(window, Step("", calls, (), results, (), (), 2 * number, 100), 1000.0 + number)
            window = found.window
            levels.append(found.level)
        assert levels == ([NOTHING, NOTICE, NOTICE] if made == 1 else [NOTICE] * 3)


def test_the_epoch_after_the_last_one() -> None:
    """Changes are counted in 16 bits: after the last number comes 0 (LD-4)."""
    window = load(b"")
    window.epoch = 0xFFFF
    step = called('{"text": "one"}', "ts 1", name="post_message")
    one = state(window, prints(step), step=step)
    one.changed = True
    effects.findings(one)
    window.epoch, window.steps = 0, 1
    assert hits(effects.findings(state(window, prints(step), step=step)), "side_effect") == 2


def test_calls_beyond_the_number_of_a_run() -> None:
    """They are counted from the last allowed one on (LD-4)."""
    session = Session(StepEvaluator(StepsSettings(NORMAL, {"ask": ToolOptions(max_per_run=3)}), digest))
    for number in range(6):
        session.call(2.0, "ask", f'{{"number": {number}}}', f"{LONG} {number}")
    assert [one.hits for one in session.found] == [0, 0, 0, 2, 3, 4]


@pytest.mark.parametrize(("others", "level"), [(EFFECTS - 1, NOTICE), (EFFECTS, NOTHING)])
def test_how_many_effects_are_kept(others: int, level: int) -> None:
    """Nine; of more, the oldest one is forgotten (Y-2)."""
    session = Session()
    session.call(2.0, *MAIL, "sent")
    for number in range(others):
        session.call(2.0, "create_issue", f'{{"title": "crash {number}"}}', f"created #{number}")
    assert session.call(2.0, *MAIL, "sent").level == level


def test_how_many_tools_with_a_number_of_calls_are_kept() -> None:
    """Nine; of more, the one that was called the longest ago is forgotten (Y-2)."""
    session = Session(StepEvaluator(StepsSettings(NORMAL, {"*": ToolOptions(max_per_run=1)}), digest))
    names = [f"ask {word}" for word in ("Ada", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Joe")]
    assert len(names) == EFFECTS + 1
    for name in names:
        session.call(2.0, name, "{}", f"{LONG} {name}")
    again = {name: session.call(2.0, name, '{"again": 1}', f"{LONG}, {name}").level for name in (*names[1:], names[0])}
    assert again == {name: NOTHING if name == names[0] else BLOCK for name in names}
