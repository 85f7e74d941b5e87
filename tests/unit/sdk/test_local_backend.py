"""Deciding in this process."""

from __future__ import annotations

import gzip
import logging
import sys
import threading
from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import BundleError, SettingsError
from breakloop.model.call import Answer, Usage
from breakloop.model.verdict import Verdict
from breakloop.sdk.local_backend import MEMORY, LocalBackend, Policy
from breakloop.sdk.requests import request_call
from tests.builders import bucket, bundle, chat_body, policy, user
from tests.deadlines import DEADLINE_S

BODY = chat_body(user("again"))
LIMITED = bundle(policy("p", bucket(rate=1, burst=1)))


def backend(given: Policy = None, clock: FakeClock | None = None) -> LocalBackend:
    return LocalBackend(given, MEMORY, clock or FakeClock(), b"k" * 32)


def ask(here: LocalBackend, body: bytes = BODY, **headers: str) -> bool:
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return here.decide(request_call("POST", "/v1/chat/completions", sent, body)).allowed


def test_a_wrong_dict_names_no_file() -> None:
    """There is none, and there are no lines (B-2)."""
    with pytest.raises(BundleError) as raised:
        backend({"policies": []})
    assert str(raised.value) == "policy: bundle_version: is required"


def test_without_a_policy_the_built_in_protection_holds() -> None:
    """Five alike, and no sixth (B-6)."""
    here = backend()
    for _ in range(5):
        decision = here.decide(request_call("POST", "/v1/chat/completions", (), BODY))
        assert decision.allowed
        here.settle(decision, Answer(200, complete=True))
    assert not ask(here)


def test_a_policy_as_data_or_as_a_file(tmp_path: Path) -> None:
    """A dictionary, a path (B-1)."""
    file = tmp_path / "p.yaml"
    file.write_text(
        "bundle_version: 1\npolicies:\n  - id: p\n    spec:\n      selector: {pathPrefix: /}\n      rules:\n"
        "        - {name: r, limit_keys: [], algorithm: token_bucket, algorithm_config: {tokens_per_second: 1, burst: 1}}\n"
    )
    for given in (LIMITED, file, str(file)):
        here = backend(given)
        assert [ask(here, chat_body(user(text))) for text in "ab"] == [True, False]


def test_a_wrong_policy_is_said_at_once() -> None:
    """The author's mistake does not fail open (B-2)."""
    with pytest.raises(BundleError, match="polices"):
        backend({"bundle_version": 1, "polices": []})


def test_state_is_here_and_nowhere_else() -> None:
    """Whoever wants to share it is told how (D-4)."""
    with pytest.raises(SettingsError, match="url="):
        LocalBackend(None, "redis://localhost", FakeClock(), b"")


def test_failed_answers_do_not_count() -> None:
    """As through the gateway (LD-6)."""
    here = backend()
    for _ in range(9):
        decision = here.decide(request_call("POST", "/v1/chat/completions", (), BODY))
        assert decision.allowed
        here.settle(decision, Answer(503))


def test_a_packed_body_is_judged_by_what_is_in_it() -> None:
    """A packed body is judged by what is in it (C-9)."""
    here = backend()
    allowed = []
    for level in (1, 2, 6, 9, 1, 9):
        packed = gzip.compress(BODY, level)
        decision = here.decide(request_call("POST", "/v1/chat/completions", {"content-encoding": "gzip"}, packed))
        allowed.append(decision.allowed)
        if decision.allowed:
            here.settle(decision, Answer(200, complete=True))
    assert allowed == [True] * 5 + [False]
    assert backend().decide(request_call("POST", "/x", {"content-encoding": "gzip"}, b"no gzip")).allowed


def test_threads_share_one_count() -> None:
    """Decisions from many threads are made one after the other (D-4)."""
    here = backend(bundle(policy("p", bucket(rate=0.001, burst=50))))
    allowed: list[bool] = []

    def worker(number: int) -> None:
        allowed.extend(ask(here, chat_body(user(f"{number} {index}"))) for index in range(20))

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (len(allowed), sum(allowed)) == (100, 50)


