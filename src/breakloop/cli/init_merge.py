"""Brings our hooks into a settings file of Claude Code's that may be there already: what others have put into it stays,
and what is ours stands in it once. Which file that is, and writing it, is `init`'s."""

from __future__ import annotations

import json
from typing import Any, Final

OURS: Final = "breakloop hook "


class MergeError(Exception):
    """The file is not what it should be; the message says what it is."""


def merged(there: str, ours: str) -> str:
    """Return a settings file with our hooks among those that are there; the same text where they are already."""
    settings = _object(there)
    hooks = settings.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        raise MergeError('"hooks" is no object')
    changed = False
    for event, matchers in _object(ours)["hooks"].items():
        known = hooks.setdefault(event, [])
        if not isinstance(known, list):
            raise MergeError(f'"hooks.{event}" is no list')
        if not _has_ours(known):
            known.extend(matchers)
            changed = True
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n" if changed else there


def _has_ours(matchers: list[Any]) -> bool:
    """Whatever the command is called with: somebody may have tuned it."""
    return any(OURS in json.dumps(matcher) for matcher in matchers)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise MergeError(f"is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise MergeError("is no JSON object")
    return found
