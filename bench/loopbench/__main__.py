"""`python -m bench.loopbench`: writes the sessions anew, plays them to breakloop and to simple detectors, and writes
the results. With options, plays them to a detector of your own and prints its figures (bench/loopbench/README.md)."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from bench.loopbench import generate, suite
from bench.loopbench.detectors import SIMPLE, Library, Subject, breakloop_engine, load
from bench.loopbench.gateway import Gateway, faketime_library, started, upstream
from bench.loopbench.results import Result, play, saved, table
from bench.loopbench.suite import Session
from breakloop import __version__

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "loopbench.md"
MARK = "<!-- Results: `make loopbench` writes everything below this line. -->\n"
SERVE = " ".join(
    [
        f"{shlex.quote(sys.executable)} -m breakloop serve --port {{port}} --admin-port 0 --data-dir {{folder}}/data",
        *[f"--upstream {provider}={{upstream}}" for provider in ("openai", "anthropic", "gemini")],
    ]
)
KEPT, LEFT_OUT = "kept", "left out"


def main(arguments: Sequence[str]) -> int:
    """Play what was asked for; without a detector, all that are known here, whose results are written."""
    options = _parser().parse_args(arguments)
    if options.write_sessions:
        count = generate.write(options.write_sessions, every_dialect=options.every_dialect)
        print(f"{count} sessions in {options.write_sessions}")
        return 0
    own = options.library or options.start or options.url
    everything = not (own or options.only or options.sessions)
    if everything:
        generate.write(suite.SESSIONS)
    sessions = [one for one in suite.read(*options.sessions) if not options.only or fnmatch(one.id, options.only)]
    digest = suite.digest(*options.sessions)
    results = [_own(options, sessions, digest)] if own else list(_known(sessions, digest, keeps=_keeps(options)))
    files = [result.save() for result in results] if everything or options.save else []
    if everything:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(results, sessions, digest))
    print("".join(f"written to {file}\n" for file in files), end="")
    return 0


def page(text: str) -> str:
    """Return the page with the results of all files."""
    digest = suite.digest()
    read = list(suite.read())
    loops = sum(one.loop for one in read)
    counts = f"Suite `{digest}`: {len(read)} sessions, {loops} loops and {len(read) - loops} healthy ones.\n"
    return "".join([text.partition(MARK)[0], MARK, "\n", counts, "\n", table(saved(), read, digest)])


def _known(sessions: Sequence[Session], digest: str, *, keeps: bool) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, started(SERVE, Path(folder), keep_pauses=keeps) as gateway:
        yield _result("breakloop", __version__, gateway, sessions, digest, "gateway")
    libraries: dict[str, Library] = {"breakloop, engine": Library(breakloop_engine)}
    libraries |= {name: Library(detector) for name, detector in SIMPLE.items()}
    for name, subject in libraries.items():
        version = __version__ if name.startswith("breakloop") else ""
        yield _result(name, version, subject, sessions, digest, "library")


def _keeps(options: argparse.Namespace) -> bool:
    return not options.compressed and faketime_library() is not None


def _own(options: argparse.Namespace, sessions: Sequence[Session], digest: str) -> Result:
    name, version = options.name, options.version
    if options.library:
        return _result(name, version, load(options.library), sessions, digest, "library")
    with _gateway(options) as gateway:
        gateway.headers = dict(header.split(": ", 1) for header in options.header)
        return _result(name, version, gateway, sessions, digest, "gateway")


@contextmanager
def _gateway(options: argparse.Namespace) -> Iterator[Gateway]:
    if options.start:
        keeps = _keeps(options)
        with tempfile.TemporaryDirectory() as folder, started(options.start, Path(folder), keep_pauses=keeps) as one:
            yield one
        return
    with upstream(options.upstream_port) as (played, llm):
        print(f"upstream: {llm.url}", flush=True)
        yield Gateway(options.url, played)


def _result(name: str, version: str, subject: Subject, sessions: Sequence[Session], digest: str, how: str) -> Result:
    keeps = not isinstance(subject, Gateway) or subject.clock is not None
    return Result(name, version, how, KEPT if keeps else LEFT_OUT, digest, play(subject, sessions, keeps_pauses=keeps))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.loopbench", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--library", metavar="MODULE:NAME", help="what returns a detector for each session")
    which.add_argument("--start", metavar="COMMAND", help="starts a gateway on {port}, in front of {upstream}")
    which.add_argument("--url", help="of a gateway that is running, in front of --upstream-port")
    parser.add_argument("--upstream-port", type=int, default=8899, help="where the recorded answers are played (8899)")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent with each request")
    parser.add_argument("--name", default="yours", help="of the detector, in the table")
    parser.add_argument("--version", default="", help="of the detector, in the table")
    parser.add_argument("--compressed", action="store_true", help="leave pauses out, also where they can be kept")
    parser.add_argument("--only", metavar="GLOB", help="sessions with such ids")
    parser.add_argument("--sessions", nargs="+", type=Path, default=[], metavar="FILE", help="other sessions")
    parser.add_argument("--save", action="store_true", help="write the result to bench/loopbench/results")
    parser.add_argument("--write-sessions", type=Path, metavar="FOLDER", help="write the sessions there, and end")
    parser.add_argument("--every-dialect", action="store_true", help="write each scenario in every dialect it has")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
