"""Token limits through the real gateway with the real `openai` package: a stream settles from its usage chunk, which
the client never asked for and never sees; a gateway that forwards by itself tells what was used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, say
from tests.e2e.served import Served, serving

pytestmark = pytest.mark.e2e

POLICY = """\
bundle_version: 1
policies:
  - id: tokens
    spec:
      selector: {pathPrefix: /v1/}
      rules:
        - name: per-minute
          limit_keys: [caller:key]
          algorithm: token_bucket_llm
          algorithm_config: {tokens_per_minute: 6000}
  - id: day
    spec:
      selector: {pathPrefix: /day/}
      rules:
        - name: per-day
          limit_keys: [caller:key]
          algorithm: token_bucket_llm
          algorithm_config: {tokens_per_minute: 60000, tokens_per_day: 20000}
"""


def answer(_seen: SeenRequest) -> Answer:
    """The model says little."""
    return say("Here is a short answer.")


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=answer) as running:
        yield running


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    (folder / "policy.yaml").write_text(POLICY)
    with serving(folder, "--upstream", f"openai={llm.url}", "--policy", "policy.yaml") as running:
        yield running
    (line,) = running.log("estimates")  # L-3: how good they were is told at the end
    assert (line["estimator"], line["count"] >= 1) == ("simple_word", True)


def test_a_stream_gives_back_what_it_did_not_use(served: Served, llm: ThreadedLLM) -> None:
    """4,000 reserved twice are more than 6,000, but the first used a few dozen (L-3)."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-streams") as client:
        for _ in range(3):
            chunks = list(
                client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Go."}], max_tokens=4000, stream=True
                )
            )
            assert all(chunk.usage is None for chunk in chunks)
            assert all(chunk.choices for chunk in chunks)
    assert llm.requests[-1].json()["stream_options"] == {"include_usage": True}


def test_what_is_reserved_is_refused_to_others_meanwhile(served: Served) -> None:
    """A request that can never fit says so (L-3, A-1)."""
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-large") as client,
        pytest.raises(openai.RateLimitError) as raised,
    ):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}], max_tokens=9000)
    assert raised.value.response.headers["x-breakloop-reason"] == "tpm_exceeded"
    assert raised.value.response.headers["x-should-retry"] == "false"


def test_a_gateway_that_forwards_by_itself_tells_what_was_used(served: Served) -> None:
    """Reserved 5000 of a day's 20000, used 3000: 2000 come back, once; an unknown request is 404 (D-6, L-3)."""
    key = {"Authorization": "Bearer sk-gateway", "Content_Type": "application/json"}

    def ask(chars: int, most: int) -> tuple[int, str]:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * chars}], "max_tokens": most})
        status, fields, _ = served.decide("/day/v1/chat/completions", body, **key)
        assert status == 200
        return int(fields["ratelimit-remaining"]), fields["x-breakloop-result-id"]

    def tell(result_id: str) -> int:
        told = json.dumps({"status": 200, "usage": {"prompt_tokens": 1000, "completion_tokens": 2000}})
        return served.ask(f"/v1/decision/{result_id}/result", "POST", told)[0]

    left, result_id = ask(4000, 4000)
    assert left == 15_000
    assert (tell(result_id), tell(result_id), tell("nobody")) == (204, 404, 404)
    assert ask(0, 0)[0] == 17_000
