"""What the files for deployment name exists: variables, versions, files."""

from __future__ import annotations

import re
from pathlib import Path

from breakloop import __version__
from breakloop.config.loader import environment_names
from tests.deploy.tools import DEPLOY, ROOT
from tests.each import each

SHIPPED = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
VARIABLE = re.compile(r"\b(?:BREAKLOOP|LOOP_GUARD)_[A-Z0-9_]+\b")
NOT_SETTINGS = {"BREAKLOOP_CONFIG", "BREAKLOOP_TOKEN", "BREAKLOOP_URL"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@each("path", {relative(path): path for path in SHIPPED})
def test_every_variable_is_a_setting(path: Path) -> None:
    """A misspelt variable would only be warned of, in a log that nobody reads at that moment (T-1)."""
    known = {name for names in environment_names().values() for name in names} | NOT_SETTINGS
    assert set(VARIABLE.findall(path.read_text(encoding="utf-8"))) - known == set()


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
