"""How long nothing new has come from outside (LD-4)."""

from __future__ import annotations

from msgspec.structs import replace

from breakloop.detect.steps import novelty, streaks
from breakloop.detect.steps.findings import Novelty
from breakloop.detect.steps.window import SessionWindow, load
from breakloop.model.call import Result, Step
from tests.unit.detect.steps.stepping import LONG, PRINTER, called, hits, prints, spoken, state


def take(window: SessionWindow, step: Step, weight: float = 1.0) -> Novelty:
    look = novelty.compare(window, step, prints(step), PRINTER.seed, weight)
    window.steps += 1
    return look


def test_new_lines_halve_and_old_ones_count() -> None:
    """Halve, do not reset; a second look at the same is legitimate, a third is not (LD-4)."""
    window = load(b"")
    assert take(window, called()).news
    assert not take(window, called()).dried
    assert [take(window, called()).dried for _ in range(4)] == [True] * 4
    assert window.dry == 4
    assert take(window, called(text="something else altogether")).news
    assert window.dry == 2


def test_a_dry_spell_has_one_identity() -> None:
    """That of its first step, so that it is reported once (LD-4)."""
    window, keys = load(b""), []
    take(window, called())
    for at in range(4):
        look = take(window, called(f'{{"q": {at}}}'))
        keys.append(next(iter(novelty.findings(state(window, novelty=look)))).key)
    assert len(set(keys)) == 1


def test_another_result_of_a_known_call_is_some_progress() -> None:
    """Also if all its lines are known: a quarter of `dry` and half of `novelty` are taken back (LD-4)."""
    window = load(b"")
    take(window, called(text="first line\nsecond line"))
    window.dry, window.stale_steps, window.line_novelty = 4.0, 9, 0.0
    assert not take(window, called(text="second line\nfirst line")).dried
    assert (window.dry, window.stale_steps) == (3.0, 5)


def test_the_report_of_another_agent() -> None:
    """It was called as a tool, so its answer is known when it is a result; its new words count once (LD-4)."""
    window = load(b"")
    report = "The archive lists four hundred invoices, all of them paid before Easter, and nobody complained about any."
    window.marks.add(*novelty.marks(PRINTER.incoming(report).key))
    dried = [take(window, called(f'{{"ask": {at}}}', report)).dried for at in range(2)]
    assert dried == [False, True]


def test_other_arguments_same_lines() -> None:
    """New arguments bring nothing when the lines are known (LD-4)."""
    window = load(b"")
    take(window, called())
    assert [take(window, called(f'{{"q": {index}}}')).dried for index in range(3)] == [True] * 3


def test_a_new_write_that_succeeds_is_news() -> None:
    """Progress is also what the agent changes; the same write again, or a failed one, is not (LD-4)."""
    window = load(b"")
    take(window, called('{"n": 0}', "The file was written.", name="write_file"))
    assert take(window, called('{"n": 1}', "The file was written.", name="write_file")).news
    take(window, called('{"n": 1}', "The file was written.", name="write_file"))
    assert take(window, called('{"n": 1}', "The file was written.", name="write_file")).dried
    take(window, called('{"n": 2}', "disk full", name="write_file", error=True))
    assert take(window, called('{"n": 3}', "disk full", name="write_file", error=True)).dried


def test_a_success_after_failures_of_the_same_tool_is_news() -> None:
    """Wrong twice, right the third time, for one item after the other; another tool's success is not that (LD-4)."""
    window = load(b"")
    for item in range(8):
        for attempt in range(2):
            take(
                window, called(f'{{"v": {item}, "try": {attempt}}}', "Output does not match the schema", name="answer")
            )
        assert take(window, called(f'{{"v": {item}, "try": 2}}', "ok", name="answer")).news
        assert window.dry < 2
    for attempt in range(4):
        take(window, called(f'{{"w": {attempt}}}', "Output does not match the schema", name="answer"))
    before = window.dry
    assert not take(window, called('{"w": 9}', "ok", name="other")).news
    assert take(window, called('{"w": 9}', "ok", name="answer")).news
    assert window.dry == before / 2
    assert not take(window, called('{"w": 10}', "ok", name="answer")).news


def test_a_known_call_that_succeeds_again_is_no_news() -> None:
    """Else a failure and a success in turns would never count (LD-4)."""
    window = load(b"")
    for _ in range(3):
        take(window, called('{"good": 1}', "ok", name="answer"))
        take(window, called('{"bad": 1}', "Error: the field is missing", name="answer"))
    assert not take(window, called('{"good": 1}', "ok", name="answer")).news


def test_what_is_not_visible_is_unknown() -> None:
    """Calls without results, and unseen calls that return nothing, say nothing either way (LD-4)."""
    window = load(b"")
    take(window, called())
    assert not take(window, called()._replace(results=())).dried
    assert not take(window, called('{"new": 1}', "")).dried


def test_new_words_of_the_model_hold_it() -> None:
    """While the model itself writes new matter the count stays (LD-4)."""
    window = load(b"")
    take(window, spoken("", "Solve it, please."))
    assert not take(window, spoken("Consider prime factors above seventeen", "Solve it, please.")).dried
    assert take(window, spoken("Consider prime factors above seventeen again", "Solve it, please.")).dried


