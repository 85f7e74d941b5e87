"""Drop-in clients for Anthropic: they send requests through the gateway.

    from breakloop.anthropic import Anthropic
    client = Anthropic(agent="support-bot")

The gateway is `BREAKLOOP_URL`, or the address of a local `breakloop serve`. A denial is raised as an error that is both
`breakloop.DeniedError` and `anthropic.RateLimitError`, so that existing handlers keep working.
"""

from __future__ import annotations

import anthropic

from breakloop import exceptions
from breakloop.sdk.remote_backend import GatewayClient

__all__ = ["Anthropic", "AsyncAnthropic", "DeniedError", "LoopDetectedError"]


class DeniedError(exceptions.DeniedError, anthropic.RateLimitError):
    """A denial that is not a loop: a limit, a budget, a kill switch."""


class LoopDetectedError(exceptions.LoopDetectedError, anthropic.RateLimitError):
    """The agent repeats itself."""


class Anthropic(GatewayClient, anthropic.Anthropic):
    """`anthropic.Anthropic` through the gateway. `agent` and `session` name the caller; other options are the SDK's:

    ```python
    client = Anthropic(agent="support-bot", session=ticket_id)
    client.messages.create(model="claude-sonnet-5", max_tokens=1024, messages=[...])
    ```
    """

    _gateway_path = ""
    _denials = (DeniedError, LoopDetectedError)


class AsyncAnthropic(GatewayClient, anthropic.AsyncAnthropic):
    """`anthropic.AsyncAnthropic` through the gateway. See `Anthropic`."""

    _gateway_path = ""
    _denials = (DeniedError, LoopDetectedError)
