"""How a mail looks."""

from __future__ import annotations

from html.parser import HTMLParser

from breakloop.alerts.channels.email import html
from breakloop.alerts.messages import message_of
from tests.alert_world import loop, notice_body, paused, released

EVIL = '<script>alert(1)</script>"><img src=x onerror=y>'


class Read(HTMLParser):
    """Gathers tags and text, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.links: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_it_is_whole_and_tells_everything() -> None:
    """Well formed, with every fact, light and dark, and nothing loaded from elsewhere (G-4)."""
    told = message_of(notice_body(loop(), incident="inc-7"), "https://ops.example")
    page = Read(html(told))
    assert page.open == []
    assert told.title in page.words
    for name, value in told.facts:
        assert name in page.words
        assert value in page.words
    assert page.links == ["https://ops.example/incidents/inc-7"]
    assert not {"script", "img", "link"} & set(page.tags)
    assert "prefers-color-scheme:dark" in html(told)


def test_names_are_escaped() -> None:
    """An agent's name is text (Y-3)."""
    page = Read(html(message_of(notice_body(loop(EVIL)), 'https://ops.example/"><script>')))
    assert not {"script", "img"} & set(page.tags)
    assert page.open == []


def test_good_news_looks_good() -> None:
    assert "Recovered" in Read(html(message_of(notice_body(released(), about=loop())))).words
    assert "Recovered" not in Read(html(message_of(notice_body(loop())))).words


def test_a_link_for_each_answer() -> None:
    """In the HTML part as in the text (K-8)."""
    page = Read(html(message_of(notice_body(paused()), "https://ops.example")))
    assert page.open == []
    assert [link for link in page.links if link and "/answer/" in link] == [
        f"https://ops.example/answer/p-1.{answer}.x" for answer in ("once", "5usd", "1h", "land", "kill")
    ]
