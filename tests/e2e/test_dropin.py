"""The drop-in clients and the remote Guard against the real `breakloop serve`, and seed 001's snippet with the plain
client: an agent that loops is stopped with an error it knows, a healthy one is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import anthropic
import openai
import pytest

import breakloop
from breakloop import Guard, LoopDetectedError
from breakloop.anthropic import Anthropic, AsyncAnthropic
from breakloop.openai import AsyncOpenAI, OpenAI
from breakloop.openai import DeniedError as OpenAIDenied
from breakloop.testing import ThreadedLLM, fail
from tests.e2e.served import Caller, Served, refusing, serving

pytestmark = pytest.mark.e2e

MODEL = "gpt-5"
AGAIN: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Summarise it as JSON."}]
POLICY = """
bundle_version: 1
policies:
  - id: few
    spec:
      selector: {pathPrefix: /v1/embeddings}
      rules:
        - name: one
          limit_keys: ["agent:id"]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 0.01, burst: 1}
"""


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dropin")
    (folder / "policy.yaml").write_text(POLICY)
    names = [f"--upstream={name}={llm.url}" for name in ("openai", "anthropic")]
    with serving(folder, *names, "--policy", "policy.yaml") as running:
        yield running


@pytest.fixture(autouse=True)
def _gateway(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKLOOP_URL", served.url + "/")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def test_the_snippet_of_seed_001_works_as_written(served: Served, caller: Caller) -> None:
    """`except RateLimitError as e: if "recursive_loop_detected" in str(e)`, with the plain client (A-3)."""
    from openai import OpenAI, RateLimitError

    told: list[str] = []

    def notify_slack(text: str) -> None:
        told.append(text)

    client = OpenAI(base_url=f"{served.url}/v1", api_key=caller.key)

    def agent() -> None:
        while True:
            try:
                response = client.chat.completions.create(model="oah/gpt-4.1-mini", messages=AGAIN)
            except RateLimitError as e:
                if "recursive_loop_detected" in str(e):
                    # Agent is looping: stop retrying, alert the team
                    notify_slack("Agent loop detected, halting execution")
                    raise SystemExit(1) from None
                raise  # Normal rate limit: retry with backoff
            assert response.choices

    with client, pytest.raises(SystemExit):
        agent()
    assert told == ["Agent loop detected, halting execution"]
    assert len(caller.seen) == 5


def _loops(ask: Callable[[], object]) -> BaseException:
    for _ in range(5):
        ask()
    with pytest.raises(LoopDetectedError) as caught:
        ask()
    return caught.value


@pytest.mark.parametrize("stream", [False, True])
def test_openai_raises_an_error_of_both_kinds(caller: Caller, *, stream: bool) -> None:
    """Caught by either name, with everything that is known of the loop; sent once, never tried again (P-2, P-1)."""
    with OpenAI(api_key=caller.key, agent="nightly", session=f"s-{stream}") as client:

        def ask() -> None:
            answer = client.chat.completions.create(model=MODEL, messages=AGAIN, stream=stream)
            if isinstance(answer, openai.Stream):
                list(answer)

        error = _loops(ask)
        assert isinstance(error, openai.RateLimitError)
        assert isinstance(error, LoopDetectedError)
        assert type(error).__module__ == "breakloop.openai"
        assert (error.hit_count, error.cooldown_seconds, error.kind, error.retry_after) == (6, 30, "tail", 30)
        assert len(error.fingerprint) == 32
        assert error.evidence
        assert error.message.startswith("Blocked: identical request sent 6 times")
        assert "recursive_loop_detected" in str(error)
        assert (error.status_code, error.code) == (429, "recursive_loop_detected")
        assert error.decision.request_id == error.response.headers["x-breakloop-request-id"]
        with pytest.raises(openai.RateLimitError):  # handlers of old
            ask()
        assert client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "else"}]).choices
    assert len(caller.seen) == 6
    assert {(seen.header("x-agent-id"), seen.header("x-agent-session")) for seen in caller.seen} == {
        ("nightly", f"s-{stream}")
    }


def test_async_openai(caller: Caller) -> None:
    """The asynchronous client, and copies of it, raise the same and keep their names (P-2)."""

    async def run() -> None:
        async with AsyncOpenAI(api_key=caller.key, agent="a") as first:
            client = first.with_options(max_retries=1)
            for _ in range(5):
                await client.chat.completions.create(model=MODEL, messages=AGAIN)
            with pytest.raises(LoopDetectedError) as caught:
                await client.chat.completions.create(model=MODEL, messages=AGAIN, stream=True)
            assert isinstance(caught.value, openai.RateLimitError)

    asyncio.run(run())
    assert len(caller.seen) == 5
    assert {seen.header("x-agent-id") for seen in caller.seen} == {"a"}


def test_other_denials_are_denials(caller: Caller) -> None:
    """A limit is no loop, and still both our error and the SDK's (P-2)."""
    with OpenAI(api_key=caller.key, agent=caller.key, max_retries=0) as client:
        client.embeddings.create(model=MODEL, input="one")
        with pytest.raises(OpenAIDenied) as caught:
            client.embeddings.create(model=MODEL, input="two")
    error = caught.value
    assert isinstance(error, openai.RateLimitError)
    assert not isinstance(error, LoopDetectedError)
    assert error.reason == "token_bucket_exceeded"
    assert error.retry_after is not None
    assert error.retry_after >= 100


