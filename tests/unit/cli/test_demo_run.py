"""The demonstration's traffic: real answers over a real connection, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio

from breakloop.cli.demo_run import HEALTHY, LOOPING, Answered, Totals, chat, traffic


def test_answers_are_the_decision_services() -> None:
    """X-4: five pass, the sixth is denied as LD-2 says, and waits less each second."""

    async def collect() -> list[list[Answered]]:
        return [answers async for answers in traffic(8)]

    seconds = asyncio.run(collect())
    looping = [answers[0] for answers in seconds]
    assert [one.status for one in looping] == [200] * 5 + [429] * 3
    assert [one.retry_after_s for one in looping[5:]] == [30, 29, 28]
    assert looping[5].reason == "loop_detected"
    assert looping[5].message.startswith("Blocked: identical request sent 6 times in 60 seconds.")
    assert all(answers[1].allowed and answers[1].agent == HEALTHY for answers in seconds)


def test_one_repeats_itself_and_the_other_does_not() -> None:
    """The demonstration shows what it says."""
    assert chat(LOOPING, 1) == chat(LOOPING, 2)
    assert len({str(chat(HEALTHY, number)) for number in range(500)}) == 500


def test_detections_are_told_from_cooldowns() -> None:
    """A denial is a detection when a request has passed before it."""
    totals = Totals()
    answers = [(200, 0), (429, 30), (429, 29), (200, 0), (429, 60)]
    fresh = [totals.count(Answered(LOOPING, 1, 0, status, "", wait)) for status, wait in answers]
    assert fresh == [False, True, False, False, True]
    assert (totals.passed, totals.blocked, totals.cooldowns_s) == (2, 3, [30, 60])
