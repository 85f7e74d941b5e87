"""All of them, by name."""

from __future__ import annotations

from tests.unit.dialects.recorded.anthropic import MESSAGES
from tests.unit.dialects.recorded.cohere import COHERE
from tests.unit.dialects.recorded.gemini import GEMINI
from tests.unit.dialects.recorded.mcp import MCP
from tests.unit.dialects.recorded.ollama import OLLAMA
from tests.unit.dialects.recorded.openai import CHAT, COMPLETIONS
from tests.unit.dialects.recorded.responses import RESPONSES

EVERYTHING = CHAT | COMPLETIONS | RESPONSES | MESSAGES | GEMINI | MCP | OLLAMA | COHERE
