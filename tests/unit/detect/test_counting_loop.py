"""One compiled loop block on its own: keys, messages, delays, announced repeats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from breakloop.detect.counting import AllowList, CountingDetector, DetectorConfig, announced
from breakloop.model.call import Call
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec
from tests.builders import call
from tests.unit.detect.reading import Reader

PRINT = "0123456789abcdef" * 2
WHO = Reader(caller_id="me", agent_id="bot")
TAIL = FingerprintSpec(60.0, 5, sliding=True, cooldown_s=30.0)


def detector(
    kind: str = "tail",
    policy: str = "p",
    expect_repeats: frozenset[str] = frozenset(),
    allow: AllowList | None = None,
    fingerprint: str | None = PRINT,
    spec: FingerprintSpec = TAIL,
) -> CountingDetector:
    config = DetectorConfig(kind, policy, 1, ("warn", "reject", "reject"), 429, expect_repeats, allow)
    return CountingDetector(config, spec, lambda _: fingerprint, WHO)


def planned(made: CountingDetector, asked: Call | None = None, group: int = 0) -> CountFingerprint:
    op = made.plan(asked or call(), "proj", group, 0.0)
    assert op is not None
    return op


def test_keys_name_kind_project_policy_and_block() -> None:
    """`ld:` for exact, `cnt:` for tail, escaped parts, `shadow:` in front for shadow (S-2, E-1)."""
    assert planned(detector("exact")).key == f"ld:proj:p:1:{PRINT}"
    assert planned(detector("tail")).key == f"cnt:proj:p:1:{PRINT}"
    assert planned(detector("tail", "a:b")).key == f"cnt:proj:a%3Ab:1:{PRINT}"
    shadow = planned(detector(), group=4)
    assert (shadow.key, shadow.group) == (f"shadow:cnt:proj:p:1:{PRINT}", 4)


def test_what_is_tracked_is_planned_so() -> None:
    """Only a door that sees answers lets its requests join each other (LD-6)."""
    asked = call()
    assert planned(detector(), asked).tracked is False
    asked.tracked = True
    assert planned(detector(), asked).tracked is True


def test_nothing_to_say() -> None:
    """No fingerprint, or an allow list that covers the call (LD-2, LD-6)."""
    assert detector(fingerprint=None).plan(call(), "proj", 0, 0.0) is None
    allow = AllowList({}, {}, {}, {}, {PRINT: 10.0})
    assert detector(allow=allow).plan(call(), "proj", 0, 9.0) is None
    assert detector(allow=allow).plan(call(), "proj", 0, 10.0) is not None


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("7", 7),
        ("5", 5),
        ("2", 5),
        ("0", 5),
        ("-1", 5),
        ("x", 5),
        ("1e3", 5),
        ("10000", 10_000),
        ("99999999999", 10_000),
    ],
)
def test_announced_repeats(value: str, limit: int) -> None:
    """Raise the limit up to a bound, never lower it; nonsense changes nothing (LD-6)."""
    asked = call(headers={"X-Breakloop-Expect-Repeats": value})
    assert planned(detector(expect_repeats=frozenset({"me"})), asked).limit == limit
    assert planned(detector(expect_repeats=frozenset({"you"})), asked).limit == 5
    assert planned(detector(), asked).limit == 5


def test_what_the_client_is_told() -> None:
    """Counts, seconds rounded up, what was repeated how often and what to do; `tail` says what it compares (A-3)."""
    made = detector()
    loop = made.finding(planned(made), FingerprintCount(6, True, True, 29.2))
    assert (loop.fingerprint, loop.hit_count, loop.window_s, loop.cooldown_s) == (PRINT, 6, 60, 30)
    assert (loop.kind, loop.action, loop.fresh) == ("tail", "reject", True)
    assert loop.message == (
        "Blocked: identical request sent 6 times in 60 seconds. This usually indicates an agent retry loop, infinite "
        "recursion, or misconfigured automation. Only its last messages were compared; earlier ones may differ. "
        "Do not send it again: change the request, work with the answers you have, or stop. "
        "It stays blocked for 30 seconds."
    )
    assert loop.evidence == "same last messages sent 6 times in 60 s"
    other = detector("exact", spec=FingerprintSpec(45.0, 2, sliding=True))
    exact = other.finding(planned(other), FingerprintCount(3, True, True, 45.0))
    assert exact.evidence == "identical request sent 3 times in 45 seconds"
    assert "last messages" not in exact.message


@pytest.mark.parametrize(
    ("spec", "result", "said"),
    [
        (
            FingerprintSpec(60.0, 5, sliding=True, cooldown_s=30.0),
            FingerprintCount(6, True, True, 30.0),
            "6 times in 60 seconds",
        ),
        (
            FingerprintSpec(60.0, 5, sliding=True, cooldown_s=30.0),
            FingerprintCount(9, True, False, 23.0),
            "9 times, also while it was blocked",
        ),
        (FingerprintSpec(60.0, 5, sliding=True), FingerprintCount(9, True, False, 60.0), "9 times in 60 seconds"),
        (FingerprintSpec(45.0, 2), FingerprintCount(3, True, True, 45.0), "3 times, never more than 45 seconds apart"),
        (FingerprintSpec(45.0, 2), FingerprintCount(9, True, False, 45.0), "9 times, never more than 45 seconds apart"),
    ],
)
def test_how_often_it_came_is_said_in_no_more_seconds_than_are_known(
    spec: FingerprintSpec, result: FingerprintCount, said: str
) -> None:
    """A window bounds what a sliding count holds; not a count that goes on in a cooldown, nor one from gap to gap
    (A-3)."""
    made = detector("exact", spec=spec)
    loop = made.finding(planned(made), result)
    assert loop.evidence == f"identical request sent {said}"
    assert loop.message.startswith(f"Blocked: identical request sent {said}. This usually ")


@pytest.mark.parametrize(("count", "delay"), [(4, 400), (299, 29_900), (300, 30_000), (301, 30_000), (10**6, 30_000)])
def test_delays(count: int, delay: int) -> None:
    """100 ms a repeat, at most 30 s (LD-5)."""
    assert detector().delay_ms(count) == delay


def test_a_snooze_for_ever() -> None:
    """An entry without expiry never ends (LD-6)."""
    allow = AllowList({}, {"bot": math.inf}, {}, {}, {})
    assert detector(allow=allow).plan(call(), "proj", 0, 1e18) is None


@pytest.mark.parametrize(("value", "count"), [("7", 7), ("00000007", 7), ("000000075", 7), ("x", -1), ("", -1)])
def test_how_an_announcement_is_read(value: str, count: int) -> None:
    """Up to eight digits of it; less than any count if there is none (LD-6)."""
    config = replace(detector().config, expect_repeats=frozenset({"me"}))
    assert announced(call(headers={"X-Breakloop-Expect-Repeats": value}), config, WHO) == count
    assert announced(call(), config, WHO) == -1


def test_a_count_applies_the_action_of_a_block() -> None:
    """Not that of a notice or a stop; in records it has the number of its block, or the name of its setting (LD-5)."""
    made = detector()
    made.config = replace(made.config, actions=("warn", "throttle", "kill"))
    assert made.finding(planned(made), FingerprintCount(6, True, True, 30.0)).action == "throttle"
    assert made.config.rule == "loop_detection[1]"
    assert not made.of_unnamed  # sessions with a name are counted, too
    assert replace(made.config, setting="LOOP_GUARD_MAX_HITS").rule == "LOOP_GUARD_MAX_HITS"


@pytest.mark.parametrize(
    ("session", "senders", "owner"),
    [("s:1", "", "s%3A1"), ("", "", "*a%3Ab"), ("s:1", " by several agents", "*a%3Ab")],
)
def test_landed_calls_are_counted_by_session(session: str, senders: str, owner: str) -> None:
    """By caller if there is no session, or if several senders are counted together (LD-10)."""
    landing = replace(TAIL, land_calls=2)
    config = DetectorConfig("tail", "p", 1, ("warn", "land", "land"), 429)
    made = CountingDetector(config, landing, lambda _: PRINT, Reader(session_id=session, caller_id="a:b"), senders)
    assert planned(made).landed_key == f"land:proj:p:1:{owner}"
    assert planned(made, group=1).landed_key == f"shadow:land:proj:p:1:{owner}"
    assert planned(detector()).landed_key == ""


def test_what_a_model_is_told() -> None:
    """A landed one is asked for its answer, a steered one for something else (LD-5, LD-10)."""
    config = DetectorConfig("tail", "p", 1, ("warn", "land", "land"), 429)
    made = CountingDetector(config, replace(TAIL, land_calls=2), lambda _: PRINT, WHO)
    landed = made.finding(planned(made), FingerprintCount(6, True, True, landed=1))
    assert made.note(landed).startswith(
        "You have sent the same request 6 times without progress. For this turn, tools are switched off"
    )
    rejected = made.finding(planned(made), FingerprintCount(6, True, True, 30.0))
    assert made.note(rejected) == (
        "You have sent the same request 6 times without progress. Change course, use what you already have, or finish."
    )
