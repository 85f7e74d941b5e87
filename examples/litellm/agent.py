"""An agent behind LiteLLM's proxy repeats itself, is warned, then stopped. The model is a stand-in: no keys needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai

from breakloop.testing import StandInLLM, ThreadedLLM, call_tool

HERE = Path(__file__).resolve().parent
LITELLM = [str(Path(sys.executable).with_name("litellm")), "--config", "config.yaml"]
STAND_IN_PORT = 9000
PORT = 4000


def loop(llm: ThreadedLLM, client: openai.OpenAI) -> None:
    """The usual agent loop: call the model, run the tool, return the result to the model."""
    messages: list[Any] = [{"role": "user", "content": "What is our refund policy?"}]
    for step in range(1, 1001):
        llm.next(call_tool("search", {"query": "refund policy"}))  # a model that ignores warnings
        try:
            said = client.chat.completions.create(model="stand-in", messages=messages).choices[0].message
        except openai.RateLimitError as stop:
            print(f"step {step}: stopped: {stop.body['message']}")
            return
        received = json.loads(llm.requests[-1].body)["messages"]
        print(f"step {step}: {'passed' if received == messages else received[-1]['content']}")
        messages.append(said.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "no results"})


def main() -> None:
    """Start the stand-in and the proxy (as `litellm --config config.yaml` does), then run the agent."""
    options = ["--host", "127.0.0.1", "--port", str(PORT)]
    with (
        StandInLLM.in_thread(port=STAND_IN_PORT) as llm,
        openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="sk-of-this-example") as client,
        subprocess.Popen([*LITELLM, *options], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proxy,  # noqa: S603 - LiteLLM
    ):
        try:
            client.with_options(max_retries=15).models.list()  # it takes a while to start
            loop(llm, client)
        finally:
            proxy.terminate()


if __name__ == "__main__":
    main()
