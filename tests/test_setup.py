"""The stages of the virtual environment, as the Makefile and scripts/setup.sh make it. Nothing is installed here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts import lockfile

ROOT = Path(__file__).parent.parent


def planned(target: str) -> str:
    """Return the commands that `make TARGET` would run in a fresh clone."""
    command = ["make", "--dry-run", "--always-make", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("target", "locks"),
    [("serve", ["serve"]), ("demo", ["serve"]), ("setup", ["serve"]), ("setup-dev", ["dev"]), ("lint", ["dev"])],
)
def test_target_installs_only_what_it_needs(target: str, locks: list[str]) -> None:
    """A user does not wait for the development packages."""
    assert re.findall(r"requirements/(\w+)\.txt", planned(target)) == locks


def test_coverage_is_measured_on_request_only() -> None:
    """`make test` runs the suite without coverage, which doubles its time; `make coverage` has the floor."""
    assert "--cov" not in planned("suite")
    assert "--cov " in planned("coverage")


@pytest.mark.parametrize("name", ["serve", "runtime"])
def test_stage_is_part_of_the_dev_lock(name: str) -> None:
    """What is tested is what is shipped (Y-5), and adding the development packages replaces nothing."""
    part, dev = (lockfile.parse((ROOT / "requirements" / f"{one}.txt").read_text()) for one in (name, "dev"))
    assert {name: pin.versions for name, pin in part.items()} == {name: dev[name].versions for name in part}
    assert all(pin.hashes for pin in part.values())
