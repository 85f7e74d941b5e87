"""The memory limit of the container or of the systemd unit.

When a control group exceeds its limit, the kernel kills the process with all of its streams. `MemoryWatch` refuses
large request bodies before that happens. The size of `memory://` follows from the limit too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from breakloop.config.settings import Settings
from breakloop.gateway.http_request import BodyMemory
from breakloop.observe.log import log

ENTRIES_MAX: Final = 1_000_000
ENTRY_BYTES: Final = 1300  # resident, for each of `memory_max_entries`, when counts and windows are full
_STATE_SHARE: Final = 0.4  # of the limit; a quarter is for bodies, and a process without either takes about 90 MB
_BODIES_SHARE: Final = 0.25
_SHORT_SHARE: Final = 0.75  # from here on, what is left is for bodies that are already arriving
_ENOUGH_SHARE: Final = 0.7
_UNLIMITED: Final = 1 << 60  # version 1 has a number for this
_LOG_EVERY_S: Final = 60


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The limit of one control group."""

    total_bytes: int
    folder: Path
    usage_file: str = "memory.current"

    def used_bytes(self) -> int:
        """Return what the processes of the group use, without the file cache, which the kernel drops when it has to.
        Returns 0 if that cannot be read.
        """
        try:
            used = int((self.folder / self.usage_file).read_text("ascii"))
            if used <= _ENOUGH_SHARE * self.total_bytes:
                return used
            rows = dict(line.split(" ", 1) for line in (self.folder / "memory.stat").read_text("ascii").splitlines())
        except (OSError, ValueError):
            return 0
        prefix = "" if self.usage_file == "memory.current" else "total_"
        return used - int(rows.get(f"{prefix}inactive_file", 0)) - int(rows.get(f"{prefix}active_file", 0))


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the lowest limit of the control groups that this process is in, or None if there is none."""
    return min(_limits(root), key=lambda limit: limit.total_bytes, default=None)


def _limits(root: Path) -> Iterator[MemoryLimit]:
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limit_file, usage_file = groups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit_file, usage_file = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = base / path.strip("/")  # does not exist in a container that sees only its own group, as `base`
        for folder in (own, *own.parents):
            total = _number(folder / limit_file)
            if total is not None:
                yield MemoryLimit(total, folder, usage_file)
            if folder == base:
                break


def _number(file: Path) -> int | None:
    try:
        number = int(file.read_text("ascii"))  # "max" is no number
    except (OSError, ValueError):
        return None
    return number if 0 < number < _UNLIMITED else None


def max_entries(settings: Settings, limit: MemoryLimit | None) -> int:
    """Return the bound of each table of `memory://`: as set, or what fits into the memory of each process."""
    if settings.memory_max_entries is not None:
        return settings.memory_max_entries
    if limit is None:
        return ENTRIES_MAX
    return max(1000, min(ENTRIES_MAX, int(_STATE_SHARE * limit.total_bytes / ENTRY_BYTES / settings.workers)))


def bodies_bytes(most: int, limit: MemoryLimit | None, workers: int) -> int:
    """Return how much memory arriving bodies may take in each process."""
    return most if limit is None else min(most, int(_BODIES_SHARE * limit.total_bytes / workers))


def too_many_entries(settings: Settings, limit: MemoryLimit | None) -> str:
    """Return a problem if `memory://` may outgrow the memory limit; otherwise ""."""
    entries = max_entries(settings, limit)
    if limit is None or settings.memory_max_entries is None:
        return ""
    needed, total = entries * ENTRY_BYTES * settings.workers, limit.total_bytes
    if needed <= _SHORT_SHARE * total:
        return ""
    remedy = "leave it out, so that it follows from the limit, or raise the limit"
    return f"{entries:,} may take {needed >> 20:,} MB, and the memory limit is {total >> 20:,} MB: {remedy}"


class MemoryWatch:
    """Refuses large bodies while the memory of the control group is nearly used up."""

    def __init__(self, limit: MemoryLimit, memory: BodyMemory) -> None:
        self._limit = limit
        self._memory = memory
        self._log_due = 0  # sweeps until the state is logged again
        self._logged_shed = 0

    def sweep(self) -> None:
        """Look at the memory in use; called once a second."""
        memory, total = self._memory, self._limit.total_bytes
        used = self._limit.used_bytes()
        memory.is_short = used > (_ENOUGH_SHARE if memory.is_short else _SHORT_SHARE) * total
        self._log_due -= 1
        if memory.is_short and self._log_due <= 0:
            self._log_due = _LOG_EVERY_S
            fields = {"used_mb": used >> 20, "limit_mb": total >> 20, "refused": memory.shed - self._logged_shed}
            self._logged_shed = memory.shed
            log(logging.WARNING, "memory.short", fields)
