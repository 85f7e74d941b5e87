"""Repeat, interleaved, failure (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import repeats
from breakloop.detect.steps.findings import Finding
from breakloop.detect.steps.window import CALL, CALLS, SessionWindow, load
from breakloop.model.call import Step
from tests.unit.detect.steps.stepping import LONG, called, hits, prints, state


def take(window: SessionWindow, step: Step, weight: float = 1.0) -> list[Finding]:
    found = list(repeats.count_calls(state(window, prints(step), weight=weight)))
    window.steps += 1
    return found


def test_repeat_counts_in_a_row() -> None:
    """The same call and result, step after step; another step between ends the row, not the count in all (LD-4)."""
    window = load(b"")
    found = [take(window, called()) for _ in range(3)]
    assert [hits(one, "repeat") for one in found] == [0, 2, 3]
    take(window, called('{"b": 1}'))
    window.last_new_step = 1
    last = take(window, called())
    assert (hits(last, "repeat"), hits(last, "interleaved")) == (0, 4)
    assert last[0].evidence == f"`look` returned the same {len(LONG)} bytes 4 times; last new result 3 calls ago"


def copies(number: int, text: str, *, name: str = "look") -> Step:
    """An answer that makes one call several times."""
    step = called(text=text, name=name)
    return step._replace(calls=step.calls * number, results=step.results * number)


@pytest.mark.parametrize(
    ("number", "text", "first", "second"),
    [(3, LONG, 0, 2), (4, LONG, 3, 6), (50, LONG, 3, 6), (7, "12.50", 0, 2), (8, "12.50", 3, 6), (50, "ok", 0, 2)],
)
def test_copies_within_one_answer(number: int, text: str, first: float, second: float) -> None:
    """Enough for a notice, and for a block if the next answer has them again. Two or three are a mistake of the model,
    and a few that return next to nothing are meant (LD-4)."""
    window = load(b"")
    found = [hits(take(window, copies(number, text)), "repeat") for _ in range(2)]
    assert found == [first, second]


def test_copies_of_several_calls_count_each() -> None:
    """And calls that are made once count as ever (LD-4)."""
    window = load(b"")
    many, one = copies(4, LONG), called('{"b": 1}')
    both = many._replace(calls=many.calls + one.calls, results=many.results + one.results)
    assert [one.hits for one in take(window, both)] == [3]
    assert sorted([one.hits for one in take(window, both) if one.kind == "repeat"]) == [2, 6]


def test_another_result_is_progress() -> None:
    """It zeroes the counts of its call (LD-4)."""
    window, found = load(b""), [Finding("", 0, b"", "")]
    for text in (LONG, LONG, LONG + "!", LONG):
        found = take(window, called(text=text))
    assert found == []


def test_a_result_is_new_unless_the_call_returned_it_the_last_time() -> None:
    """Whichever of the calls that are known it is (LD-4)."""
    window = load(b"")
    for arguments in ("{}", '{"b": 1}', '{"b": 2}'):
        pair = prints(called(arguments)).pairs[0]
        assert repeats.is_new(window, pair)
        take(window, called(arguments))
        assert not repeats.is_new(window, pair)
        assert repeats.is_new(window, prints(called(arguments, LONG + "!")).pairs[0])
    assert not repeats.is_new(window, prints(called()).pairs[0])


def test_acknowledgements_do_not_count_with_other_work_between() -> None:
    """The result "ok" says nothing; step after step it is a repeat all the same (LD-4)."""
    window = load(b"")
    for index in range(6):
        take(window, called(f'{{"b": {index}}}'))
        assert hits(take(window, called(text="ok")), "interleaved") == 0
    assert hits(take(window, called(text="ok")), "repeat") == 2


def test_failure() -> None:
    """The same failure counts whole, a different one half; a success or a change in between ends it (LD-4)."""
    window = load(b"")
    found = [hits(take(window, called(text=text, error=True)), "failure") for text in ("boom", "boom", "bang", "bang")]
    assert found == [0, 2, 2.5, 3.5]
    assert hits(take(window, called()), "failure") == 0
    assert hits(take(window, called(text="bang", error=True)), "failure") == 0
    window.epoch += 1
    assert hits(take(window, called(text="bang", error=True)), "failure") == 0


def test_a_new_epoch_voids_the_count() -> None:
    """The same result after a change is no repeat of the one before (LD-4)."""
    window = load(b"")
    for _ in range(5):
        assert hits(take(window, called()), "interleaved") == 0
        window.epoch += 1


def test_slow_repeats_count_less() -> None:
    """Ten times a minute apart is 2.5 (LD-4)."""
    window, found = load(b""), list[Finding]()
    take(window, called())
    for _ in range(9):
        found = take(window, called(), 0.25)
    assert hits(found, "repeat") == 2.5


def test_the_table_is_bounded() -> None:
    """The call used longest ago goes first (LD-4)."""
    window = load(b"")
    take(window, called())
    for index in range(CALLS - 1):
        take(window, called(f'{{"b": {index}}}'))
    assert hits(take(window, called()), "interleaved") == 2
    for index in range(CALLS):
        take(window, called(f'{{"c": {index}}}'))
    assert len(window.calls) == CALLS * CALL.size
    assert take(window, called()) == []


def test_a_call_counts_once_in_a_step() -> None:
    """The same call twice in one round is no repeat (LD-4)."""
    window, double = (
        load(b""),
        called()._replace(calls=(called().calls[0],) * 2, results=(called().results[0],) * 2),
    )
    assert [hits(take(window, double), "repeat") for _ in range(3)] == [0, 2, 3]


def test_is_new() -> None:
    """Whether a call returns something else than the last time (LD-4)."""
    window = load(b"")
    one, other = (prints(called(text=text)).pairs[0] for text in (LONG, LONG + "!"))
    assert repeats.is_new(window, one)
    take(window, called('{"b": 1}'))
    take(window, called())
    assert not repeats.is_new(window, one)
    assert repeats.is_new(window, other)


def test_the_row_of_a_repeat_in_words() -> None:
    """The evidence has the count of the row (LD-4)."""
    window = load(b"")
    found = [take(window, called()) for _ in range(3)]
    assert found[2][0].evidence == f"`look` returned the same {len(LONG)} bytes 3 times in a row"


def test_copies_of_a_slow_answer_count_less() -> None:
    """As much less as repeats do (LD-4)."""
    window = load(b"")
    assert [hits(take(window, copies(4, LONG), 0.5), "repeat") for _ in range(2)] == [1.5, 3]


def test_a_rate_limit_hides_no_other_call_of_the_answer() -> None:
    """The call that was limited is not counted, and the one after it is (LD-4)."""
    window, limited, one = load(b""), called(text="429 rate limit exceeded", error=True), called('{"b": 1}')
    both = limited._replace(calls=limited.calls + one.calls, results=limited.results + one.results)
    assert [[one.hits for one in take(window, both) if one.kind == "repeat"] for _ in range(3)] == [[], [2], [3]]


def test_a_repeat_that_was_waited_for_halves_the_counts() -> None:
    """In a row, in all, and of failures (LD-4)."""
    for error, kinds in ((False, ("repeat", "interleaved")), (True, ("repeat", "interleaved", "failure"))):
        window = load(b"")
        for _ in range(5):
            take(window, called(error=error))
        last = [take(window, called(error=error), weight) for weight in (0.0, 1.0)]
        assert [[hits(one, kind) for one in last] for kind in kinds] == [[2, 4]] * len(kinds)


def test_failures_after_a_success_or_a_change() -> None:
    """They are counted from the first one on again (LD-4)."""
    window, boom = load(b""), called(text="boom", error=True)

    def failures(*steps: Step) -> list[float]:
        return [hits(take(window, step), "failure") for step in steps]

    assert failures(boom, boom, called(), boom, boom) == [0, 2, 0, 0, 2]
    window.epoch += 1
    assert failures(boom, boom) == [0, 2]


def test_a_different_error_is_a_failure_too() -> None:
    """Also if nothing else of the call is a repeat (LD-4)."""
    window = load(b"")
    take(window, called(text="boom", error=True))
    found = take(window, called(text="bang", error=True))
    assert [(one.kind, one.hits) for one in found] == [("failure", 1.5)]
    assert found[0].evidence == "the same call of `look` failed once"


@pytest.mark.parametrize("separator", [" ", "\n"])
@pytest.mark.parametrize(("size", "found"), [(60, [0, 0, 3, 4]), (400, [0, 0, 3, 4]), (401, [0, 0, 0, 0])])
def test_a_short_result_with_a_counter(size: int, found: list[float], separator: str) -> None:
    """The first result is compared with the second one, if it has up to 400 bytes, in one line or several (LD-4)."""
    window = load(b"")
    head = separator.join(("attempt {}", "nobody", "answers", "the", "phone", "there", ""))
    texts = [head.format(number).ljust(size, "x") for number in range(1, 5)]
    assert [hits(take(window, called(text=text)), "drift") for text in texts] == found
