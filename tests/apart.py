"""Modules whose framework has an environment of its own (requirements/), so that they cannot be imported beside the
others: what looks at all modules leaves these out, by name."""

from __future__ import annotations

from typing import Final

APART: Final = frozenset(
    {"breakloop.integrations.claude_agent", "breakloop.integrations.crewai", "breakloop.integrations.litellm"}
)
