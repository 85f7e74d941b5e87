"""The same with Anthropic's client; the `with` block names the session."""

from __future__ import annotations

import sys

import anthropic

import breakloop
from breakloop.anthropic import Anthropic


def main() -> None:
    """Ask until the response is long enough, which it never is."""
    client = Anthropic(api_key="unused")
    with breakloop.agent("essay-bot", session="essay-1"):
        for attempt in range(1, 1001):
            try:
                answer = client.messages.create(
                    model="claude", max_tokens=100, messages=[{"role": "user", "content": "An essay of 1,000 words."}]
                )
            except anthropic.RateLimitError as error:
                if isinstance(error, breakloop.LoopDetectedError):
                    alike, wait_s = error.hit_count, error.cooldown_seconds
                    print(f"attempt {attempt}: stopped after {alike} alike, for {wait_s} s: {error.kind}")
                    sys.exit(1)
                raise
            print(f"attempt {attempt}: {len(str(answer.content))} characters, too short")


if __name__ == "__main__":
    main()
