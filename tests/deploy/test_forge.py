"""Files for a public forge (.github) and pre-commit: valid, and what they run exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import ROOT, run, tool, yaml_documents

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PRE_COMMIT = ROOT / ".pre-commit-config.yaml"


def jobs(workflow: str) -> dict[str, Any]:
    (document,) = yaml_documents((GITHUB / "workflows" / workflow).read_text(encoding="utf-8"))
    found: dict[str, Any] = document["jobs"]
    return found


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_the_schema_of_github_accepts_them(schema: str, pattern: str) -> None:
    """The schemas come with the checker."""
    files = [str(path) for path in sorted(GITHUB.glob(pattern))]
    assert files
    done = run(tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files)
    assert done.returncode == 0, done.stdout


@pytest.mark.e2e
def test_the_check_can_fail(tmp_path: Path) -> None:
    (tmp_path / "ci.yml").write_text("on: push\njobs: {test: {steps: [{run: make test}]}}\n")
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(tmp_path / "ci.yml")]
    assert "'runs-on' is a required property" in run(*command).stdout


def test_what_they_run_exists() -> None:
    """A target that is renamed in the Makefile is renamed here, too."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    files = [*WORKFLOWS, PRE_COMMIT, GITHUB / "PULL_REQUEST_TEMPLATE.md"]
    named = {name: path.name for path in files for name in re.findall(r"\bmake ([a-z-]+)", _commands(path))}
    assert {"coverage", "image", "imports", "mutants", "test-busy", "test-python"} <= set(named)
    assert {name: file for name, file in named.items() if name not in targets} == {}


def _commands(path: Path) -> str:
    """The text without comments."""
    return re.sub(r"^\s*# .*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_actions_are_those_of_github_by_major_version() -> None:
    """No action of a third party gets the repository's token."""
    used = {name for path in WORKFLOWS for name in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))}
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/(checkout|setup-python|cache)@v\d+", name)] == []


def test_ci_has_the_versions_that_the_package_claims() -> None:
    """`.ci/run` on the oldest, the tests on all others."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    claimed = [
        found[1] for one in classifiers if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one))
    ]
    ci = jobs("ci.yml")
    assert ci["test"]["steps"][-1]["run"] == ".ci/run"
    oldest = re.fullmatch(r"python:(3\.\d+)-bookworm", ci["test"]["container"])
    assert oldest
    assert [oldest[1], *ci["python"]["strategy"]["matrix"]["python"]] == claimed


def test_hooks_use_the_tools_of_the_project() -> None:
    """No repository of others is downloaded, and the versions are those of CI."""
    (config,) = yaml_documents(PRE_COMMIT.read_text(encoding="utf-8"))
    assert [one["repo"] for one in config["repos"]] == ["local"]
    entries = [hook["entry"].split()[0] for hook in config["repos"][0]["hooks"]]
    assert set(entries) == {".venv/bin/ruff", "make"}
