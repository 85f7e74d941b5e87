"""All of them, by name."""

from __future__ import annotations

from tests.unit.dialects.recorded.anthropic import MESSAGES
from tests.unit.dialects.recorded.bedrock import BEDROCK
from tests.unit.dialects.recorded.cohere import COHERE
from tests.unit.dialects.recorded.gemini import GEMINI
from tests.unit.dialects.recorded.mcp import MCP
from tests.unit.dialects.recorded.mistral import MISTRAL
from tests.unit.dialects.recorded.ollama import OLLAMA
from tests.unit.dialects.recorded.openai import CHAT, COMPLETIONS
from tests.unit.dialects.recorded.responses import RESPONSES

VERTEX = {
    f"{name} at Vertex": one._replace(dialect="vertex_anthropic")
    for name, one in MESSAGES.items()
    if name in ("messages text", "messages whole")
}
EVERYTHING = CHAT | COMPLETIONS | RESPONSES | MESSAGES | GEMINI | MCP | OLLAMA | COHERE | BEDROCK | MISTRAL | VERTEX
