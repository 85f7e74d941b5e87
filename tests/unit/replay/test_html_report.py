"""The HTML report: read as a browser reads it."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from breakloop.replay.across import AcrossFinding
from breakloop.replay.report import PICTURES_MAX, Heading, page
from breakloop.replay.sessions import RecordedSession, Spent
from tests.unit.replay.test_timeline import line

HEADING = Heading("Loops in transcripts", 37, 412, "the built-in protection")
EVIL = "<script>alert(1)</script>\"'&\x1b[2J\u202e"
VOID = {"meta", "rect", "path", "br"}


class Page(HTMLParser):
    """Tags with their attributes, text, and whether all that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def read(text: str) -> Page:
    found = Page(text)
    assert (found.open, found.wrong) == ([], [])
    return found


def test_what_sessions_show_together() -> None:
    """Is on the page whether or not a session loops, with the sessions that would not have been started, escaped
    (X-6)."""
    spent = Spent(1_000, 200, money=0.42)
    tree = AcrossFinding("tree", f"61 agents of one tree {EVIL}", "s-25", "s-61", 0.0, [spent, spent])
    rerun = AcrossFinding("rerun", "the same run was started 8 times", "s-8")
    found = read(page(HEADING, [], [tree, rerun]))
    assert [attributes for tag, attributes in found.tags if tag == "h2" and attributes.get("id") == "across"]
    for said in (
        "61 agents of one tree",
        "s-61",
        "2,400",
        "$0.84",
        "8 times",
        "noticed only, at s-8",
        "No session by it",
    ):
        assert said in found.text
    assert "script" not in [tag for tag, _ in found.tags]
    assert "show together" not in read(page(HEADING, [])).text


def test_what_stands_on_it() -> None:
    """Figures, a table, and for each session its evidence and picture (X-6)."""
    found = read(page(HEADING, [line("..nnbbb", kind="cycle"), line(".n")]))
    for said in ("37", "sessions with 412 turns", "tokens after the point", "cycle", "7 times", "turn 5", "make serve"):
        assert said in found.text
    tags = [tag for tag, _ in found.tags]
    assert (tags.count("table"), tags.count("article")) == (1, 2)
    assert sum(1 for tag, attrs in found.tags if tag == "svg" and attrs.get("role") == "img") == 2


def test_links_and_names_fit() -> None:
    """Every link has its target, every label its element, and no id comes twice (X-6)."""
    found = read(page(HEADING, [line("..nnbbb"), line("bbb")]))
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for tag, attrs in found.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    labels = {one for _, attrs in found.tags for one in (attrs.get("aria-labelledby") or "").split()}
    assert labels
    assert labels <= set(ids)


def test_it_needs_nothing_from_elsewhere() -> None:
    """No scripts, no addresses to load from; a browser is told to hold it to that (X-6)."""
    text = page(HEADING, [line("bbb")])
    found = read(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in found.tags}
    loaded = [value for _, attrs in found.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    assert all(value.startswith("#") for value in loaded)
    assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
    policy = next(attrs["content"] for _, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert ("html", {"lang": "en"}) in found.tags


def test_whatever_comes_from_a_recording_is_escaped() -> None:
    """Names of sessions, agents, models, files and tools are strangers' texts (X-6, Y-5)."""
    base = line("nbb", [EVIL, EVIL, EVIL], kind="repeat")
    loops = [replace(loop, evidence=f"`{EVIL}` again", excerpt=EVIL, kind=EVIL) for loop in base.loops]
    cells = [cell._replace(tool=EVIL, evidence=EVIL, excerpt=EVIL, kind=EVIL) for cell in base.cells]
    evil = replace(base, session=RecordedSession(EVIL, agent=EVIL), model=EVIL, file=EVIL, loops=loops, cells=cells)
    text = page(Heading(EVIL, 1, 1, EVIL, [EVIL]), [evil])
    found = read(text)
    assert "script" not in {tag for tag, _ in found.tags}
    assert "<script" not in text
    assert found.text.count("alert(1)") >= 8


def test_the_costliest_first_and_notices_last() -> None:
    """The costliest first and notices last (X-6)."""
    lines = [line(".n"), line("bb"), line("bbbbbb")]
    named = [
        replace(one, session=RecordedSession(name))
        for one, name in zip(lines, ("notice", "cheap", "dear"), strict=True)
    ]
    text = read(page(HEADING, named)).text
    assert text.index("dear") < text.index("cheap") < text.index("notice")


def test_no_more_pictures_than_a_browser_takes() -> None:
    """The rest is in the table, and it is said (X-6)."""
    found = read(page(HEADING, [line("bb")] * (PICTURES_MAX + 3)))
    assert [tag for tag, _ in found.tags].count("article") == PICTURES_MAX
    assert "The 3 that cost least are not drawn" in found.text
    assert [tag for tag, _ in found.tags].count("tr") == PICTURES_MAX + 4


def test_nothing_found_is_said_too() -> None:
    """Nothing found is said too (X-6)."""
    found = read(page(HEADING, []))
    assert "Nothing in these sessions repeats itself" in found.text
    assert "table" not in {tag for tag, _ in found.tags}


def test_what_was_passed_over() -> None:
    """File, line and reason (X-6)."""
    assert (
        "a.jsonl: line 3: is not JSON" in read(page(replace(HEADING, notes=["a.jsonl: line 3: is not JSON"]), [])).text
    )


def test_a_loop_that_would_have_been_landed() -> None:
    """In the table, in words, and with a sign of its own, which other sessions do not explain (X-6, LD-10)."""
    made = page(Heading("T", 1, 8, "p"), [line("..nnllbb", ["a", *["x"] * 7])])
    assert "would have been landed at turn 5." in made
    assert "first land: turn 5" in made
    assert "330 after the landing" in made
    assert "</svg>first land</li>" in made
    assert "first land<" not in page(Heading("T", 1, 8, "p"), [line("..nnbb", ["a", *["x"] * 5])])
