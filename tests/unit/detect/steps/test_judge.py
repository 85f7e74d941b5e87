"""SPEC LD-4: one step judged; the cases of DETECTION.md are in tests/contract/test_steps.py."""

from __future__ import annotations

from breakloop.detect.steps.judge import RUN_IDLE_S, Judged, StepsDetector
from breakloop.detect.steps.ladder import NORMAL, StepsSettings
from breakloop.detect.steps.window import load
from breakloop.model.call import ToolCall
from breakloop.model.step import Result, Step
from tests.unit.detect.steps.stepping import LONG, digest, spoken

DETECTOR = StepsDetector(StepsSettings(), digest)


def step(number: int, arguments: str = "{}", text: str = LONG) -> Step:
    by = f"call_{number:08}"
    return Step("", (ToolCall("look", arguments),), (by,), (Result(text, call_id=by),), (), (), number * 2, 100)


def run(detector: StepsDetector, steps: list[Step], every_s: float = 1.0) -> list[Judged]:
    window, judged = b"", []
    for number, one in enumerate(steps):
        judged.append(detector.judge(window, one, 1000.0 + number * every_s))
        window = judged[-1].window
    return judged


def test_told_once_a_level_and_again_at_twice_the_count() -> None:
    """LD-4: one loop is not reported at each step."""
    judged = run(DETECTOR, [step(number) for number in range(20)])
    assert [number for number, one in enumerate(judged, start=1) if one.fresh] == [3, 5, 8, 16]
    assert len({one.identity for one in judged[2:]}) == 1
    assert len(judged[5].identity) == 16


def test_a_tail_is_counted_once() -> None:
    """LD-4: the same call ids again are a retry, however often another request stands between."""
    same = step(1)
    judged = run(DETECTOR, [same, step(2, '{"b": 1}', "other"), same, same, step(3)])
    assert [one.level for one in judged] == [0] * 5
    assert load(judged[-1].window).steps == 3


def test_counted_ids_are_told_apart_by_the_length_of_the_conversation() -> None:
    """LD-4: servers that number calls from 0 in each answer are not taken for retries."""
    steps = [
        step(number)._replace(call_ids=("call_0",), results=(Result(LONG, call_id="call_0"),)) for number in range(5)
    ]
    assert [one.level for one in run(DETECTOR, steps)] == [0, 0, 1, 1, 2]


def test_a_run_ends_after_ten_idle_minutes() -> None:
    """LD-4: what was counted before is another run's."""
    judged = run(DETECTOR, [step(number) for number in range(40)], every_s=RUN_IDLE_S)
    assert {one.level for one in judged} == {0}


def test_answers_heard_make_copies_known() -> None:
    """LD-4: threads of one session are joined: a peer's copy of an answer is not new."""
    answers = [f"Let us think about the {word} next, everyone." for word in ("cost", "time", "risk", "plan")]

    def level(hear: bool) -> float:
        window = b""
        for number in range(24):
            said, heard = answers[number % 4], answers[(number + 1) % 4]
            window = DETECTOR.judge(window, spoken(said, f"{heard}")._replace(messages=number), 1000.0 + number).window
            if hear:
                window = DETECTOR.answered(window, answers[(number + 2) % 4])
        return load(window).dry

    assert level(hear=True) >= level(hear=False) > 8


def test_exempt_tools() -> None:
    """LD-4: tools that a policy exempts are not counted."""
    detector = StepsDetector(StepsSettings(NORMAL, frozenset(("look",))), digest)
    assert {one.level for one in run(detector, [step(number) for number in range(20)])} == {0}


def test_a_foreign_window_is_new() -> None:
    """LD-4: what cannot be read is forgotten, and nothing fails."""
    judged = DETECTOR.judge(b"\x07nonsense", step(1), 1000.0)
    assert judged.level == 0
    assert load(judged.window).steps == 1


def test_evidence_quotes_nothing() -> None:
    """Y-1: neither arguments nor results nor words are in the evidence or the window."""
    secret = "the-secret-word"
    judged = run(DETECTOR, [step(number, f'{{"q": "{secret}"}}', f"{secret} {LONG}") for number in range(6)])
    assert judged[-1].level == 2
    assert secret not in judged[-1].evidence
    assert secret.encode() not in judged[-1].window


def test_odd_texts_do_not_break_it() -> None:
    """LD-4: lone surrogates, NUL, very long lines."""
    odd = step(1, '{"a": "\ud800"}', "\ud800\x00" + "x" * 100_000)._replace(
        said="\ud800 word word", users=("\udfff" * 30,)
    )
    assert DETECTOR.judge(b"", odd, 1.0).level == 0
    assert DETECTOR.judge(b"", odd._replace(calls=(ToolCall("\ud800", "{"),)), 1.0).level == 0
