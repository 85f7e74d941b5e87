"""The dependency audit (Y-5), run by `make audit` and CI. Four parts: what is installed is what is locked, with hashes;
licences; calls that have no place in src; and known advisories, asked of pip-audit's service. The first three need no
network. When the service cannot be asked, the audit says so and goes on: that is not a finding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from scripts import forbidden_calls, licences, lockfile

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.txt"
TIMEOUT_S = 120

Ask = Callable[[], tuple[str, str]]


@dataclass(slots=True)
class Part:
    """The outcome of one part. `unchecked` is what could not be looked at, which does not fail the audit."""

    name: str
    checked: str = ""
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def lock_part(lock: Path, found: dict[str, str]) -> Part:
    """Compare what is installed with the lock file."""
    problems = lockfile.differences(lockfile.parse(lock.read_text(encoding="utf-8")), found)
    return Part("locked versions", f"{len(found)} installed packages pinned with hashes", problems)


def licence_part() -> Part:
    """Look at the licence of everything installed."""
    part = Part("licences")
    packages = [dist for dist in distributions() if lockfile.canonical(dist.name) != lockfile.OURS]
    for dist in packages:
        wrong = licences.problem(dist.metadata)  # type: ignore[arg-type]  # an email.message.Message, typed as a protocol
        if wrong:
            part.problems.append(f"{dist.name} {dist.version}: {wrong}")
    part.checked = f"{len(packages)} packages on the allow list"
    return part


def calls_part(root: Path) -> Part:
    """Look for forbidden calls in the product."""
    problems = forbidden_calls.scan(root, forbidden_calls.ALLOWED)
    return Part("forbidden calls", f"{len(list(root.rglob('*.py')))} files of src", problems)


def ask_pip_audit() -> tuple[str, str]:
    """Ask pip-audit about the lock file; return its output and its complaints."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner", "off", "--format", "json", "--timeout", "5"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {TIMEOUT_S} s"
    return done.stdout, done.stderr


def advisory_part(ask: Ask) -> Part:
    """Read pip-audit's answer: advisories are problems, silence is not."""
    part = Part("advisories")
    output, complaints = ask()
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (complaints.strip().splitlines() or ["no output"])[-1]
        part.unchecked.append(f"advisory database not reachable: not checked ({last[:160]})")
        return part
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        part.unchecked.append("advisory database not reachable: not checked (it knows none of our packages)")
        return part
    if skipped:
        part.unchecked.append(f"the advisory database does not know {', '.join(skipped)}")
    part.checked = f"{len(packages) - len(skipped)} packages"
    for package in packages:
        for advisory in package.get("vulns", ()):
            mended = ", ".join(advisory.get("fix_versions", ())) or "no release yet"
            part.problems.append(f"{package['name']} {package['version']}: {advisory['id']} (mended in: {mended})")
    return part


def report(parts: list[Part]) -> int:
    """Print every part; return 1 if any has a problem."""
    for part in parts:
        for problem in part.problems:
            print(f"audit: {part.name}: {problem}", file=sys.stderr)
        for note in part.unchecked:
            print(f"audit: {part.name}: {note}")
        if part.checked and not part.problems:
            print(f"audit: {part.name}: ok, {part.checked}")
    print("audit: yanked releases: not checked (only the index knows; pip warns when it installs one)")
    return 1 if any(part.problems for part in parts) else 0


def main() -> int:
    """Run every part against this environment and this tree."""
    return report(
        [
            lock_part(LOCK, lockfile.installed()),
            licence_part(),
            calls_part(ROOT / "src"),
            advisory_part(ask_pip_audit),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
