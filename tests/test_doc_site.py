"""The documentation site: every page is in it and can be found, and links work there as they do in the repository.
`make site` builds it; `tests/e2e/test_doc_site.py` opens it in a browser."""

from __future__ import annotations

import re
from typing import Final

import griffe
import pytest

from scripts import site_pages
from scripts.doc_site import ROOT, broken, llms_txt
from scripts.griffe_extension import SourceExtension
from tests.each import each

PAGES: Final = site_pages.collect(ROOT)
NAVIGATION: Final = site_pages.navigation(PAGES)


def test_every_page_is_in_the_navigation_once() -> None:
    """What is in the site can be reached."""
    listed = [entry.path for section in NAVIGATION for entry in section.pages()]
    assert sorted(listed) == sorted(PAGES)
    assert {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} <= set(PAGES)
    sections = [section.title for section in NAVIGATION]
    assert set(sections) >= {"Start", "Tutorial", "How-to guides", "Reference", "Explanation", "Decision records"}


def test_a_page_that_is_not_listed_is_reported() -> None:
    """The check can fail."""
    extra = site_pages.Page("how-to/extra.md", "docs/how-to/extra.md", "# Extra\n")
    with pytest.raises(ValueError, match=r"how-to/extra\.md"):
        site_pages.navigation({**PAGES, extra.path: extra})


def test_llms_txt_has_every_page_with_a_sentence_about_it() -> None:
    """A page begins with what it is about, in words that fit no other page of its kind."""
    text = llms_txt(PAGES, NAVIGATION)
    rows = dict(re.findall(r"^- \[.+?\]\((\S+)\): (.+)$", text, re.MULTILINE))
    assert len(rows) == len(PAGES)
    assert {path.removesuffix("/") for path in rows} == {
        path if page.source else path.removesuffix(".md") for path, page in PAGES.items()
    }
    assert [path for path, sentence in rows.items() if not re.fullmatch(r"\S+( \S+){2,}\.", sentence)] == []
    own = [sentence for path, sentence in rows.items() if not path.startswith("examples/")]
    assert [sentence for sentence in own if own.count(sentence) > 1] == []


