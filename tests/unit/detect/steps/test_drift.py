"""The same call with the same result, but for what changes by itself (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import repeats
from breakloop.detect.steps.drift import KEPT, kept, without_noise
from breakloop.detect.steps.fingerprints import StepFingerprinter
from breakloop.detect.steps.window import END, ENDS, load
from breakloop.model.call import Result, Step
from tests.unit.detect.steps.stepping import called, hits, prints, state


def drift(*results: str | Step, weight: float = 1.0) -> list[float]:
    """Return the count after each result of one call."""
    window, found = load(b""), []
    for one in results:
        step = called(text=one) if isinstance(one, str) else one
        counted = repeats.count_calls(state(window, prints(step), step=step, weight=weight))
        found.append(hits(counted, "drift"))
        window.steps += 1
    assert len(window.ends) == ENDS * END.size
    return found


NOISE = [f"nothing to do at 12:00:0{second}" for second in range(9)]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("12 tests fine in 0.12s", "12 tests fine in 1.3 s"),
        ("[pid 4001] file not there", "[pid 87] file not there"),
        ("sshd[812]: no such host", "sshd[99]: no such host"),
        ("request id: r-71, no answer", "request id: r-9, no answer"),
        ("session id amber-fox is idle", "session id blue-owl is idle"),
        ("attempt 3: no route to host", "attempt 4: no route to host"),
        ("asleep (checked 7 times)", "asleep (checked 12 times)"),
        ("no mail since 1763320000", "no mail since 1763320999"),
        ("web Running 5m12s", "web Running 6m2s"),
        ("web up for 3 hours", "web up for 4 hours"),
        ("job x7k2p9 is not there", "job k2p9x7 is not there"),
        ("msg_01h8zk3wq5rt is not there", "msg_9x8zk3wq5r99 is not there"),
    ],
)
def test_noise(one: str, two: str) -> None:
    """Times, ids, process numbers and counters of attempts are masked (LD-4)."""
    assert without_noise(one.encode()) == without_noise(two.encode())


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("3 tests failed in 0.12s", "4 tests failed in 0.12s"),
        ("position x=0 y=4, facing east", "position x=1 y=4, facing east"),
        ("epoch 10 loss 2.1", "epoch 10 loss 2.0"),
        ("state RUNNING, 4 of 97 tables", "state RUNNING, 5 of 97 tables"),
        ("attempt 3 of 5", "attempt 4 of 5"),
        ("3 attempts left", "2 attempts left"),
        ("45 % done", "46 % done"),
        ("page 3", "page 4"),
        ("slide-3.png", "slide-4.png"),
        ("screen " + "5fece" * 8, "screen " + "6b86b" * 8),
        ("message: hello", "message: goodbye"),
        ("error near line 12", "error near line 13"),
    ],
)
def test_content(one: str, two: str) -> None:
    """What moves towards something, and what says something else, stays (LD-4)."""
    assert without_noise(one.encode()) != without_noise(two.encode())


def test_places_in_refusals() -> None:
    """The same refusal at another line is the same (LD-4)."""
    one, two = b"cannot parse: line 12", b"cannot parse: line 13"
    assert without_noise(one, refused=True) == without_noise(two, refused=True)


def test_long_results() -> None:
    """Results of up to 400 bytes are compared. Of longer ones, new lines are weighed (LD-4)."""
    for size, counted in ((400, 9), (401, 0)):
        texts = [f"attempt {at}: still nothing to do here {'word ' * 80}"[:size] for at in range(9)]
        assert drift(*texts)[-1] == counted


def test_what_has_to_remain() -> None:
    """Four words of two letters, eight letters or digits of a refusal, or of the news that there is none; else the time
    is the content (LD-4)."""
    for words, counted in (
        ("still to do at", 9),
        ("still to do a", 0),
        ("no matches", 9),
        ("nothing", 0),
        ("error 500", 18),
        ("timed out", 18),
        ("refused", 0),
        ("a b c d e f", 0),
    ):
        assert drift(*[f"{words} 12:00:0{second}" for second in range(9)])[-1] == counted


def test_other_content_with_as_many_words() -> None:
    """What is not masked is compared (LD-4)."""
    assert max(drift(*[f"{name} is waiting at 12:00:0{at}" for at, name in enumerate("abcdefghi")])) == 0
    one, two = [f"{name} is waiting here at 12:00:0{{}}" for name in ("Ada", "Bob")]
    assert max(drift(*[(one, two)[at % 2].format(at) for at in range(9)])) == 0


def test_evidence_names_the_calls() -> None:
    """How often the call was made, also where each counts twice (LD-4)."""
    for texts in (NOISE, [f"timed out after {at} ms" for at in range(1037, 1046)]):
        window, said = load(b""), ""
        for text in texts[:5]:
            step = called(text=text)
            found = repeats.count_calls(state(window, prints(step), step=step))
            said = next((one.evidence for one in found if one.kind == "drift"), "")
            window.steps += 1
        assert said == "`look` returned the same 5 times, but for times, ids or counters"


def test_counts() -> None:
    """The first time is included; exactly equal results count once others came between; another one ends it (LD-4)."""
    assert drift(*NOISE[:5]) == [0, 0, 3, 4, 5]
    assert drift(NOISE[0], *NOISE[:4]) == [0, 0, 0, 3, 4]
    assert drift(*NOISE[:3], NOISE[2], NOISE[3]) == [0, 0, 3, 4, 5]
    assert drift(*NOISE[:3], "one message for you", *NOISE[3:6])[-3:] == [0, 0, 3]
    assert drift(*NOISE[:4], weight=0.5)[-1] == 2.0


def test_white_space_between_words() -> None:
    """Where lines end makes no difference (LD-4)."""
    texts = [f"nothing to do{' ' if at % 2 else chr(10)}at 12:00:0{at}" for at in range(5)]
    assert drift(*texts) == [0, 0, 3, 4, 5]


def test_refusals_count_twice() -> None:
    """Words of refusal at the beginning of a short result (LD-4)."""
    assert drift(*[f"timed out after {at} ms" for at in (1037, 1040, 1002, 1111)]) == [0, 0, 6, 8]


def test_a_change_in_between_resets() -> None:
    """A new epoch begins a new count (LD-4)."""
    window = load(b"")
    for at, text in enumerate(NOISE):
        window.epoch = at // 3
        step = called(text=text)
        found = hits(repeats.count_calls(state(window, prints(step), step=step)), "drift")
        assert found <= 3.0
        window.steps += 1


@pytest.mark.parametrize(
    "results",
    [
        [f"12:00:0{at}" for at in range(9)],  # the time is the content
        [f"next free slot: 12:0{at}" for at in range(9)],
        [f"done in 0.{at} s" for at in range(9)],  # an acknowledgement
        [f"all of it was done at 12:00:0{at}" for at in range(9)],
        [called(text=f"no such file [pid {at}]", error=True) for at in range(9)],  # `failure` counts it
        [called(text=one, name="save_file") for one in NOISE],
        [called(text=NOISE[0])._replace(results=(Result(one, media=(f"image:{one}",)),)) for one in NOISE],
        [called(f'{{"a": {at}}}', one) for at, one in enumerate(NOISE)],
    ],
)
def test_what_does_not_count(results: list[str | Step]) -> None:
    """Results without words, acknowledgements, errors, changes, pictures, other calls (LD-4)."""
    assert max(drift(*results)) == 0


def test_counts_of_other_calls_stay() -> None:
    """The table holds the counts of several calls (LD-4)."""
    window = load(b"")
    counted = []
    for one in NOISE:
        for name in ("a", "b", "c"):
            step = called(text=one, name=name)
            counted.append(hits(repeats.count_calls(state(window, prints(step), step=step)), "drift"))
            window.steps += 1
    assert counted[-3:] == [9, 9, 9]


def test_the_call_that_was_counted_the_longest_ago() -> None:
    """Its count is kept, or begins anew, as that of any other; of thirteen calls it is forgotten (LD-4, Y-2)."""
    texts = ["nothing to do at 12:00:0{}", "something to do at 12:00:0{}"]
    for others, text, expected in ((ENDS - 1, 0, 6), (ENDS - 1, 1, 3), (ENDS, 0, 3)):
        window = load(b"")
        calls = [("first", at, 0) for at in range(5)]
        calls += [(f"other {number}", at, 0) for number in range(others) for at in range(2)]
        calls += [("first", at, text) for at in ((5,) if expected == 6 else (5, 6, 7)[: 3 if text else 2])]
        found = []
        for name, at, which in calls:
            step = called(text=texts[which].format(at), name=name)
            found.append(hits(repeats.count_calls(state(window, prints(step), step=step)), "drift"))
            window.steps += 1
        assert found[-1] == expected


def test_other_scripts_and_control_characters() -> None:
    """Each byte of a letter of another script counts as a letter; control characters do not (LD-4)."""
    for words, counted in (
        ("still to do À", 9),
        ("still to do a\x7f", 0),
        ("still to do ÿ", 9),
        ("denied À", 18),
        ("refused\x7f", 0),
    ):
        assert drift(*[f"{words} 12:00:0{second}" for second in range(9)])[-1] == counted, words


def test_what_a_row_keeps() -> None:
    """Of a result of up to 400 bytes the number of words, of a longer one or an error its fingerprint (LD-4)."""
    for text, words in (("a " * 200, 200), ("a " * 200 + "b", 0), ("a\nb c", 2)):
        assert kept(prints(called(text=text)).pairs[0]) == KEPT.pack(words, 0)
    pair = prints(called(text="no such file", error=True)).pairs[0]
    assert kept(pair) == pair.e != bytes(4)


def test_an_odd_number_of_blanks() -> None:
    """The first result is compared with the second, however many words it has (LD-4)."""
    for words in ("nothing to do at", "nothing to do here at", "nothing new to do here at"):
        assert drift(*[f"{words} 12:00:0{second}" for second in range(4)]) == [0, 0, 3, 4], words


def test_an_acknowledgement_in_between() -> None:
    """It begins a new count, also if it has as many words (LD-4)."""
    assert drift(*NOISE[:4], "all of it is done", *NOISE[4:7]) == [0, 0, 3, 4, 0, 0, 3, 4]


def test_another_result_with_as_many_words() -> None:
    """It begins a new count, in which the first one is known (LD-4)."""
    others = [f"something to do at 12:00:0{second}" for second in range(3)]
    assert drift(*NOISE[:4], *others, NOISE[4]) == [0, 0, 3, 4, 0, 2, 3, 0]


def test_no_result_is_taken_for_another() -> None:
    """A thousand different results, one after the other (LD-4)."""
    names = [f"{one}{two}{three}" for one in "abcdefghij" for two in "klmnopqrst" for three in "uvwxyzabcd"]
    assert max(drift(*[f"{name} is waiting here at 12:00:00" for name in names])) == 0


def test_a_digest_of_zeros() -> None:
    """It counts as any other (LD-4)."""
    window, found = load(b""), []
    for text in NOISE[:4]:
        step = called(text=text)
        one = state(window, prints(step), step=step)
        one.fingerprinter = StepFingerprinter(lambda _: bytes(8))
        found.append(hits(repeats.count_calls(one), "drift"))
        window.steps += 1
    assert found == [0, 0, 3, 4]


def test_other_calls_without_drift() -> None:
    """Calls whose results say something else do not take the place of a count (LD-4, Y-2)."""
    window, found = load(b""), []
    calls = [("first", one) for one in NOISE[:4]]
    calls += [(f"other {number}", f"{word} of them") for number in range(ENDS) for word in ("none", "all")]
    for name, text in (*calls, ("first", NOISE[4])):
        step = called(text=text, name=name)
        found.append(hits(repeats.count_calls(state(window, prints(step), step=step)), "drift"))
        window.steps += 1
    assert (found[3], found[-1]) == (4, 5)
