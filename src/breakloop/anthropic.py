"""Drop-in clients of Anthropic's: `from breakloop.anthropic import Anthropic`. Made in `breakloop.sdk.anthropic`."""

from __future__ import annotations

from breakloop.sdk.anthropic import Anthropic, AsyncAnthropic, DeniedError, LoopDetectedError

__all__ = ["Anthropic", "AsyncAnthropic", "DeniedError", "LoopDetectedError"]
