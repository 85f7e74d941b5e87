"""What the files and pages for deployment name exists: variables, commands, flags, files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from breakloop import __version__
from breakloop.config.loader import environment_names
from tests.deploy.command_lines import wrong_with
from tests.deploy.tools import DEPLOY, ROOT
from tests.each import each

PAGES = [
    *(ROOT / "docs" / "how-to").glob("*.md"),
    ROOT / "docs" / "explanation" / "capacity.md",
    ROOT / "README.md",
]
SHIPPED = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
VARIABLE = re.compile(r"\b(?:BREAKLOOP|LOOP_GUARD)_[A-Z0-9_]+\b")
NOT_SETTINGS = {"BREAKLOOP_CONFIG", "BREAKLOOP_TOKEN", "BREAKLOOP_URL"}
COMMAND = re.compile(r"^(?:[$#] )(?:[A-Z_]+=\S+ )*(?:docker run .* breakloop |\S*/)?breakloop (.+)$", re.MULTILINE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@each("path", {relative(path): path for path in [*SHIPPED, *PAGES]})
def test_every_variable_is_a_setting(path: Path) -> None:
    """A misspelt variable would only be warned of, in a log that nobody reads at that moment (T-1)."""
    known = {name for names in environment_names().values() for name in names} | NOT_SETTINGS
    assert set(VARIABLE.findall(path.read_text(encoding="utf-8"))) - known == set()


def commands(page: Path) -> list[list[str]]:
    """Command lines after a prompt in a page's blocks, without what the shell does with them."""
    blocks = re.findall(r"```(?:console|sh)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    found = [line for block in blocks for line in COMMAND.findall(block.replace("\\\n", " "))]
    return [shlex.split(re.split(r" +(?:#|[|>&]|\d>|\\$)", line)[0].rstrip(")")) for line in found]


def test_every_command_line_of_the_pages_is_understood() -> None:
    """Every flag that a page tells people to type is there (X-3)."""
    lines = [(relative(page), words) for page in PAGES for words in commands(page)]
    assert len(lines) > 20
    assert [(page, words, wrong_with(words)) for page, words in lines if wrong_with(words)] == []


def test_what_is_wrong_is_seen() -> None:
    """The check can fail."""
    assert wrong_with(["serve", "--state", "redis://a", "--workers", "2"]) == ""
    assert "--worker-count" in wrong_with(["serve", "--worker-count", "2"])
    assert wrong_with(["start"]) == "there is no command start"
    assert "--loud" in wrong_with(["bundle", "push", "policy.yaml", "--loud"])


def test_every_file_is_named_in_the_overview() -> None:
    """deploy/README.md says what each is for."""
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    folders = {path.relative_to(DEPLOY).parts[0] for path in SHIPPED if path.parent != DEPLOY}
    assert folders == {"docker", "grafana", "helm", "kubernetes", "nginx", "systemd"}
    assert [name for name in sorted(folders) if f"]({name}/" not in page] == []


def test_versions_are_this_one() -> None:
    """The chart and the manifests ask for the image of the version they are shipped with."""
    chart = (DEPLOY / "helm" / "breakloop" / "Chart.yaml").read_text(encoding="utf-8")
    assert f'appVersion: "{__version__}"' in chart
    assert f'newTag: "{__version__}"' in (DEPLOY / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8")
