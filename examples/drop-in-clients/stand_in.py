"""A stand-in for the OpenAI and Anthropic APIs, without a model or keys. Run it with `python stand_in.py 9000`."""

from __future__ import annotations

import asyncio
import sys

from breakloop.testing import StandInLLM


async def main(port: int) -> None:
    """Run until interrupted."""
    async with StandInLLM(port=port) as llm:
        print(f"stand-in on {llm.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9000))
