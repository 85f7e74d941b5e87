"""All of them, by name."""

from __future__ import annotations

from tests.unit.wire.recorded.anthropic import MESSAGES
from tests.unit.wire.recorded.gemini import GEMINI
from tests.unit.wire.recorded.mcp import MCP
from tests.unit.wire.recorded.openai import CHAT, COMPLETIONS
from tests.unit.wire.recorded.responses import RESPONSES

EVERYTHING = CHAT | COMPLETIONS | RESPONSES | MESSAGES | GEMINI | MCP
