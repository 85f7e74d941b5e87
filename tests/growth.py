"""How work grows with its input. A ratio: a limit in seconds would depend on the machine and on what else it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

GROWTH_MAX: Final = 8.0  # for four times the input: 4 is linear, 16 the square
_FAST_NS: Final = 2_000_000  # in less than this, nothing can have grown with the square of some ten thousand characters
_TRIES: Final = 4


def cpu_ns(run: Callable[[], object], times: int = 3) -> int:
    """The CPU time of this process for one run: the least of several, because others use the machine as well."""
    found = []
    for _ in range(times):
        start = time.process_time_ns()
        run()
        found.append(time.process_time_ns() - start)
    return min(found)


def growth(run: Callable[[int], object], size: int) -> float:
    """How many times the CPU time an input of four times the size takes. Measured again while it looks too much."""
    ratio = 0.0
    for _ in range(_TRIES):
        whole, part = cpu_ns(lambda: run(4 * size)), cpu_ns(lambda: run(size))
        if whole < _FAST_NS:
            return 0.0
        ratio = whole / max(part, 1)
        if ratio <= GROWTH_MAX:
            break
    return ratio
