"""Mutants of the Lua scripts (`make mutants ARGS="--package lua"`), which Cosmic Ray cannot make.

Each is one changed operator, number or word, or one statement left out. It is written into a copy of the package, and
the contract tests of the Redis store run against a real server with it, until the first one fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
LUA: Final = "store/redis/lua"
COPY: Final = ROOT / ".cache" / "mutation" / "lua"
EQUIVALENT: Final = ROOT / "scripts" / "mutants_equivalent.toml"
TESTS: Final = (
    "tests/contract/test_store.py",
    "tests/contract/test_store_limits.py",
    "tests/contract/test_store_windows.py",
    "tests/contract/test_tree_budgets.py",
    "tests/contract/test_redis_store.py",
    "tests/contract/test_operator_state.py",
    "tests/unit/store/redis/test_store.py",
    "tests/e2e/test_bundle_redis.py",
)
OTHERS: Final = ("agent", "cluster", "file", "memory", "sentinel", "shards", "tls", "valkey")  # kinds of stores
PYTEST: Final = ("-q", "-x", "-n0", "-pno:pytest_cov", "--timeout=120", "-k", f"not ({' or '.join(OTHERS)})")
REPLACED: Final = {
    "<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "~=", "~=": "==", "+": "-", "-": "+", "*": "/", "/": "*",
    "and": "or", "or": "and", "not": "", "true": "false", "false": "true",
}  # fmt: skip
# Strings and indexes are left alone (another index is noticed by every test), and minus signs of numbers.
_TOKEN: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|\[[^\]]*\]|(?P<number>(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?\b)"""
    r"""|(?P<word>[<>~=]=|[<>]|(?<= )[-+*/](?= )|\b(?:and|or|not|true|false)\b)"""
)
_STATEMENT: Final = re.compile(
    r"\s*+(?:(?:redis\.)?call\(.*\)|(?!local\b|for\b|if\b)[\w\[\]#., +]+ = .*[^,({=]|put\w*\(.*\))$"
)


class Mutant(NamedTuple):
    path: str  # below `src/breakloop`
    line: int
    was: str
    now: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.path, self.was.strip(), self.now.strip()


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("--")[0]
        for found in _TOKEN.finditer(code):
            if found["word"]:
                new = REPLACED[found["word"]]
            elif found["number"]:
                new = found[0] + "0" if "e" in found[0] or "." in found[0] else str(int(found[0]) + 1)
            else:
                continue
            yield Mutant(path, number, line, line[: found.start()] + new + line[found.end() :])
        if _STATEMENT.match(code.rstrip()):
            yield Mutant(path, number, line, "")


def drawn(count: int | None, seed: int) -> list[Mutant]:
    rows = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    known = {(row["path"], row["was"], row["now"]) for row in rows}
    source = ROOT / "src" / "breakloop"
    every = [
        each
        for file in sorted((source / LUA).rglob("*.lua"))
        for each in mutants_of(file.relative_to(source).as_posix(), file.read_text())
        if each.key not in known
    ]
    every.sort(key=lambda each: hashlib.blake2b(f"{seed}\0{each}".encode()).digest())
    return every[:count]


def failed(mutant: Mutant | None) -> str:
    """Return the first test that fails with a mutant, or an empty text."""
    file = COPY / "breakloop" / mutant.path if mutant else COPY / "breakloop" / LUA / "commit.lua"
    original = file.read_text()
    if mutant is not None:
        lines = original.split("\n")
        lines[mutant.line - 1] = mutant.now
        file.write_text("\n".join(lines))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *PYTEST, *TESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(COPY)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_text(original)
    if not done.returncode:
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return named[1] if named else f"exit status {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    mutants = [each for each in drawn(None, options.seed) if options.only in f"{each.path}:{each.line}"]
    number = len(mutants)
    mutants = mutants if options.all else mutants[: options.count]
    if options.list:
        for each in mutants:
            print(f"{each.path}:{each.line}\n    - {each.was.strip()}\n    + {each.now.strip() or '(deleted)'}")
        return 0
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "breakloop", COPY / "breakloop", ignore=shutil.ignore_patterns("__pycache__"))
    if name := failed(None):
        sys.exit(f"mutants: {name} fails without a mutation")
    survived = 0
    for at, each in enumerate(mutants, 1):
        name = failed(each)
        survived += not name
        what = f"killed by {name}" if name else "SURVIVED"
        print(f"{at}/{len(mutants)} {what}  {each.path}:{each.line}")
        print(f"    - {each.was.strip()}\n    + {each.now.strip() or '(deleted)'}", flush=True)
    print(f"\n{len(mutants) - survived} of {len(mutants)} killed, drawn of {number} mutants of the Lua scripts.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
