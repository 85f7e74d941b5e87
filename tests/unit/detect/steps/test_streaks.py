"""Kinds that are one count each (LD-4)."""

from __future__ import annotations

from breakloop.detect.steps import repeats, streaks
from breakloop.detect.steps.window import TOOL, TOOLS, load
from breakloop.model.call import Step
from tests.unit.detect.steps.stepping import LONG, at_once, called, hits, prints, state


def test_cascade() -> None:
    """Eight bad results of ten, whatever the tool, and only while nothing new comes (LD-4)."""
    window = load(b"")
    bad, good = prints(called(text="boom", error=True)), prints(called())
    found = [hits(streaks.cascade(state(window, bad)), "cascade") for _ in range(3)]
    assert found == [0, 0, 0]
    window.dry = 2
    assert [hits(streaks.cascade(state(window, bad)), "cascade") for _ in range(3)] == [4, 5, 6]
    assert hits(streaks.cascade(state(window, good)), "cascade") == 0
    assert max(hits(streaks.cascade(state(window, bad)), "cascade") for _ in range(20)) == 10


def test_unknown_tool() -> None:
    """Counted until a call succeeds (LD-4)."""
    window = load(b"")
    missing = prints(called(error=True)._replace(tools=("other",)))
    assert [hits(streaks.unknown_tool(state(window, missing)), "unknown_tool") for _ in range(3)] == [1, 2, 3]
    for other in (prints(called(text="boom", error=True)), prints(called()._replace(results=()))):
        list(streaks.unknown_tool(state(window, other)))  # a call that failed, and one whose result is not seen
    assert hits(streaks.unknown_tool(state(window, missing)), "unknown_tool") == 4
    list(streaks.unknown_tool(state(window, prints(called()))))
    assert hits(streaks.unknown_tool(state(window, missing)), "unknown_tool") == 1


def test_stagnation() -> None:
    """The same informative result whatever the arguments; short ones, changes and news do not count (LD-4)."""
    window = load(b"")
    found = [hits(streaks.stagnation(state(window, prints(called(f'{{"q": {at}}}')))), "stagnation") for at in range(3)]
    assert found == [0, 2, 3]
    assert hits(streaks.stagnation(state(window, prints(called()), news=True)), "stagnation") == 0
    for step in (called(text="ok"), called(name="write_file")):
        assert [hits(streaks.stagnation(state(window, prints(step))), "stagnation") for _ in range(3)] == [0, 0, 0]


def test_news_of_the_last_tool() -> None:
    """Its row stays the last one, and is the same as if another tool's row had been behind it (LD-4)."""
    window = load(b"")
    for name in ("read", "look"):
        list(streaks.stagnation(state(window, prints(called(name=name)))))
    other = load(window.dump())
    other.tools[:] = other.tools[TOOL.size :] + other.tools[: TOOL.size]  # it is moved to the end from there
    for one in (window, other):
        one.steps = 7
        assert not streaks.stagnation(state(one, prints(called(text=LONG + " and more")), news=True))
    assert window.tools == other.tools
    assert TOOL.unpack_from(window.tools, TOOL.size)[2:] == (0.0, 7)


def test_a_short_success_ends_stagnation() -> None:
    """What was refused at length several times is accepted in a word (LD-4)."""
    window = load(b"")
    for at in range(4):
        list(streaks.stagnation(state(window, prints(called(f'{{"q": {at}}}')))))
    ok = called('{"q": 9}', "ok")
    bad, refused = called('{"q": 9}', "no", error=True), called('{"q": 9}', "Error: not found")
    for step, news, left in ((ok, False, 5), (bad, True, 6), (refused, True, 7), (ok, True, 0)):
        list(streaks.stagnation(state(window, prints(step), news=news)))
        assert hits(streaks.stagnation(state(window, prints(called('{"q": 10}')))), "stagnation") == left


