"""An agent that makes its own HTTP requests, checked in process by its transport. No keys, no server."""

from __future__ import annotations

import httpx

from breakloop.integrations.httpx import GuardTransport
from breakloop.testing import StandInLLM


def main() -> None:
    """Send the same request over and over."""
    with (
        StandInLLM.in_thread() as llm,
        httpx.Client(base_url=llm.url, transport=GuardTransport()) as client,
    ):
        for attempt in range(1, 1001):
            question = {"model": "gpt-5", "messages": [{"role": "user", "content": "Are we there yet?"}]}
            answer = client.post("/v1/chat/completions", json=question)
            if answer.status_code == 429:
                detail = answer.json()["detail"]
                print(f"attempt {attempt}: {detail['error']}, {len(llm.requests)} requests were sent")
                return
            print(f"attempt {attempt}: {answer.json()['choices'][0]['message']['content']}")


if __name__ == "__main__":
    main()