def test_errors_of_the_provider_stay_its_own(caller: Caller) -> None:
    """A real rate limit is the SDK's error and nothing else (P-2)."""
    caller.next(fail(429, "slow down"))
    with OpenAI(api_key=caller.key, max_retries=0) as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=AGAIN)
    assert type(caught.value) is openai.RateLimitError


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_raises_an_error_of_both_kinds(caller: Caller, *, stream: bool) -> None:
    """The same for Anthropic's client (P-2)."""
    with Anthropic(api_key=caller.key, session=f"s-{stream}") as client:

        def ask() -> None:
            answer = client.messages.create(
                model="claude", max_tokens=9, messages=[{"role": "user", "content": "go"}], stream=stream
            )
            if isinstance(answer, anthropic.Stream):
                list(answer)

        error = _loops(ask)
    assert isinstance(error, anthropic.RateLimitError)
    assert isinstance(error, LoopDetectedError)
    assert (error.hit_count, error.cooldown_seconds, error.kind) == (6, 30, "tail")
    assert "recursive_loop_detected" in str(error)
    assert error.error_code == "recursive_loop_detected"
    assert len(caller.seen) == 5
    assert {seen.header("x-agent-session") for seen in caller.seen} == {f"s-{stream}"}


def test_async_anthropic_is_named_by_the_block_around(caller: Caller) -> None:
    """`with breakloop.agent(...)` names the requests inside; each agent has its own count (P-2)."""

    async def run() -> None:
        async with AsyncAnthropic(api_key=caller.key) as client:
            for name in ("one", "two"):
                with breakloop.agent(name):
                    for _ in range(5):
                        await client.messages.create(
                            model="claude", max_tokens=9, messages=[{"role": "user", "content": "go"}]
                        )

    asyncio.run(run())
    assert [seen.header("x-agent-id") for seen in caller.seen] == ["one"] * 5 + ["two"] * 5


# -- the remote Guard


def test_a_remote_guard_warns_then_stops(served: Served, caller: Caller) -> None:
    """Steps are judged by the decision service; another step passes (D-4, D-3)."""
    with Guard(url=served.url, token=caller.key) as guard, guard.run(agent="remote") as run:
        decisions = [run.step([("search", {"q": "x"})], ["nothing found"]) for _ in range(5)]
        assert [one.allowed for one in decisions] == [True, True, True, True, False]
        assert [bool(one.notice) for one in decisions] == [False, False, True, True, True]
        assert decisions[4].is_loop
        assert decisions[4].kind == "repeat"
        assert decisions[4].cooldown_seconds == 30
        assert run.step([("read", {"path": "a"})], ["something else"]).allowed
        assert guard.faults == 0


def test_a_remote_guard_checks_requests_and_settles(served: Served, caller: Caller) -> None:
    """Requests whose failure was reported are no loop; sync and async decide alike (D-4, D-6)."""
    with Guard(url=served.url, token=caller.key) as guard:
        body = {"model": "m", "messages": [{"role": "user", "content": "again"}]}
        for _ in range(8):
            decision = guard.check(body, agent="failing")
            assert decision.allowed
            guard.report(decision, status=503)

        async def looping() -> list[bool]:
            asked = []
            for _ in range(6):
                asked.append(await guard.acheck(body, agent="looping"))
                await guard.areport(asked[-1])
            return [one.allowed for one in asked]

        assert asyncio.run(looping()) == [True] * 5 + [False]
        assert guard.faults == 0


def test_a_service_that_is_not_there_allows() -> None:
    """Fail open, counted (D-4)."""
    with refusing() as url, Guard(url=url) as guard:
        decision = guard.check({"model": "m", "messages": []})
        assert (decision.allowed, decision.degraded, guard.faults) == (True, True, 1)
        guard.report(decision)
        assert guard.faults == 1
