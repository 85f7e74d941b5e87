"""What `doctor` says about counters: where they are spread, and what is kept over a restart and what is wrong with it.
The rest of the data directory is `doctor_checks`'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from breakloop.cli.doctor_findings import Finding
from breakloop.clock import Clock
from breakloop.settings import Settings
from breakloop.state.durable_file import FILE
from breakloop.state.durable_look import Look, look
from breakloop.state.redis_url import is_redis_url

_ABOUT = "data_dir"
_AHEAD_S = 60.0


def examine_state(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """Look at `state.db`, which only a process with its counters in memory keeps."""
    if settings.shard_by == "agent" and "+cluster" not in settings.state.partition("://")[0]:
        why = "spreads nothing, for state names no cluster; limits that agents share cost a script more"
        yield Finding(
            "note", "shard_by", f"agent {why if is_redis_url(settings.state) else 'means nothing to memory://'}"
        )
    folder = Path(settings.data_dir)
    if not settings.state.startswith("memory:"):
        return
    try:
        found = look(folder)
        aside = sorted(path.name for path in folder.glob(f"{FILE}.*") if not path.name.endswith(("-wal", "-shm")))
    except OSError as error:
        yield Finding("warning", _ABOUT, f"{folder / FILE} cannot be looked at: {error.strerror}")
        return
    if found is not None:
        yield _judged(found, clock.now())
    if aside:
        message = f"holds {', '.join(aside)}: state that could not be used; look at it, or remove it"
        yield Finding("note", _ABOUT, message)


def _judged(found: Look, now: float) -> Finding:
    size, age_s = f"{found.size / 1e6:.1f} MB", max(0.0, now - found.changed_at)
    if found.wrong:
        message = f"{found.path} cannot be used ({found.wrong}): a start sets it aside, and counters begin anew"
        return Finding("warning", _ABOUT, message)
    if found.latest > now + _AHEAD_S:
        message = (
            f"{found.path} is {found.latest - now:.0f} s ahead of this clock: until then nothing refills or expires"
        )
        return Finding("warning", _ABOUT, f"{message} (set the clock right, or stop and remove the file)")
    message = f"{found.path} keeps the counters: up to {found.entries:,} entries, {size}, saved {_ago(age_s)} ago"
    return Finding("note", _ABOUT, message)


def _ago(age_s: float) -> str:
    for unit_s, name in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f} {name}"
    return f"{age_s:.0f} s"