@each(
    "source, link, expected",
    [
        ("docs/how-to/a.md", "../reference/b.md#c", "../reference/b.md#c"),
        ("docs/how-to/a.md", "../../examples/nginx/README.md", "../examples/nginx.md"),
        ("docs/how-to/a.md", "../../ARCHITECTURE.md#state", "../project/architecture.md#state"),
        ("docs/how-to/a.md", "../../deploy/nginx/x.conf", "../deploy/nginx/x.conf.md"),
        ("CONTRIBUTING.md", ".github/workflows/ci.yml", "../github/workflows/ci.yml.md"),
        ("docs/index.md", "images/dashboard/incident.png", "images/dashboard/incident.png"),
        ("examples/nginx/README.md", "../../docs/how-to/a.md", "../how-to/a.md"),
        ("ARCHITECTURE.md", "docs/decisions/1.md", "../decisions/1.md"),
        ("docs/index.md", "https://example.com/x.md", "https://example.com/x.md"),
        ("docs/index.md", "#heading", "#heading"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(source: str, link: str, expected: str) -> None:
    """Files outside docs/ are pages of the site; code is left alone."""
    assert site_pages.with_site_links(f"See [it]({link}).", source) == f"See [it]({expected})."
    assert site_pages.with_site_links(f"```\n[it]({link})\n```", source) == f"```\n[it]({link})\n```"


@each(
    "github, python_markdown",
    [
        ("Text:\n- one\n  more\n- two", "Text:\n\n-   one\n    more\n-   two"),
        ("1. one\n   - inner\n     more\n2. two", "1.  one\n    -   inner\n        more\n2.  two"),
        ("1. one:\n\n   ```sh\n   a\n     b\n   ```\n\n   Then.\n2. two", None),
        ("```yaml\nlist:\n  - one\n```\n\n- two", "```yaml\nlist:\n  - one\n```\n\n-   two"),
        ("- one\n\nText\n  wide", "-   one\n\nText\n  wide"),
    ],
)
def test_lists_are_indented_as_the_generator_needs_them(github: str, python_markdown: str | None) -> None:
    """GitHub indents the text of an item by the width of its marker, Python-Markdown by four."""
    nested = "1.  one:\n\n    ```sh\n    a\n      b\n    ```\n\n    Then.\n\n2.  two"
    assert site_pages.with_wide_lists(github) == (python_markdown or nested)


def test_a_diagram_becomes_boxes_and_only_a_chain_can() -> None:
    """The site loads no Mermaid; a diagram that this cannot draw fails the build."""
    chain = '```mermaid\nflowchart TD\n    a["one<br/>first"]\n    b["two"]\n    a --> b\n```\n'
    boxes = '<div class="layers">\n<div>one<small>first</small></div>\n<div>two</div>\n</div>\n'
    assert site_pages.with_layers(chain) == boxes
    with pytest.raises(ValueError, match="not one chain"):
        site_pages.with_layers(chain.replace("a --> b", "b --> a"))


@each(
    "html, problem",
    [
        ('<a href="b/#there">', None),
        ('<a href="https://example.com/">', None),
        ('<img src="i.png">', None),
        ('<a href="c/">', "index.html: c/ leads nowhere"),
        ('<a href="b/#gone">', "index.html: b/#gone leads nowhere"),
        ('<script src="https://cdn.example/x.js">', "index.html: loads https://cdn.example/x.js"),
        ('<link rel="preconnect" href="//fonts.example">', "index.html: loads //fonts.example"),
        ("<style>@font-face{src:url(https://f.example/a.woff)}", "index.html: loads https://f.example/a.woff"),
    ],
)
def test_what_the_build_refuses(html: str, problem: str | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link that leads nowhere, and whatever a browser would load from elsewhere."""
    site = tmp_path_factory.mktemp("site")
    (site / "index.html").write_text(html, encoding="utf-8")
    (site / "b").mkdir()
    (site / "b/index.html").write_text('<h2 id="there">', encoding="utf-8")
    assert broken(site) == ([problem] if problem else [])


def test_the_overview_of_the_python_api_has_every_public_module() -> None:
    """A module with an `__all__` that users may import has a row, and a page made of its docstrings."""
    modules = list(site_pages.public_modules(ROOT))
    overview = (ROOT / "docs" / site_pages.API_INDEX).read_text(encoding="utf-8")
    assert re.findall(r"^\| `(breakloop[\w.]*)` \|", overview, re.MULTILINE) == modules
    assert [module for module in modules if f"](python/{module}.md)" not in PAGES[site_pages.API_INDEX].text] == []
    assert {f"reference/python/{module}.md" for module in modules} <= set(PAGES)


@pytest.mark.slow
def test_every_public_name_has_a_docstring(caplog: pytest.LogCaptureFixture) -> None:
    """The reference leaves out what has none. Methods of a class may have none if their name says everything, or if they
    implement what a framework documents; those of `Guard` and `Run` all have one, also those that `sync_and_async` makes."""
    loader = griffe.GriffeLoader(extensions=griffe.Extensions(SourceExtension()), search_paths=[ROOT / "src"])
    package = loader.load("breakloop")
    loader.resolve_aliases(implicit=False, external=False)
    shown: dict[str, griffe.Object | griffe.Alias] = {}
    for name, path in site_pages.public_modules(ROOT).items():
        module = package if name == "breakloop" else package[name.removeprefix("breakloop.")]
        names = [one for one in site_pages.public_names(path) if not one.startswith("_")]
        shown |= {f"{name}.{one}": module[one] for one in names}
    for name in ("Guard", "Run"):
        methods = {one: member for one, member in package[name].members.items() if member.is_function}
        shown |= {f"{name}.{one}": member for one, member in methods.items() if not one.startswith("_")}
    assert {"breakloop.Guard", "Guard.check", "Guard.acheck", "Run.astep", "breakloop.testing.PATHS"} <= set(shown)
    assert [name for name, one in shown.items() if not one.has_docstring] == []
    for one in shown.values():
        assert one.docstring is not None
        one.docstring.parse("google")
    assert caplog.messages == []  # such as a parameter that the function does not have
    assert "io" not in [one.name for one in package["Guard.acheck"].parameters]


def test_pages_are_found_by_their_path() -> None:
    """A page of the site is the file that a reader of the repository sees, example files included."""
    assert PAGES["examples/nginx.md"].source == "examples/nginx/README.md"
    assert "### nginx.conf" in PAGES["examples/nginx.md"].text
    assert "proxy_pass" in PAGES["deploy/nginx/two-instances.conf.md"].text
