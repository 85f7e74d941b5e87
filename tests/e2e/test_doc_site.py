"""The built documentation site in a real browser: it searches, loads nothing from other hosts, and reports no errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from scripts.doc_site import HOME
from tests.browser import NARROW, WIDE, Scheme, chromium, visit
from tests.programs import missing

pytestmark = pytest.mark.e2e


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """The address of the site, as `make site` left it."""
    if not (HOME / "html/index.html").is_file():
        missing("the documentation site is not built; `make site` builds it")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(HOME / "html"))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_site_searches_and_stays_at_home(site: str) -> None:
    """From the start page to a how-to by search, in both schemes, on a wide and a narrow screen; and it can be read."""
    schemes: list[Scheme] = ["light", "dark"]
    with chromium() as browser:
        for scheme, size in zip(schemes, (WIDE, NARROW), strict=True):
            with visit(browser, site, size=size, scheme=scheme) as window:
                window.open("/reference/python/breakloop/")
                expect(window.page.locator("h2#breakloop\\.Guard")).to_be_visible()
                assert [problem for problem in window.axe() if "color-contrast" in problem] == []
                window.open("/")
                window.page.locator('.md-search__button:visible, [for="__search"]:visible').first.click()
                window.page.get_by_role("combobox", name="Search").fill("stop an agent or a client with a kill switch")
                window.page.get_by_role("option", name="Stop an agent or a client with a kill switch").first.click()
                window.page.wait_for_url("**/how-to/kill-switch/**")
                assert window.overflow() <= 0
                assert window.external == []
                assert window.errors == []
