"""`tail` in the traffic of many people: what is counted as an opening, and what is only reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakloop.detect.counting import DetectorConfig, TailDetector
from breakloop.detect.fingerprint import is_cheap, is_opening
from breakloop.model.call import Call, Chat, Message, ToolCall
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec
from tests.builders import call
from tests.unit.detect.reading import Reader, allowing

PRINT = "0123456789abcdef" * 2
SPEC = FingerprintSpec(60.0, 5, sliding=True, cooldown_s=30.0, concurrent_free=16, retry_free=10)
USER, ANSWER = Message("user", "hi"), Message("assistant", "Hello.")
OPENING = (Message("system", "Be brief."), USER)


def chat(*tail: Message, more: int = 0, max_tokens: int | None = None, dialect: str = "openai_chat") -> Chat:
    return Chat(dialect, "m", tail, len(tail) + more, max_tokens=max_tokens)


def detector(asked: Chat, *, action: str = "reject", named: str = "", agent: str = "key") -> TailDetector:
    def fingerprint(call: Call) -> str:
        call.parsed.chat = asked
        call.identity.caller, call.identity.agent, call.identity.named = "key", agent, named
        return PRINT

    config = DetectorConfig("tail", "p", 1, ("warn", action, action), 429)
    return TailDetector(config, SPEC, fingerprint, Reader())


def planned(made: TailDetector, group: int = 0, body: bytes = b"{}") -> CountFingerprint:
    op = made.plan(call(body=body), "proj", group, 0.0)
    assert op is not None
    return op


@pytest.mark.parametrize(
    ("asked", "opening"),
    [
        (chat(USER), True),
        (chat(*OPENING), True),
        (chat(Message("developer", "Be brief."), USER, USER), True),
        (chat(Message("prompt", "hi")), True),  # of a completion
        (chat(USER, ANSWER, USER), False),
        (chat(USER, Message("model", "Hello."), USER), False),
        (chat(USER, more=1), False),  # what stands before it was not read
        (chat(Message("tool", "ok")), False),  # the provider keeps the history
        (chat(Message("user", "", (ToolCall("f", "{}"),))), False),  # an MCP call
        (chat(Message("observation", "ok")), False),
    ],
)
def test_openings(asked: Chat, opening: bool) -> None:
    """A request without an answer or a result in it (LD-2)."""
    assert is_opening(asked) is opening
    assert planned(detector(asked)).opening is opening


@pytest.mark.parametrize(
    ("asked", "size", "cheap"),
    [
        (chat(Message("input", "a text"), dialect="openai_embeddings"), 10**6, True),
        (chat(*OPENING, max_tokens=1), 200, True),
        (chat(*OPENING, max_tokens=1), 1024, True),
        (chat(*OPENING, max_tokens=2), 200, False),
        (chat(*OPENING, max_tokens=1), 1025, False),  # a long prompt costs money
        (chat(USER, ANSWER, USER, max_tokens=1), 200, False),
        (chat(*OPENING), 200, False),
    ],
)
def test_embeddings_and_pings_are_only_reported(asked: Chat, size: int, cheap: bool) -> None:
    """They do nothing that an agent could loop on, and are no part of what a sender sends (LD-2)."""
    assert is_cheap(call(body=b" " * size), asked) is cheap
    made = detector(asked)
    op = planned(made, body=b" " * size)
    assert (op.spec.denies, op.spec.cooldown_s) == ((False, 0.0) if cheap else (True, 30.0))
    assert (op.spec.window_s, op.spec.limit, op.spec.retry_free, op.limit) == (60.0, 5, 10, 5)
    assert bool(op.traffic) is not cheap
    loop = made.finding(op, FingerprintCount(9, True, False, 60.0 if cheap else 30.0))
    assert loop.action == ("warn" if cheap else "reject")
    assert loop.evidence.endswith("sent 9 times in 60 s" if cheap else "sent 9 times, also while it was blocked")


@pytest.mark.parametrize("action", ["reject", "kill", "throttle", "steer", "warn"])
def test_what_is_mixed_is_warned_of_whatever_the_action(action: str) -> None:
    """Other people are neither denied nor delayed, and nothing is added to their conversations (LD-2, LD-5)."""
    made = detector(chat(*OPENING), action=action)
    op = planned(made)
    assert made.finding(op, FingerprintCount(6, True, True, 30.0)).action == action
    loop = made.finding(op, FingerprintCount(7, True, False, mixed=True))
    assert (loop.action, loop.cooldown_s) == ("warn", 0)
    assert loop.evidence == "same last messages sent 7 times in 60 s"


def test_traffic_belongs_to_a_sender() -> None:
    """Caller, agent, and the session or end user that the client names; shadow policies have their own (LD-6, E-1)."""
    asked = chat(*OPENING)
    assert planned(detector(asked)).traffic == "mix:proj:p:1:key"
    assert planned(detector(asked, agent="bot")).traffic == "mix:proj:p:1:key|bot"
    assert planned(detector(asked, named="a:b")).traffic == "mix:proj:p:1:key||a%3Ab"
    assert planned(detector(asked, agent="bot", named="x")).traffic == "mix:proj:p:1:key|bot||x"
    assert planned(detector(asked), group=2).traffic == "shadow:mix:proj:p:1:key"


def test_nothing_to_count() -> None:
    """A request that has no fingerprint has no traffic (LD-2)."""
    config = DetectorConfig("tail", "p", 1, ("warn", "reject", "reject"), 429)
    made = TailDetector(config, SPEC, lambda _: None, Reader())
    assert made.plan(call(), "proj", 0, 0.0) is None


def test_a_run_that_a_person_lets_go_on_is_only_warned() -> None:
    made = detector(chat(USER), action="pause")
    op, tripped = planned(made), FingerprintCount(6, True, True, 30.0)
    assert made.finding(op, tripped).action == "pause"
    op.spec = replace(SPEC, denies=False)
    assert made.finding(op, tripped).action == "warn"


def test_the_keys_of_senders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers may invent names for ever (Y-2)."""
    monkeypatch.setattr("breakloop.detect.counting._SENDERS_MAX", 3)
    names = iter(range(10))

    def fingerprint(call: Call) -> str:
        call.parsed.chat = chat(USER)
        call.identity.caller, call.identity.agent = "key", f"agent {next(names)}"
        return PRINT

    made = TailDetector(DetectorConfig("tail", "p", 1, ("warn", "reject", "reject"), 429), SPEC, fingerprint, Reader())
    assert len({planned(made).traffic for _ in range(10)}) == 10
    assert len(made._sender_keys) <= 3


