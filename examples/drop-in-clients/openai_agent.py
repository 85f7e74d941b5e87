"""An agent that asks for JSON until it gets some, with the drop-in client: one import is all that differs."""

from __future__ import annotations

import json
import sys

from breakloop import LoopDetectedError
from breakloop.openai import OpenAI


def main() -> None:
    """Retry without end; the gateway ends it."""
    client = OpenAI(api_key="unused", agent="json-bot")  # BREAKLOOP_URL says where the gateway is
    for attempt in range(1, 1001):
        try:
            answer = client.chat.completions.create(
                model="gpt-5", messages=[{"role": "user", "content": "The weather in Oslo, as JSON."}]
            )
            print(attempt, json.loads(answer.choices[0].message.content or ""))
            return
        except ValueError:
            print(f"attempt {attempt}: no JSON, again")
        except LoopDetectedError as stop:  # `except openai.RateLimitError` catches it too
            print(
                f"attempt {attempt}: stopped after {stop.hit_count} alike, for {stop.cooldown_seconds} s: {stop.kind}"
            )
            sys.exit(1)


if __name__ == "__main__":
    main()
