"""What a tool that failed has said, as a step's result: an exception, which is how steps tell failures from answers."""

from __future__ import annotations


class ToolFailedError(Exception):
    """Stands for what a tool that failed has said; never raised."""
