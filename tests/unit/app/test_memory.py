"""The memory limit of a container: where it is found, what fits into it, and what is refused before it is reached."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from breakloop.app.memory import (
    ENTRIES_MAX,
    ENTRY_BYTES,
    MemoryLimit,
    MemoryWatch,
    bodies_bytes,
    max_entries,
    memory_limit,
    too_many_entries,
)
from breakloop.config.settings import Settings
from breakloop.gateway.http_request import SMALL_BODY_BYTES, BodyMemory, RequestLimits
from tests.each import each

MB = 1 << 20
FILE_CACHE = "anon 1\ninactive_file {0}\nactive_file 0\ntotal_inactive_file {0}\ntotal_active_file 0\n"


def machine(root: Path, groups: str, **files: str) -> Path:
    """The files of a machine; `__` in a name is a slash, and `_max` and the like are those of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("-", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


V1 = "4:memory:/docker/ab\n1:cpu:/docker/ab\n0::/\n"


@each(
    "groups, files, expected",
    [
        ("0::/\n", {"memory-max": "536870912\n"}, 512 * MB),  # a container that sees only its own group
        ("0::/\n", {"memory-max": "max\n"}, None),
        ("0::/\n", {}, None),  # the root of a machine has no limit
        ("0::/a/b\n", {"a__b__memory-max": "max", "a__memory-max": "1048576"}, MB),
        ("0::/a/b\n", {"a__b__memory-max": "1048576", "a__memory-max": "2097152"}, MB),
        (V1, {"memory__docker__ab__memory-limit_in_bytes": "1048576"}, MB),
        (V1, {"memory__memory-limit_in_bytes": "1048576"}, MB),  # in a container, its own group is at the top
        (V1, {"memory__memory-limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_lowest_limit_counts(
    groups: str, files: dict[str, str], expected: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = memory_limit(machine(tmp_path_factory.mktemp("machine"), groups, **files))
    assert (found and found.total_bytes) == expected


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None


@each("usage", ["memory.current", "memory.usage_in_bytes"])
def test_the_file_cache_does_not_count(usage: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The kernel drops it when memory is short; a large state file would otherwise look like a leak."""
    folder = tmp_path_factory.mktemp("group")
    limit = MemoryLimit(100 * MB, folder, usage)
    assert limit.used_bytes() == 0  # unknown
    (folder / usage).write_text(str(90 * MB))
    (folder / "memory.stat").write_text(FILE_CACHE.format(50 * MB))
    assert limit.used_bytes() == 40 * MB


def test_the_store_fits_into_the_limit() -> None:
    """With all of its tables full, beside what bodies may take, in the container that is shipped (Y-2)."""
    limit = MemoryLimit(512 * MB, Path())
    entries = max_entries(Settings(), limit)
    bodies = bodies_bytes(RequestLimits().all_bodies_bytes, limit, 1)
    assert 90 * MB + entries * ENTRY_BYTES + bodies < limit.total_bytes
    assert entries > 100_000
    assert max_entries(Settings(), None) == max_entries(Settings(), MemoryLimit(64 << 30, Path())) == ENTRIES_MAX
    assert max_entries(Settings(memory_max_entries=7), limit) == 7
    assert bodies_bytes(100, None, 1) == bodies_bytes(100, limit, 1) == 100


def test_workers_share_the_limit() -> None:
    limit = MemoryLimit(512 * MB, Path())
    several = Settings(workers=4, state="redis://127.0.0.1:1/0")
    assert max_entries(several, limit) == max_entries(Settings(), limit) // 4


def test_a_bound_that_does_not_fit_is_a_problem() -> None:
    """`doctor` prints it, with what to do."""
    limit = MemoryLimit(512 * MB, Path())
    problem = too_many_entries(Settings(memory_max_entries=1_000_000), limit)
    assert problem.startswith("1,000,000 may take 1,239 MB, and the memory limit is 512 MB: leave it out")
    for settings, found in ((Settings(), limit), (Settings(memory_max_entries=1_000_000), None)):
        assert too_many_entries(settings, found) == ""
    assert too_many_entries(Settings(memory_max_entries=1000), limit) == ""


class Group:
    """A control group whose use the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = BodyMemory(RequestLimits())
        self.watch = MemoryWatch(MemoryLimit(100 * MB, folder), self.memory)
        (folder / "memory.stat").write_text(FILE_CACHE.format(0))

    def uses(self, mb: int) -> bool:
        """Return whether large bodies are refused then."""
        (self.folder / "memory.current").write_text(str(mb * MB))
        self.watch.sweep()
        return self.memory.is_short


def test_large_bodies_are_refused_before_the_limit_is_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From three quarters of the limit on, until there is room again, and a minute apart in the log (Y-2)."""
    caplog.set_level(logging.INFO)
    group = Group(tmp_path)
    assert [group.uses(mb) for mb in (50, 74, 76, 72, 69, 74)] == [False, False, True, True, False, False]
    assert group.uses(90)
    group.memory.shed += 3
    for _ in range(60):
        group.uses(90)
    group.uses(10)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["memory.short", "memory.short"]


def test_unpacked_bodies_are_small_then(tmp_path: Path) -> None:
    group = Group(tmp_path)
    before = group.memory.room
    group.uses(90)
    assert before > 10 * MB
    assert group.memory.room == SMALL_BODY_BYTES
