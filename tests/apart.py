"""Modules whose framework has an environment of its own (requirements/), so that they cannot be imported beside the
others: what looks at all modules leaves these out, by name."""

from __future__ import annotations

from typing import Final

_NAMES: Final = (
    *("ag2", "agent_framework", "agno", "autogen", "claude_agent", "crewai", "dspy", "google_adk", "haystack"),
    *("litellm", "llama_index", "semantic_kernel", "smolagents", "strands"),
)
APART: Final = frozenset(f"breakloop.integrations.{name}" for name in _NAMES)
