"""What the package index and installers read from pyproject.toml, and copies of the version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from trove_classifiers import classifiers

from breakloop import __version__
from breakloop.cli.main import SERVER
from tests.each import each
from tests.rules import assert_no_violations

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SERVER_EXTRAS = ("alerts", "envoy", "geo", "otel", "postgres", "redis")
# The import name of a distribution, where it is not the distribution's own name.
IMPORTED = {"genai-prices": "genai_prices", "prometheus-client": "prometheus_client", "pyjwt": "jwt"}


def names(requirements: list[str]) -> set[str]:
    return {Requirement(one).name for one in requirements}


@pytest.mark.parametrize(
    ("platform", "implementation", "needed"),
    [("linux", "CPython", True), ("darwin", "CPython", True), ("win32", "CPython", False), ("linux", "PyPy", False)],
)
def test_uvloop_is_required_only_where_it_exists(platform: str, implementation: str, needed: bool) -> None:
    """uvloop has no release for Windows and PyPy; there the server can be installed without it."""
    (uvloop,) = (one for one in map(Requirement, EXTRAS["server"]) if one.name == "uvloop")
    environment = {"sys_platform": platform, "platform_python_implementation": implementation}
    assert uvloop.marker is not None
    assert uvloop.marker.evaluate(environment) is needed


def test_library_has_few_dependencies() -> None:
    """A program that imports `Guard` gets no web framework, no database and no cryptography."""
    assert names(PROJECT["dependencies"]) == {"click", "msgspec", "orjson", "pydantic", "ruamel-yaml", "xxhash"}


def test_commands_check_for_every_package_of_the_server() -> None:
    """`cli.main.SERVER` repeats the extra, because the metadata of a package does not state import names."""
    packages = names([*EXTRAS["server"], *EXTRAS["prices"]]) - {"breakloop", "uvloop"}
    assert sorted(IMPORTED.get(name, name) for name in packages) == sorted(SERVER)


@pytest.mark.parametrize("name", SERVER_EXTRAS)
def test_extra_that_only_the_server_uses_brings_the_server(name: str) -> None:
    """`pip install "breakloop[redis]"` is enough for an instance whose state is in Redis."""
    assert "breakloop[server]" in EXTRAS[name]


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


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "deploy").rglob("*.y*ml"), *(ROOT / "deploy").rglob("*.service")]
# `breakloop`, or a checkout of it, as an argument of pip; extras in group 2. Options and other packages may be in between.
INSTALLS = re.compile(
    r"""pip install (?:[^`\n;&|#]*? )?["']?((?:breakloop|\./breakloop|\.)(?:\[([^]]*)])?)(?![\w./-])["']?"""
)
EVERY_WAY = {"README.md", "docs/how-to/install.md"}  # these explain the ways to install it


def wrong_installs(name: str, text: str) -> list[str]:
    """Return what a page says about installing breakloop that a reader cannot type as it stands."""
    found = []
    for match in INSTALLS.finditer(text):
        said, what, extras = match[0].rstrip(), match[1], match[2]
        if extras and set(extras.split(",")) - EXTRAS.keys() - {"{extra}"}:
            found.append(f"{said}: there is no such extra")
        if extras and not re.search(r'"[^"]*]"$', said):
            found.append(f'{said}: write "{what}", which every shell takes as it is')
        if what == "breakloop" and name not in EVERY_WAY:
            found.append(f"{said}: is on no index yet; link to install.md")
        if name.endswith(".md") and name not in {*EVERY_WAY, "CHANGELOG.md"} and "install.md" not in text:
            found.append(f"{said}: does not link to install.md, which says how to begin")
    return found


def test_pages_say_what_to_install_in_one_form() -> None:
    """It works from a checkout today and from an index after a release: an extra is added by `breakloop[extra]`, and
    the page links to the one that says how to begin."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES)}
    found = [f"{name}: {problem}" for name, text in texts.items() for problem in wrong_installs(name, text)]
    assert_no_violations("a command that does not install breakloop", "see docs/how-to/install.md", found)


@each(
    "text",
    [
        "pip install breakloop",
        "(install.md) pip install breakloop uvicorn",
        "(install.md) pip install 'breakloop[redis]'",
        '(install.md) pip install "breakloop[rdis]"',
        "(install.md) pip install --target x breakloop",
        '$ pip install "breakloop[redis]"',
        "`pip install .`",
    ],
)
def test_other_forms_are_found(text: str) -> None:
    """The check can fail."""
    assert wrong_installs("docs/x.md", text) != []
    assert (
        wrong_installs("docs/x.md", '(install.md) pip install "breakloop[redis,otel]" openai, pip install ".[server]"')
        == []
    )
    assert (
        wrong_installs("docs/x.md", "pip install standardwebhooks; pip install breakloop-else ./breakloop.yaml") == []
    )
