"""Reads a hash-pinned requirements file, and compares it with what is installed. Standard library only: setup runs this
before anything else is there."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

OURS = "breakloop"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*])?==(?P<version>[^\s;\\]+)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked package; `versions` has more than one entry where the lock differs by platform."""

    name: str
    versions: frozenset[str]
    hashes: int


def canonical(name: str) -> str:
    """Spell a distribution's name as indexes do: lower case, runs of `-`, `_` and `.` as one `-`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str) -> dict[str, Pin]:
    """Read the pins of a lock file. A line that is neither pin, hash, option nor comment is a ValueError."""
    pins: dict[str, Pin] = {}
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _PIN.match(stripped)
        if match is None:
            raise ValueError(f"not a pinned requirement: {stripped[:80]}")
        name = canonical(match["name"])
        hashes = stripped.count("--hash=sha256:")
        before = pins.get(name, Pin(name, frozenset(), hashes))
        pins[name] = Pin(name, before.versions | {match["version"]}, min(before.hashes, hashes))
    return pins


def installed() -> dict[str, str]:
    """Name and version of every distribution in this environment, breakloop itself left out."""
    found = {canonical(dist.name): dist.version for dist in distributions()}
    found.pop(OURS, None)
    return found


def differences(pins: dict[str, Pin], found: dict[str, str]) -> list[str]:
    """Say what is installed and not locked so, one sentence each."""
    problems = [f"{pin.name}: locked without a hash" for pin in pins.values() if pin.hashes == 0]
    for name, version in sorted(found.items()):
        pin = pins.get(name)
        if pin is None:
            problems.append(f"{name} {version}: installed but not in the lock file")
        elif version not in pin.versions:
            problems.append(f"{name} {version}: installed, but {' or '.join(sorted(pin.versions))} is locked")
    return problems


def main(arguments: list[str]) -> int:
    """`extra FILE`: print the names that are installed and not locked."""
    if len(arguments) != 2 or arguments[0] != "extra":
        print("usage: lockfile.py extra FILE", file=sys.stderr)
        return 3
    pins = parse(Path(arguments[1]).read_text(encoding="utf-8"))
    print(" ".join(sorted(set(installed()) - set(pins))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
