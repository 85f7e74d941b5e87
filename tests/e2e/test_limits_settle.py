"""Token limits through the real gateway with the real `openai` package: a stream settles from its usage chunk, which
the client never asked for and never sees."""

from __future__ import annotations

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


def test_a_stream_gives_back_what_it_did_not_use(served: Served, llm: ThreadedLLM) -> None:
    """L-3: 4,000 reserved twice are more than 6,000, but the first used a few dozen."""
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
    """L-3, A-1: a request that can never fit says so."""
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-large") as client,
        pytest.raises(openai.RateLimitError) as raised,
    ):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}], max_tokens=9000)
    assert raised.value.response.headers["x-breakloop-reason"] == "tpm_exceeded"
    assert raised.value.response.headers["x-should-retry"] == "false"