def test_the_engine_is_asked_by_one_thread_at_a_time() -> None:
    """It was written for one (D-4)."""
    here = backend()

    class Engine:
        def decide(self, _call: object) -> Verdict:
            assert here._lock.locked()
            return Verdict()

        def settle(self, _call: object, _answer: Answer) -> None:
            assert here._lock.locked()

    here.engine = Engine()  # type: ignore[assignment]
    here.settle(here.decide(request_call("GET", "/x")), Answer(200))
    assert not here._lock.locked()


@pytest.mark.parametrize(
    ("headers", "packed", "why"),
    [
        ([("content-encoding", "gzip"), ("content-encoding", "gzip")], gzip.compress(gzip.compress(BODY)), {}),
        ([("content-encoding", "gzip")], BODY, {"broken": 7}),
        ([("content-encoding", "rot13")], BODY, {"unknown_coding": 7}),
    ],
)
def test_what_a_field_says_of_the_body_hides_nothing(
    headers: list[tuple[str, str]], packed: bytes, why: dict[str, int]
) -> None:
    """Repeated fields are one list, and plain JSON is read as it is; as at the gateway (C-9)."""
    here = backend()
    decisions = []
    for _ in range(7):
        decisions.append(here.decide(request_call("POST", "/v1/chat/completions", headers, packed)))
        if decisions[-1].allowed:
            here.settle(decisions[-1], Answer(200, complete=True))
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
    assert decisions[-1].kind == "tail"
    assert here.engine.tally.not_unpacked == why


def test_events_are_logged_without_content(caplog: pytest.LogCaptureFixture) -> None:
    """By the logger `breakloop`, silent unless somebody listens; what was left out is told later (G-2, Y-1)."""
    caplog.set_level(logging.INFO, "breakloop")
    clock = FakeClock()
    here = backend(bundle(policy("p", bucket(rate=0.001, burst=1))), clock)
    for number in range(4):
        ask(here, chat_body(user(f"canary {number}")))
    clock.advance(11)
    ask(here, chat_body(user("canary")))
    here.close()
    assert "limit.exceeded" in caplog.messages
    assert "canary" not in str([record.__dict__ for record in caplog.records])
    assert logging.getLogger("breakloop").handlers


def test_budgets_count_what_answers_used() -> None:
    """With the prices that ship with the package (L-3, L-5)."""
    here = backend(bundle(agents={"a": {"budget_usd_per_day": 0.5}}))
    body = chat_body(user("hi"), model="gpt-4o", max_tokens=10)

    def spend(number: int) -> bool:
        decision = here.decide(
            request_call("POST", "/v1/chat/completions", {"x-agent-id": "a", "x-n": str(number)}, body)
        )
        if decision.allowed:
            here.settle(decision, Answer(200, usage=Usage(100_000, 1_000), complete=True))
        return decision.allowed

    assert [spend(number) for number in range(4)] == [True, True, False, False]


def test_limits_in_tokens_need_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prices are an extra; what was used is settled without them (L-3)."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    limit = {"tokens_per_minute": 1000}
    rule = {"name": "r", "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": limit}
    here = backend(bundle(policy("p", rule)))
    decision = here.decide(request_call("POST", "/v1/chat/completions", {}, chat_body(user("hi"), max_tokens=10)))
    here.settle(decision, Answer(200, usage=Usage(900, 200), complete=True))
    assert [decision.allowed, ask(here, chat_body(user("ho"), max_tokens=10))] == [True, False]


def test_a_decision_shows_what_is_left_to_the_tree() -> None:
    """Agents that started each other share one budget in the library, too (G-6)."""
    here = backend(bundle(agents={"*": {"max_tokens_per_tree": 4000}}))
    body = chat_body(user("x" * 4000), max_tokens=1000)

    def ask_from(session: str, **more: str) -> int | None:
        headers = {"content-type": "application/json", "x-agent-session": session, **more}
        return here.decide(request_call("POST", "/v1/chat/completions", headers, body)).tree_tokens_left

    assert [ask_from("root"), ask_from("child", **{"x-agent-parent": "root"}), ask_from("alone")] == [2000, 0, 2000]
