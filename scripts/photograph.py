"""`make photograph` records the observable behaviour of this tree as text files; `make photograph-compare` compares two
such records. A refactoring that changes nothing leaves them equal: verdicts, headers, bodies, events, stored bytes,
schemas, help texts, public names, and what a running server answers. Each part stands in a `photograph_*.py`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CORPUS: Final = ROOT.parent / "shared" / "corpus"
OUT: Final = ROOT / ".cache" / "photograph"
SHOWN_LINES: Final = 3
SHOWN_CHARS: Final = 400
# Measurements: shown side by side, never a difference. Of imports.txt only the lines with packages are compared.
MEASURED: Final = ("timing.txt", "imports.txt")
PACKAGES: Final = ": packages "


def photograph(out: Path, corpus_folder: Path, only: str) -> int:
    """Write everything below `out`, which is emptied first."""
    os.environ["COLUMNS"] = "100"  # help texts are folded to it
    os.environ["BREAKLOOP_SECRET"] = "photograph-photograph-photograph"  # fingerprints are keyed with it
    for name in [name for name in os.environ if name.startswith(("BREAKLOOP_", "LOOP_GUARD_", "OTEL_"))]:
        if name != "BREAKLOOP_SECRET":
            del os.environ[name]
    sys.path.insert(0, str(ROOT / "src"))  # this tree, whatever else is installed
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # and of the programs that are started
    corpus = sorted(corpus_folder.glob("*.jsonl.gz")) if corpus_folder.is_dir() else []
    if not corpus:
        print(f"no recorded sessions in {corpus_folder}: only scripted ones are judged")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = os.environ["XDG_DATA_HOME"] = os.environ["XDG_CONFIG_HOME"] = home
        return _write(out, corpus, only)


def _write(out: Path, corpus: Sequence[Path], only: str) -> int:
    from scripts.photograph_gateway import photograph_gateway  # noqa: PLC0415 - a comparison needs none of it
    from scripts.photograph_surface import photograph_imports, photograph_surface  # noqa: PLC0415
    from scripts.photograph_verdicts import (  # noqa: PLC0415
        photograph_memory,
        photograph_redis,
        photograph_snapshot,
    )

    parts: dict[str, Callable[[], str | None]] = {
        "surface": lambda: photograph_surface(out, corpus),
        "gateway": lambda: photograph_gateway(out),
        "snapshot": lambda: photograph_snapshot(out),
        "memory": lambda: photograph_memory(out, corpus),
        "redis": lambda: photograph_redis(out, corpus),
        "imports": lambda: photograph_imports(out),
    }
    if only and only not in parts:
        print(f"there is no part {only}: one of {', '.join(parts)}")
        return 2
    if not only:
        shutil.rmtree(out, ignore_errors=True)
    for name, part in parts.items():
        if only in {"", name}:
            began = time.monotonic()
            skipped = part()
            print(f"{name:10} {time.monotonic() - began:5.1f} s  {skipped or ''}".rstrip(), flush=True)
    print(f"{sum(path.is_file() for path in out.rglob('*'))} files in {out}")
    return 0


def compare(old: Path, new: Path, ignored: Sequence[str]) -> int:
    """Print what differs; return 1 if anything does."""
    for folder in (old, new):
        if not folder.is_dir():
            print(f"{folder} is not a folder")
            return 2
    names = sorted({str(path.relative_to(one)) for one in (old, new) for path in one.rglob("*") if path.is_file()})
    wanted = [name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)]
    different = 0
    for name in wanted:
        if name in MEASURED:
            different += _measured(old / name, new / name)
        else:
            different += _differs(name, old / name, new / name)
    print(f"{len(wanted)} files compared, {len(names) - len(wanted)} ignored, {different} different")
    return 1 if different else 0


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _differs(name: str, old: Path, new: Path) -> bool:
    if not old.is_file() or not new.is_file():
        print(f"{name}: only in {(old if old.is_file() else new).parent}")
        return True
    if old.read_bytes() == new.read_bytes():
        return False
    before, after = _lines(old), _lines(new)
    pairs = enumerate(zip_longest(before, after, fillvalue="(no line)"), 1)
    unlike = ((number, one, other) for number, (one, other) in pairs if one != other)
    print(f"{name}: {len(before)} lines before, {len(after)} after; the first that differ:")
    for number, one, other in islice(unlike, SHOWN_LINES):
        start = max(0, next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0) - 80)
        print(f"  {number} - {one[start : start + SHOWN_CHARS]}")
        print(f"  {number} + {other[start : start + SHOWN_CHARS]}")
    return True


def _measured(old: Path, new: Path) -> bool:
    before, after = _lines(old), _lines(new)
    for one, other in zip_longest(before, after, fillvalue="-"):
        print(f"{one} | {other.rpartition(': ')[2]}")
    packages = [[line for line in lines if PACKAGES in line] for lines in (before, after)]
    if packages[0] != packages[1]:
        print(f"{old.name}: other packages are imported than before")
    return packages[0] != packages[1]


def main(arguments: Sequence[str]) -> int:
    """Record, or compare two records."""
    parser = argparse.ArgumentParser(prog="make photograph", description="Record what this tree does.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to; it is emptied")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder with *.jsonl.gz")
    parser.add_argument("--only", default="", help="one part; the others stay as they are")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="compare two folders")
    parser.add_argument("--ignore", action="append", default=[], metavar="GLOB", help="files not to compare")
    chosen = parser.parse_args(arguments)
    if chosen.compare:
        return compare(chosen.compare[0], chosen.compare[1], chosen.ignore)
    return photograph(chosen.out.resolve(), chosen.corpus.resolve(), chosen.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