def test_words_of_a_call_that_is_written_as_text_do_not_hold_it() -> None:
    """Other arguments are no new matter, whether the call is native or part of the text (LD-4)."""
    drafts = [
        f'{{"report": "{words}"}}'
        for words in (
            "prime factors above seventeen were considered carefully",
            "quiet harbours rarely freeze before december",
            "several painters borrowed yellow ladders yesterday",
            "distant engines whistle through narrow valleys",
        )
    ]

    def written(draft: str, thought: str = "Once more:") -> Step:
        return called(draft, "The field `cause` is required.", said=f"{thought}\n{draft}")._replace(as_text=True)

    window = load(b"")
    assert [take(window, written(draft)).dried for draft in drafts] == [False, True, True, True]
    thoughts = ("reading everything slowly first", "checking whether columns match", "asking someone about owners")
    window = load(b"")
    take(window, written(drafts[0]))
    assert not any(take(window, written(draft, said)).dried for draft, said in zip(drafts[1:], thoughts, strict=True))


def test_chatter_without_any_tail_counts() -> None:
    """Where nothing was called, nothing is hidden (LD-4)."""
    window = load(b"")
    take(window, spoken("Great work everyone, thank you"))
    assert take(window, spoken("Thank you everyone, great work")).dried


def test_the_fewer_words_are_new_the_more_a_turn_counts() -> None:
    """From one turn, if nearly half of them are, to one and a half (LD-4)."""
    window = load(b"")
    take(window, spoken("amber bridge canal forest garden harbour"))
    take(window, spoken("amber bridge canal forest garden harbour"))
    assert window.dry == 1.5
    take(window, spoken("amber bridge canal forest kettle"))
    assert window.dry == 1.5 + 1.5 - 0.2
    before = window.dry
    take(window, spoken("amber canal"))  # too few words to tell
    assert window.dry == before + 1


def test_the_same_result_of_another_tool_counts_more() -> None:
    """It does not depend on what is called; of one tool it may be a sweep (LD-4)."""
    for names, dry in ((("look", "find", "list"), 2.8), (("look", "look", "look"), 2.0)):
        window = load(b"")
        for at, name in enumerate(names):
            step = called(f'{{"q": {at}}}', name=name)
            new = novelty.compare(window, step, prints(step), PRINTER.seed, 1.0)
            streaks.stagnation(state(window, prints(step), novelty=new))
            window.steps += 1
        assert round(window.dry, 3) == dry


def test_copies_of_answers_are_no_news() -> None:
    """What one agent said and another reads is known, if the answer was heard (LD-4)."""
    answer = "The population of the town is twelve thousand."
    deaf, window = load(b""), load(b"")
    for mark in novelty.marks(PRINTER.incoming(answer).key):
        window.marks.add(mark)
    step = spoken("Please look it up again now", answer)
    take(deaf, spoken("Please look it up again now"))
    take(window, spoken("Please look it up again now"))
    assert take(deaf, step).news
    assert take(window, step).dried
    assert novelty.is_answer(window, PRINTER.incoming(answer).key)
    assert not novelty.is_answer(window, PRINTER.incoming("another").key)


def test_texts_that_are_taken_for_answers_by_mistake() -> None:
    """Hardly any, after hundreds of answers (LD-4)."""
    window = load(b"")
    for number in range(200):
        window.marks.add(*novelty.marks(PRINTER.incoming(f"answer number {number}").key))
    asked = [PRINTER.incoming(f"question number {number}").key for number in range(2000)]
    assert sum(novelty.is_answer(window, key) for key in asked) <= 10
    assert sum(novelty.is_opening(window, key) for key in asked) <= 10


def test_what_the_model_wrote_itself_is_no_news() -> None:
    """Also if its answer was not seen, but is in the history of a request (LD-4)."""
    window, wrote = load(b""), "The population of the town is twelve thousand."
    take(window, spoken(wrote, "How many people live in that town?"))
    assert take(window, spoken("Well then", wrote)).dried


def test_the_beginning_of_a_conversation_never_counts() -> None:
    """A batch with one long prompt and a short new item each is no loop (LD-4)."""
    window = load(b"")
    prompt = "\n".join(f"rule {index}: classify with care" for index in range(30))
    assert not any(take(window, spoken("", f"{prompt}\nitem {index}")).dried for index in range(20))
    assert window.dry == 0


def test_errors_are_compared_by_form() -> None:
    """A result "not found: x", then "not found: y", is nothing new; the same words in a success would be (LD-4)."""
    window = load(b"")
    take(window, called('{"f": 0}', "Error: no such file '/a/0.txt'", error=True))
    assert take(window, called('{"f": 1}', "Error: no such file '/a/1.txt'", error=True)).dried
    window = load(b"")
    take(window, called('{"f": 0}', "/a/0.txt: 3 lines"))
    assert take(window, called('{"f": 1}', "/a/1.txt: 3 lines")).news


