"""Tools for tests: stand-in LLM and MCP servers with scripted responses, a simulated clock, and factories for requests,
conversations and bundles.
"""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.model.call import Usage
from breakloop.testing.answer import (
    Answer,
    Gate,
    body,
    call_tool,
    cut,
    fail,
    nonsense,
    raw,
    say,
    sized,
    stall,
    tool_failed,
)
from breakloop.testing.factories import (
    PATHS,
    Conversation,
    bundle,
    chat_request,
    conversation,
    gemini_request,
    limit_policy,
    loop_policy,
    mcp_call,
    messages_request,
    responses_request,
    tool_call,
    tool_result,
)
from breakloop.testing.http import SeenRequest
from breakloop.testing.llm import StandInLLM, ThreadedGate, ThreadedLLM
from breakloop.testing.mcp import McpServer

__all__ = [
    "PATHS",
    "Answer",
    "Conversation",
    "FakeClock",
    "Gate",
    "McpServer",
    "SeenRequest",
    "StandInLLM",
    "ThreadedGate",
    "ThreadedLLM",
    "Usage",
    "body",
    "bundle",
    "call_tool",
    "chat_request",
    "conversation",
    "cut",
    "fail",
    "gemini_request",
    "limit_policy",
    "loop_policy",
    "mcp_call",
    "messages_request",
    "nonsense",
    "raw",
    "responses_request",
    "say",
    "sized",
    "stall",
    "tool_call",
    "tool_failed",
    "tool_result",
]
