"""What the package index and installers read from pyproject.toml, and copies of the version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from trove_classifiers import classifiers

from breakloop import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("platform", "implementation", "needed"),
    [("linux", "CPython", True), ("darwin", "CPython", True), ("win32", "CPython", False), ("linux", "PyPy", False)],
)
def test_uvloop_is_required_only_where_it_exists(platform: str, implementation: str, needed: bool) -> None:
    """uvloop has no release for Windows and PyPy; there the library can be installed without it."""
    (uvloop,) = (one for one in map(Requirement, PROJECT["dependencies"]) if one.name == "uvloop")
    environment = {"sys_platform": platform, "platform_python_implementation": implementation}
    assert uvloop.marker is not None
    assert uvloop.marker.evaluate(environment) is needed


def test_index_accepts_the_metadata() -> None:
    """An index rejects an unknown classifier."""
    assert set(PROJECT["classifiers"]) - classifiers == set()


def test_pages_show_the_version_of_the_package() -> None:
    """`src/breakloop/_version.py` has the version; pages repeat what the command prints."""
    assert PROJECT["dynamic"] == ["version"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [
        found for page in pages for found in re.findall(r"^breakloop (\d+\.\d+\.\d+)$", page.read_text(), re.MULTILINE)
    ]
    assert set(shown) == {__version__}
