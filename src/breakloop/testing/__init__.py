"""For tests: a stand-in for LLM and MCP servers that answers as it is told, a clock that moves when told, and factories
for requests, conversations and bundles. Public; docs/reference/testing.md describes it."""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.model.answer import Usage
from breakloop.testing.answer import Answer
from breakloop.testing.conversations import Conversation, conversation
from breakloop.testing.factories import (
    PATHS,
    bundle,
    chat_request,
    gemini_request,
    limit_policy,
    loop_policy,
    mcp_call,
    messages_request,
    responses_request,
    tool_call,
    tool_result,
)
from breakloop.testing.gate import Gate
from breakloop.testing.http import SeenRequest
from breakloop.testing.llm import StandInLLM, ThreadedGate, ThreadedLLM
from breakloop.testing.mcp import McpServer
from breakloop.testing.script import body, call_tool, cut, fail, nonsense, raw, say, sized, stall, tool_failed

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
