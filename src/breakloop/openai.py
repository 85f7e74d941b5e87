"""Drop-in clients for OpenAI: they send requests through the gateway.

    from breakloop.openai import OpenAI
    client = OpenAI(agent="support-bot")

The gateway is `BREAKLOOP_URL`, or the address of a local `breakloop serve`. A denial is raised as an error that is both
`breakloop.DeniedError` and `openai.RateLimitError`, so that existing handlers keep working.
"""

from __future__ import annotations

import openai

from breakloop import exceptions
from breakloop.sdk.remote_backend import GatewayClient

__all__ = ["AsyncOpenAI", "DeniedError", "LoopDetectedError", "OpenAI"]


class DeniedError(exceptions.DeniedError, openai.RateLimitError):
    """A denial that is not a loop: a limit, a budget, a kill switch."""


class LoopDetectedError(exceptions.LoopDetectedError, openai.RateLimitError):
    """The agent repeats itself."""


class OpenAI(GatewayClient, openai.OpenAI):
    """`openai.OpenAI` through the gateway. `agent` and `session` name the caller; all other options are the SDK's:

    ```python
    client = OpenAI(agent="support-bot", session=ticket_id)
    client.chat.completions.create(model="gpt-5", messages=[...])
    ```
    """

    _gateway_path = "/v1"
    _denials = (DeniedError, LoopDetectedError)


class AsyncOpenAI(GatewayClient, openai.AsyncOpenAI):
    """`openai.AsyncOpenAI` through the gateway. See `OpenAI`."""

    _gateway_path = "/v1"
    _denials = (DeniedError, LoopDetectedError)