def test_wrappers_do_not_drown_a_result() -> None:
    """Short lines around a result weigh little (LD-4)."""
    window = load(b"")
    for index, line in enumerate(
        (
            "def first(self, name, value) -> None:",
            "def second(self, other, x=1) -> str:",
            "class Third(Base, metaclass=Maker):",
        )
    ):
        look = take(window, called(f'{{"q": {index}}}', f"<returncode>0</returncode>\n<output>\n{line}\n</output>"))
        assert look.news


def test_slow_turns_count_less() -> None:
    """A turn a minute counts a quarter (LD-4)."""
    window = load(b"")
    for _ in range(10):
        take(window, called(), 0.25)
    assert window.dry == 2


def test_findings() -> None:
    """A step that is not dry belongs to no dry loop, whatever the count (LD-4)."""
    window = load(b"")
    look = [take(window, called()) for _ in range(12)][-1]
    found = list(novelty.findings(state(window, novelty=look)))
    assert hits(found, "dry") == 10
    assert hits(found, "novelty") == 0  # known messages have no lines to compare
    assert "nothing new for 12 turns" in found[0].evidence
    assert list(novelty.findings(state(window, novelty=replace(look, dried=False)))) == []


def test_novelty() -> None:
    """Results that are mostly known lines, though never the same as a whole (LD-4)."""
    window = load(b"")
    lines = [f"{LONG} {chr(97 + index)}" for index in range(20)]
    looks = [take(window, called(f'{{"q": {index}}}', "\n".join(lines[index:] + lines[:index]))) for index in range(20)]
    assert hits(list(novelty.findings(state(window, novelty=looks[-1]))), "novelty") >= 8


def test_novelty_is_low_below_a_tenth() -> None:
    """The share of new lines is a moving average; a step counts while it is below 0.1 (LD-4)."""
    lines = "\n".join(f"{LONG} {chr(97 + at)}" for at in range(20))
    for average, counted in ((0.134, 0), (0.132, 1)):  # three quarters of it are left after a step without a new line
        window = load(b"")
        take(window, called('{"q": 0}', lines))
        window.line_novelty = average
        take(window, called('{"q": 1}', "\n".join(reversed(lines.split("\n")))))
        assert (window.line_novelty, window.stale_steps) == (0.75 * average, counted)


def test_a_known_call_with_another_result_is_unknown() -> None:
    """Its lines are known, the result as a whole is not: neither news nor a dry turn (LD-4)."""
    window = load(b"")
    for index, text in enumerate((f"{LONG}\nfirst line", "second line, and long")):
        take(window, called(f'{{"q": {index}}}', text))
    assert not take(window, called('{"q": 1}', f"{LONG}\nsecond line, and long")).dried


def results(*texts: str, error: bool = False) -> Step:
    """Results whose calls are kept elsewhere."""
    return called()._replace(calls=(), results=tuple(Result(text, error) for text in texts))


def test_results_whose_calls_are_not_seen() -> None:
    """They are dry where all of them came before, oftener than once; what may be of a change counts as one (LD-4)."""
    window = load(b"")
    assert take(window, results(LONG)).news
    assert [take(window, results(LONG)).dried for _ in range(4)] == [False, True, True, True]
    assert window.dry == 3
    report = "\n".join(f"line {at} of a report that stays as it is" for at in range(9))
    take(window, results(report))
    before = window.dry
    assert not take(window, results(f"{report}\nstage 2")).dried
    assert window.dry < before
    before = window.dry
    assert [take(window, results("ok")).dried for _ in range(4)] == [False] * 4
    assert window.dry == before / 16
    assert [take(window, results("boom", error=True)).dried for _ in range(4)] == [False, False, True, True]


def test_it_goes_no_further_than_it_is_told() -> None:
    """What has lasted for hours is over as soon as what has lasted for minutes (LD-4)."""
    window = load(b"")
    for _ in range(40):
        novelty.compare(window, called(), prints(called()), PRINTER.seed, 1.0, 12.0)
    assert window.dry == 12


def test_new_words_of_the_model() -> None:
    """Whether the model wrote new matter is told, too (LD-4)."""
    window = load(b"")
    said = "The harbour of Lisbon opens early"
    assert [take(window, spoken(said)).worded for _ in range(2)] == [True, False]
    assert not take(window, called()).worded


def test_what_a_call_returned_is_not_yet_shown_to_the_model() -> None:
    """An answer of MCP is no answer of the model, whose copies would be no news (LD-4)."""
    assert novelty.result_marks(b"12345678")[0] not in novelty.marks(b"12345678")


def test_a_chapter_of_a_peer_holds_the_count() -> None:
    """A copy of a peer's answer with a hundred new words is no turn without news, the first time (LD-4)."""

    def dried(count: int) -> list[bool]:
        window = load(b"")
        answer = " ".join(f"word{number}" for number in range(count))
        window.marks.add(*novelty.marks(PRINTER.incoming(answer).key))
        take(window, spoken("Please write the next chapter"))
        order = spoken("Please write the next chapter", answer)
        return [take(window, order).dried for _ in range(2)]

    assert dried(100) == [False, True]
    assert dried(99) == [True, True]