def test_the_parts_of_keys_are_kept_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed once for each sender (Y-2)."""
    monkeypatch.setattr("breakloop.detect.counting._SENDERS_MAX", 3)
    made = detector(chat(USER))
    sizes = []
    for number in range(7):
        made._sender_key(("key", f"agent {number}"))
        sizes.append(len(made._sender_keys))
    assert sizes == [1, 2, 3, 1, 2, 3, 1]


def test_requests_without_messages_have_no_traffic() -> None:
    """And requests on an allow list are not counted, with messages or without (LD-2, LD-6)."""
    config = DetectorConfig("tail", "p", 1, ("warn", "reject", "reject"), 429)
    assert planned(TailDetector(config, SPEC, lambda _: PRINT, Reader())).traffic == ""

    def fingerprint(call: Call) -> str:
        call.parsed.chat = chat(USER)
        return PRINT

    made = TailDetector(allowing(config), SPEC, fingerprint, Reader())
    assert made.plan(call(), "proj", 0, 1.0) is None


def test_what_is_only_reported_is_not_landed() -> None:
    """Embeddings and pings (LD-2, LD-10)."""
    config = DetectorConfig("tail", "p", 1, ("warn", "land", "land"), 429)

    def fingerprint(call: Call) -> str:
        call.parsed.chat = chat(*OPENING, max_tokens=1)
        return PRINT

    made = TailDetector(config, replace(SPEC, land_calls=2), fingerprint, Reader())
    op = planned(made)
    assert (op.spec.denies, op.spec.land_calls) == (False, 0)


def keys(made: TailDetector, *tasks: str) -> list[str]:
    """The keys under which requests of these tasks are counted."""
    found = []
    for task in tasks:
        op = made.plan(call(query=task), "proj", 0, 0.0)
        assert op is not None
        found.append(op.key)
    return found


def test_tasks_that_begin_alike_are_counted_apart() -> None:
    """From the third request with the same last messages on; the second one shows which task they belong to (LD-6)."""
    later = chat(USER, ANSWER, USER, more=2)
    first, second, third, fourth, fifth, sixth = keys(detector(later), "a", "a", "b", "b", "c", "a")
    assert first == second == sixth == f"cnt:proj:p:1:{PRINT}"
    assert third == fourth
    assert len({first, third, fifth}) == 3
    for key in (third, fifth):
        assert key.startswith("cnt:proj:p:1:")
        assert len(key) == len(first)
        assert int(key.removeprefix("cnt:proj:p:1:"), 16)


def test_sessions_with_a_name_and_openings_are_not_told_apart_by_task() -> None:
    """The name does it, and an opening contains its task (LD-6)."""
    later = chat(USER, ANSWER, USER, more=2)
    for made in (detector(later, named="session"), detector(chat(USER, ANSWER, USER))):
        assert len(set(keys(made, "a", "a", "b", "c"))) == 1


def test_the_tasks_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as allowed are kept; one more, and all are forgotten (Y-2)."""
    monkeypatch.setattr("breakloop.detect.counting._TASKS_MAX", 2)

    def fingerprint(call: Call) -> str:
        call.parsed.chat = chat(USER, ANSWER, USER, more=2)
        call.identity.caller = call.identity.agent = "key"
        return call.query[0] * 32

    made = TailDetector(DetectorConfig("tail", "p", 1, ("warn", "reject", "reject"), 429), SPEC, fingerprint, Reader())
    keys(made, "1a", "1a", "2a", "2a")
    assert [key[-32:] for key in keys(made, "1a", "2a")] == ["1" * 32, "2" * 32]
    assert keys(made, "1b")[0][-32:] != "1" * 32
    keys(made, "3a")
    assert len(made._tasks) == 1
    assert [key[-32:] for key in keys(made, "1b", "1b")] == ["1" * 32] * 2