def test_the_same_result_of_another_tool_counts_two() -> None:
    """In the step right before; what it counts goes on with the tool that comes next (LD-4)."""
    window, found = load(b""), []
    for name in ("look", "find", "find", "look", "ask", "look"):
        found.append(hits(streaks.stagnation(state(window, prints(called(name=name)))), "stagnation"))
        window.steps += 1
    assert found == [0, 3, 4, 6, 8, 10]
    window.steps += 1  # a step without calls
    assert hits(streaks.stagnation(state(window, prints(called(name="list")))), "stagnation") == 0


def test_stagnation_is_kept_per_tool_and_bounded() -> None:
    """Another tool between changes nothing; tools not used for long are forgotten (LD-4)."""
    window = load(b"")
    for _ in range(2):
        list(streaks.stagnation(state(window, prints(called()))))
        list(streaks.stagnation(state(window, prints(called(name="find", text=LONG + " x")))))
    assert hits(streaks.stagnation(state(window, prints(called()))), "stagnation") == 3
    for index in range(TOOLS):
        list(streaks.stagnation(state(window, prints(called(name=f"tool{index}")))))
    assert len(window.tools) == TOOLS * TOOL.size
    assert hits(streaks.stagnation(state(window, prints(called()))), "stagnation") == 0


def test_storm() -> None:
    """Repeats of one request in a minute; at once they count once (LD-4)."""
    window = load(b"")
    window.last_at = window.storm_at = 100.0
    found = [hits(streaks.storm(window, 100.0 + at / 2, tracked=False), "storm") for at in range(1, 7)]
    assert found == [0, 1, 1, 2, 2, 3]
    assert hits(streaks.storm(window, 300.0, tracked=False), "storm") == 1
    assert (window.storm, window.pending_repeats) == (1.0, 0)
    assert hits(streaks.storm(window, 301.0, tracked=True), "storm") == 2
    assert (window.storm, window.pending_repeats) == (1.0, 1)
    window.last_at = 301.0
    assert hits(streaks.storm(window, 301.0, tracked=False), "storm") == 2


def test_storm_while_the_clock_is_set_back() -> None:
    """By however little, the request came again (S-2)."""
    for back in (0.5, 1.0, 30.0):
        window = load(b"")
        window.last_at, window.storm_at = 100.0 - back, 100.0
        assert hits(streaks.storm(window, 100.0 - back, tracked=False), "storm") == 1
    window = load(b"")
    window.last_at = window.storm_at = 100.0
    assert hits(streaks.storm(window, 100.99, tracked=False), "storm") == 0
    assert hits(streaks.storm(window, 160.0, tracked=False), "storm") == 1
    assert hits(streaks.storm(window, 160.5, tracked=False), "storm") == 0
    assert window.last_at == 160.5


def test_storm_of_calls_whose_results_are_not_seen() -> None:
    """The same call with nothing between, some ten in a minute or more; slowly, or at once, it is none (LD-4)."""

    def last(gap_s: float, step: Step, times: int = 12) -> float:
        window, asked, now, found = load(b""), prints(step), 100.0, 0.0
        for _ in range(times):
            window.last_at, now = now, now + gap_s
            list(repeats.find_cycle(window, asked.round, 1.0))
            found = hits(streaks.call_storm(state(window, asked, now=now)), "storm")
            window.steps += 1
        return found

    hidden = called()._replace(results=())
    assert (last(1.0, hidden), last(6.0, hidden), last(0.5, hidden)) == (11, 11, 5.5)
    assert (last(7.0, hidden), last(0.0, hidden), last(1.0, called()), last(1.0, hidden, 1)) == (0, 0, 0, 0)


