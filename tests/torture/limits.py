"""Limits that the kernel enforces on a process: memory, open files, and a clock that can be set (libfaketime).

Memory is limited by a cgroup where one can be made (version 2, or 1; usually as root), which is what containers have.
Elsewhere the limit is `RLIMIT_DATA`, which needs no rights: an allocation beyond it fails.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.programs import missing

MIB: Final = 1024 * 1024
_CGROUPS: Final = Path("/sys/fs/cgroup")
_FAKETIME: Final = ("*/faketime/libfaketime.so.1", "faketime/libfaketime.so.1")


@dataclass(slots=True)
class Limits:
    """What a process is started with: commands for the shell that becomes it, and its environment."""

    commands: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, program: list[str]) -> list[str]:
        """The command line that runs a program within the limits."""
        return ["sh", "-c", "; ".join([*self.commands, 'exec "$@"']), "sh", *program]

    def files(self, count: int) -> Limits:
        """Limit open files, without the possibility to raise it."""
        self.commands.append(f"ulimit -n {count}")
        return self


@dataclass(frozen=True, slots=True)
class Memory:
    """A limit on memory, and by what it is enforced."""

    bytes: int
    by: str
    _group: Path | None

    def apply(self, limits: Limits) -> Limits:
        if self._group is None:
            limits.commands.append(f"ulimit -d {self.bytes // 1024}")
        else:
            limits.commands.append(f"echo $$ >{shlex.quote(str(self._group / 'cgroup.procs'))}")
        return limits


@contextmanager
def memory(mib: int) -> Iterator[Memory]:
    """Make a limit that ends with the block; its processes have to end first."""
    size = mib * MIB
    made = _cgroup(size)
    if made is None:
        yield Memory(size, "RLIMIT_DATA", None)
        return
    try:
        yield made
    finally:
        assert made._group is not None
        for _ in range(100):  # the kernel may need a moment to forget a process
            with suppress(OSError):
                made._group.rmdir()
                break
            time.sleep(0.02)


def _cgroup(size: int) -> Memory | None:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {controllers: path for _, controllers, path in lines}
    places = [
        (_CGROUPS / own.get("", "/").lstrip("/"), ("memory.max", "memory.swap.max"), "cgroup 2"),
        (_CGROUPS / "memory" / own.get("memory", "/").lstrip("/"), ("memory.limit_in_bytes",), "cgroup 1"),
        (_CGROUPS / "memory", ("memory.limit_in_bytes",), "cgroup 1"),
    ]
    for parent, names, version in places:
        group = parent / f"breakloop-torture-{os.getpid()}"
        try:
            if not (parent / "cgroup.procs").exists():
                continue
            group.mkdir()
        except OSError:
            continue
        try:
            (group / names[0]).write_text(str(size))
        except OSError:  # the controller is not delegated to groups below this one
            group.rmdir()
            continue
        for name in names[1:]:
            with suppress(OSError):
                (group / name).write_text("0")
        return Memory(size, version, group)
    return None


class SetClock:
    """A wall clock that can be set while processes run; their monotonic clock is the real one."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.step(0)

    def step(self, seconds: int) -> None:
        """Let the wall clock differ by so much from the real one."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)

    def apply(self, limits: Limits) -> Limits:
        limits.environment |= {
            "LD_PRELOAD": _library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",  # times of files are compared with those of compiled modules
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its name before libfaketime 0.9.9
        }
        return limits


def _library() -> str:
    folders = map(Path, ("/usr/lib", "/usr/lib64", "/usr/local/lib"))
    found = [path for folder in folders for pattern in _FAKETIME for path in folder.glob(pattern)]
    return (
        str(found[0])
        if found
        else missing("faketime is not installed; `sh scripts/install-system.sh faketime` installs it")
    )
