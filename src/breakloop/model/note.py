"""How a note for the model is marked, so that it is known again when it comes back in a conversation."""

from __future__ import annotations

from typing import Final

MARK: Final = "[breakloop]"
END: Final = "[/breakloop]"


def marked(text: str) -> str:
    """Return a note between its marks; "" stays as it is."""
    return f"{MARK} {text} {END}" if text else ""