def test_thrash() -> None:
    """The context is cut again right after it filled; another conversation between is not that (LD-4)."""
    window = load(b"")
    found = []
    for messages, size in ((80, 60_000), (5, 10_000), (7, 50_000), (5, 10_000), (7, 50_000), (5, 10_000)):
        found.append(
            hits(streaks.thrash(state(window, step=called()._replace(messages=messages, size=size))), "thrash")
        )
        window.steps += 1
    assert found == [0, 1, 0, 2, 0, 3]
    window, found = load(b""), []
    for messages, size in ((80, 60_000), (5, 10_000), (82, 61_000), (7, 11_000), (84, 62_000), (9, 12_000)):
        found.append(
            hits(streaks.thrash(state(window, step=called()._replace(messages=messages, size=size))), "thrash")
        )
        window.steps += 1
    assert max(found) == 1


def cuts(*sizes: int) -> list[float]:
    """The count of `thrash` after each step of a conversation with these sizes."""
    window, found = load(b""), []
    for size in sizes:
        found.append(hits(streaks.thrash(state(window, step=called()._replace(size=size))), "thrash"))
        window.steps += 1
    return found


def test_a_context_is_cut_where_less_than_half_is_left() -> None:
    """Half is no cut, and requests up to 4 KB are too short to tell (LD-4)."""
    assert cuts(60_000, 30_000) == [0, 0]
    assert cuts(60_000, 29_999) == [0, 1]
    assert (cuts(200_000, 180_000), cuts(200_000, 179_999)) == ([0, 0], [0, 1])
    assert cuts(4096, 100) == [0, 0]
    assert cuts(4097, 100) == [0, 1]


