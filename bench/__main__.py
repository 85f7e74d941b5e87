"""`python -m bench [NAME] [--seconds N] [--rounds N] [--json FILE] [--check]`; without a name, all but `peers` and
`instructions`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from bench import agent_calls, decision, engine, instructions, peers, proxy, shared, startup, streams
from bench.report import SIZES_KB, Options, Report

BENCHMARKS = {
    "decision": decision.run,
    "engine": engine.run,
    "proxy": proxy.run,
    "agents": agent_calls.run,
    "streams": streams.run,
    "redis": shared.run,
    "startup": startup.run,
    "peers": peers.run,
    "instructions": instructions.run,
}
# `make bench-peers` installs the peers. Instructions are no time, and need valgrind.
_ALL = [name for name in BENCHMARKS if name not in ("peers", "instructions")]
RESULTS = Path(__file__).parent / "results"
PUBLISHED = Path(__file__).parent / "published"  # what docs/reference/benchmarks.md shows


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmarks, print their tables, write their JSON; with --check, exit 1 when a target is missed."""
    options = _parser().parse_args(arguments if arguments is None else [*arguments, *sys.argv[1:]])
    console = Console(width=max(160, Console().width), highlight=False)
    names = [options.benchmark] if options.benchmark else _ALL
    reports = [_run(name, options, console) for name in names]
    if options.check and not all(target.met for report in reports for target in report.targets):
        raise SystemExit(1)


def _run(name: str, options: argparse.Namespace, console: Console) -> Report:
    progress = Console(stderr=True, highlight=False)
    given = Options(
        options.seconds, options.rounds, progress.print, tuple(options.sizes), tuple(options.tree), options.cases
    )
    report = BENCHMARKS[name](given)
    report.show(console)
    for path in (_path(name, options), *([PUBLISHED / f"{name}.json"] if options.publish else [])):
        report.write(path)
        console.print(f"written to {path}")
    console.print()
    return report


def _path(name: str, options: argparse.Namespace) -> Path:
    if options.json is None:
        return RESULTS / f"{name}.json"
    given = Path(options.json)
    return given if options.benchmark else given.with_stem(f"{given.stem}-{name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure breakloop on this machine.")
    parser.add_argument(
        "benchmark", nargs="?", choices=sorted(BENCHMARKS), help="which one; by default all that measure time"
    )
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured in turn (default 5)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", metavar="KB", default=SIZES_KB, help="bodies of proxy (default 2 20 200 600)"
    )
    parser.add_argument(
        "--tree", action="append", metavar="DIR", default=[], help="another checkout that instructions compares with"
    )
    parser.add_argument(
        "--cases",
        metavar="PATTERN",
        default="*",
        help="which lines of agents and instructions: 'chat*' (default all)",
    )
    parser.add_argument("--json", metavar="FILE", help="where to write the figures (default bench/results/NAME.json)")
    parser.add_argument("--publish", action="store_true", help="write the figures for the documentation, too")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser


if __name__ == "__main__":
    main()
