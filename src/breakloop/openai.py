"""Drop-in clients of OpenAI's: `from breakloop.openai import OpenAI`. Made in `breakloop.sdk.openai`."""

from __future__ import annotations

from breakloop.sdk.openai import AsyncOpenAI, DeniedError, LoopDetectedError, OpenAI

__all__ = ["AsyncOpenAI", "DeniedError", "LoopDetectedError", "OpenAI"]
