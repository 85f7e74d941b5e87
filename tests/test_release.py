"""scripts/release.py: what it refuses, and that the tag comes last. Nothing is built here; `make release` does that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from breakloop import __version__
from scripts import release

ROOT = Path(__file__).parent.parent
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-16\n\n### Added\n\n- A thing.\n\n## [1.2.2] - 2026-01-01\n"
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that can be released as 1.2.3."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.com")
    (tmp_path / "src/breakloop").mkdir(parents=True)
    (tmp_path / "src/breakloop/_version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=True).stdout


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "x")


def run(tree: Path, *arguments: str) -> tuple[int, list[str]]:
    """Return the exit code, and the versions that were built and checked."""
    checked: list[str] = []
    return release.main(arguments, tree, lambda _root, number: checked.append(number)), checked


def test_the_tag_has_the_notes_of_its_version(tree: Path) -> None:
    """And is made once everything has been checked."""
    assert run(tree) == (0, ["1.2.3"])
    assert (
        git(tree, "tag", "--list", "-n9")
        == "v1.2.3          breakloop 1.2.3\n    \n    ### Added\n    \n    - A thing.\n"
    )


def test_a_dry_run_does_everything_but_the_tag(tree: Path) -> None:
    assert run(tree, "--dry-run") == (0, ["1.2.3"])
    assert git(tree, "tag") == ""


def test_a_failed_check_leaves_no_tag(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_root: Path, _number: str) -> None:
        raise release.ReleaseError("twine check: exit code 1\nno long_description")

    assert release.main([], tree, fail) == 1
    assert capsys.readouterr().err == "release: twine check: exit code 1\nrelease: no long_description\n"
    assert git(tree, "tag") == ""


def test_uncommitted_changes_are_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New files, too: they would be in the sdist."""
    (tree / "new.py").touch()
    assert run(tree) == (1, [])
    assert "uncommitted changes (new.py)" in capsys.readouterr().err


def test_a_version_that_has_a_tag_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(tree, "tag", "v1.2.3")
    assert run(tree, "--dry-run") == (1, [])
    assert "the tag v1.2.3 exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changelog",
    [
        CHANGELOG.replace("1.2.3", "1.2.4"),
        CHANGELOG.replace("## [1.2.3] - 2026-11-16", "## [1.2.3]"),
        CHANGELOG.replace("### Added\n\n- A thing.\n\n", ""),
    ],
    ids=["missing", "without a date", "empty"],
)
def test_a_version_without_notes_is_refused(tree: Path, changelog: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "CHANGELOG.md").write_text(changelog)
    commit(tree)
    assert run(tree) == (1, [])
    assert 'CHANGELOG.md has no section "## [1.2.3] - YYYY-MM-DD"' in capsys.readouterr().err


def test_an_unpacked_sdist_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no history to tag."""
    shutil.rmtree(tree / ".git")
    assert run(tree) == (1, [])
    assert "not a git repository" in capsys.readouterr().err


def test_every_reason_is_listed_at_once(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(tree, "tag", "v1.2.3")
    (tree / "CHANGELOG.md").write_text("# Changelog\n")
    assert run(tree) == (1, [])
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_the_version_of_this_tree_can_be_released() -> None:
    """The version that the build reads is the package's, it has notes, and changes to come have a place above them."""
    assert release.version(ROOT) == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.notes(changelog, __version__)
    assert changelog.index("\n## [Unreleased]\n") < changelog.index(f"\n## [{__version__}]")
