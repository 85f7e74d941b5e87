"""An agent that asks for JSON until it gets some, with the drop-in client. Only one import differs."""

from __future__ import annotations

import json
import sys

from breakloop import LoopDetectedError
from breakloop.openai import OpenAI


def main() -> None:
    """Retry forever, until the gateway stops it."""
    client = OpenAI(api_key="unused", agent="json-bot")  # BREAKLOOP_URL is the gateway's address
    for attempt in range(1, 1001):
        try:
            answer = client.chat.completions.create(
                model="gpt-5", messages=[{"role": "user", "content": "The weather in Oslo, as JSON."}]
            )
            print(attempt, json.loads(answer.choices[0].message.content or ""))
            return
        except ValueError:
            print(f"attempt {attempt}: no JSON, again")
        except LoopDetectedError as stop:  # also caught by `except openai.RateLimitError`
            print(
                f"attempt {attempt}: stopped after {stop.hit_count} alike, for {stop.cooldown_seconds} s: {stop.kind}"
            )
            sys.exit(1)


if __name__ == "__main__":
    main()
