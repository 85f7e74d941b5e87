"""The event loop of a process that serves traffic: uvloop, or asyncio's own where uvloop does not exist (PyPy)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a process to its end; returns its exit code."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return asyncio.run(main)
    return uvloop.run(main)
