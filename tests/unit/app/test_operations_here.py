"""Operations of the process that judges by itself: what it says about itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.app.test_operations import lived, looped, made


def test_how_it_is_in_numbers(tmp_path: Path) -> None:
    """What `breakloop status` shows (X-1)."""
    runtime = made(tmp_path)

    def look(operations: object) -> None:
        assert operations is runtime.operations
        looped(runtime)
        status = runtime.operations.status()  # type: ignore[attr-defined]  # it is the real one
        assert (status["version"], status["workers"], status["held"]) == ("0.1.0", 1, 0)
        assert status["allowed"] == {"no_matching_policy": 5}
        assert set(status["events_dropped"]) == {"bus", "history", "alerts", "live", "counts"}

    asyncio.run(lived(runtime, look))


def test_breakers_are_those_of_the_engine(tmp_path: Path) -> None:
    """Listed and closed where the state is (CB-2)."""
    runtime = made(tmp_path)

    async def look(_operations: object) -> None:
        here = runtime.operations
        assert await here.breakers() == []  # type: ignore[attr-defined]
        assert await here.reset_breaker("p", "no such") is None  # type: ignore[attr-defined]

    asyncio.run(lived(runtime, look))
