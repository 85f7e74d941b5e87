"""`python -m tests.torture [NAME ...]` runs scenarios and prints their table. Exit 1: something does not hold."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from rich.console import Console

from breakloop._version import __version__
from tests.e2e.forking import ROOT
from tests.torture.gateway import Rig
from tests.torture.limits import memory
from tests.torture.scenarios import names, run
from tests.torture.table import PAGE, Check, Row, show, write

_KEPT: Final = ROOT / ".cache" / "torture.json"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    unknown = [name for name in options.names if name not in names()]
    if unknown:
        print(f"torture: no scenario is called {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    os.environ["TESTS_COMPLETE"] = "1"  # a missing program is a red row
    rig = Rig(long=not options.short, soak_s=options.soak_minutes * 60)
    rows = [_run(name, rig) for name in options.names or names()]
    show(rows, Console(width=max(160, Console().width), highlight=False))
    red = [row.name for row in rows if row.result != "green"]
    print(f"{len(rows) - len(red)} of {len(rows)} green" + (f"; red: {', '.join(red)}" if red else ""))
    known = _keep(rows)
    if options.write:
        write(known, _notes())
        print(f"written to {PAGE}")
    return 1 if red else 0


def _run(name: str, rig: Rig) -> Row:
    began = time.monotonic()
    row = run(name, rig)
    print(
        f"{row.result:5}  {name} ({time.monotonic() - began:.1f} s)",
        *row.failures(times=True),
        sep="\n       ",
        file=sys.stderr,
    )
    return row


def _keep(rows: Sequence[Row]) -> list[Row]:
    """Add rows to those of earlier runs; returns all of them, in the order of the table."""
    known = {row.name: row for row in _kept()} | {row.name: row for row in rows}
    _KEPT.parent.mkdir(exist_ok=True)
    _KEPT.write_text(json.dumps([asdict(row) for row in known.values()], indent=1), encoding="utf-8")
    return [known[name] for name in names() if name in known]


def _kept() -> list[Row]:
    if not _KEPT.exists():
        return []
    rows = json.loads(_KEPT.read_text(encoding="utf-8"))
    return [Row(**row | {"checks": [Check(**check) for check in row["checks"]]}) for row in rows]


def _notes() -> list[str]:
    with memory(512) as limit:
        by = limit.by
    today = datetime.now(UTC)
    return [
        f"breakloop {__version__}, {today.day} {today:%B %Y}",
        f"Python {platform.python_version()}, Linux on {platform.machine()}, {os.cpu_count()} cores; memory limit: {by}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Attack a real server and break it.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; by default all of them")
    parser.add_argument("--short", action="store_true", help="as small as in `make test`")
    parser.add_argument("--soak-minutes", type=int, default=10, help="how long the soak lasts (default 10)")
    parser.add_argument("--write", action="store_true", help="write the table into the page of the documentation")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