def test_cuts_count_on_within_six_steps() -> None:
    """The next cut six steps later adds to the count; seven steps later it begins again (LD-4)."""
    full = (60_000, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000)
    assert cuts(*full, 10_000) == [0, 1, 0, 0, 0, 0, 0, 2]
    assert cuts(*full, 60_000, 10_000) == [0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert cuts(60_000, 10_000, 60_000, 10_000, 60_000, 10_000, 60_000) == [0, 1, 0, 2, 0, 3, 0]


def test_cuts_more_than_ten_minutes_apart_begin_again() -> None:
    """Six an hour at least (LD-4)."""
    for gap_s, expected in ((600.0, 4), (601.0, 1)):
        window = load(b"")
        window.size, step = 60_000, called()._replace(size=10_000)
        found = [streaks.cut(window, step, at * gap_s)[0].hits for at in range(4)]
        assert found[-1] == expected


def test_a_large_context_that_loses_a_tenth() -> None:
    """It was cut; but that alone does not count far, because some clients drop a little all the time (LD-4)."""
    sizes = (830_000, 887_000, 944_000, 1_001_000) * 8
    found = [one for one in cuts(*sizes) if one]
    assert found == [1, 2, 3, 4, 5, 5, 5]
    assert max(cuts(*[size // 20 for size in sizes])) == 0
    assert max(cuts(*[100_000, 95_000, 91_000] * 9)) == 0


def test_cuts_after_work() -> None:
    """From the fourth on, new results make a cut count less, and a change halves the count (LD-4)."""

    def counts(work: int) -> list[float]:
        window, found = load(b""), []
        for at in range(6):
            window.work_since_cut = work
            found.append(streaks.cut(window, called(), float(at))[0].hits)
        return found

    assert counts(1) == [1, 2, 3, 4, 5, 6]
    assert counts(2) == [1, 2, 3, 3.75, 4.5, 5.25]
    assert max(counts(streaks.CHANGED)) < 2


def test_what_is_work() -> None:
    """A change is one, and new results are some; however many, they are no change (LD-4)."""
    window = load(b"")
    assert window.work_since_cut == 0
    for _ in range(300):
        streaks.add_result(window)
    assert 2 < window.work_since_cut < streaks.CHANGED
    streaks.add_change(window)
    assert (window.work_since_cut, window.epoch) == (streaks.CHANGED, 1)


def test_reasoning_items_do_not_look_like_another_conversation() -> None:
    """An answer of the Responses API has items for its reasoning, its text and each call (LD-4)."""
    window, found = load(b""), []
    for messages, size in (
        (12, 60_000),
        (4, 10_000),
        (9, 30_000),
        (14, 60_000),
        (4, 10_000),
        (9, 30_000),
        (14, 60_000),
    ):
        step = called()._replace(messages=messages, size=size)
        found.append(hits(streaks.thrash(state(window, step=step)), "thrash"))
        window.steps += 1
    assert found == [0, 1, 0, 0, 2, 0, 0]


def test_who_has_worked_may_read_again_after_a_cut() -> None:
    """A cut begins a new epoch if there were new results before it, and the history is short now (LD-4)."""
    for work, messages, epochs in ((2, 3, 1), (1, 3, 0), (2, 40, 0), (2, 30, 0), (2, 29, 1)):
        window = load(b"")
        window.messages, window.work_since_cut = 60, work
        streaks.cut(window, called()._replace(messages=messages), 0.0)
        assert (window.epoch, window.work_since_cut) == (epochs, 0)


def test_a_change_eases_stagnation() -> None:
    """It halves what was counted (LD-4)."""
    window = load(b"")
    for at in range(5):
        streaks.stagnation(state(window, prints(called(f'{{"q": {at}}}'))))
    streaks.halve_stagnation(window)
    assert hits(streaks.stagnation(state(window, prints(called('{"q": 9}')))), "stagnation") == 4


def test_a_round_of_calls_is_one_result_of_each_tool() -> None:
    """Whatever is asked at once is asked before anybody can learn from it (LD-4, C16)."""
    window = load(b"")
    missing = prints(at_once(*[called(f'{{"q": {at}}}', error=True) for at in range(5)])._replace(tools=("other",)))
    assert [hits(streaks.unknown_tool(state(window, missing)), "unknown_tool") for _ in range(2)] == [1, 2]
    searches = prints(at_once(*[called(f'{{"q": {at}}}') for at in range(12)]))
    found = [hits(streaks.stagnation(state(window, searches)), "stagnation") for _ in range(3)]
    assert found == [0, 2, 3]
    window.dry = 2
    assert [hits(streaks.cascade(state(window, missing)), "cascade") for _ in range(3)] == [0, 2, 3]


def test_a_round_of_which_some_go_well() -> None:
    """Another result beside the old one is progress, and so is a success beside failures (LD-4)."""
    window = load(b"")
    list(streaks.stagnation(state(window, prints(called()))))
    both = prints(at_once(called('{"q": 1}'), called('{"q": 2}', LONG + " and news"), called('{"q": 3}')))
    assert [hits(streaks.stagnation(state(window, both)), "stagnation") for _ in range(3)] == [0, 0, 0]
    window.dry = 2
    half = prints(at_once(called(), called(text="boom", error=True)))
    assert [hits(streaks.cascade(state(window, half)), "cascade") for _ in range(5)] == [0] * 5
    two = prints(at_once(called(text="boom", error=True), called(text="boom", error=True, name="find")))
    assert hits(streaks.cascade(state(window, two)), "cascade") == 2
    mixed = prints(at_once(called(text="boom", error=True), called(name="find")))
    assert hits(streaks.cascade(state(window, mixed)), "cascade") == 0


def test_the_size_of_a_request_without_its_history() -> None:
    """With `previous_response_id` it is that of the newest results, and says nothing of the context (LD-4)."""
    window, found = load(b""), []
    for at in range(12):
        step = called()._replace(calls=(), size=60_000 if at % 2 else 1000)
        found.append(hits(streaks.thrash(state(window, step=step)), "thrash"))
        window.steps += 1
    assert max(found) == 0


def test_a_persons_word_bounds_stagnation() -> None:
    """What was counted for hours is not held against the next step (LD-4)."""
    window = load(b"")
    for _ in range(50):
        streaks.stagnation(state(window, prints(called())))
    streaks.limit_stagnation(window, 4.5)
    assert hits(streaks.stagnation(state(window, prints(called()))), "stagnation") == 6.5
