"""A real browser for tests: Chromium, headless, kept on this machine. A `Visit` opens pages and collects what must not
be: errors on the console, requests to other hosts, problems that axe-core finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Response, ViewportSize, sync_playwright

from tests.programs import program

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WIDE = ViewportSize(width=1280, height=900)
NARROW = ViewportSize(width=360, height=740)
SERIOUS = ("serious", "critical")
_QUIET = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
)
Scheme = Literal["dark", "light", "no-preference", "null"]


@dataclass
class Visit:
    """One person's browser window."""

    page: Page
    url: str  # of the server
    errors: list[str] = field(default_factory=list)
    external: list[str] = field(default_factory=list)

    def open(self, path: str) -> Response | None:
        """Go to a page and wait until it stands. To wait for more use selectors: scripts as text are not let in."""
        return self.page.goto(self.url + path, wait_until="load")

    def sign_in(self, token: str) -> None:
        """Use the form."""
        self.open("/login")
        self.page.fill("#token", token)
        self.page.click("button:has-text('Sign in')")
        self.page.wait_for_selector(".side")

    def axe(self, *, impacts: tuple[str, ...] = SERIOUS) -> list[str]:
        """Return what axe-core finds on this page, as `impact rule: target`."""
        # Asked by the debugger, past the page's own rules for scripts.
        self.page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
        found: dict[str, Any] = json.loads(
            self.page.evaluate("async () => JSON.stringify(await axe.run(document, {resultTypes: ['violations']}))")
        )
        return [
            f"{one['impact']} {one['id']}: {node['target']} {node['html'][:160]}"
            for one in found["violations"]
            if one["impact"] in impacts
            for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wide

    def _heard(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.errors.append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        if urlsplit(url).scheme not in {"data", "blob"} and not url.startswith(self.url):
            self.external.append(url)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; absent, the test is skipped, or fails in CI."""
    path = program("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*_QUIET], chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(
    browser: Browser, url: str, *, size: ViewportSize = WIDE, scheme: Scheme = "light", scripts: bool = True
) -> Iterator[Visit]:
    """A window of its own, without cookies of others."""
    context = browser.new_context(
        viewport=size, color_scheme=scheme, java_script_enabled=scripts, reduced_motion="reduce", timezone_id="UTC"
    )
    page = context.new_page()
    page.set_default_timeout(15_000)
    made = Visit(page, url)
    page.on("console", lambda message: made._heard(message.type, message.text))
    page.on("pageerror", lambda error: made._heard("error", str(error)))
    page.on("request", lambda request: made._asked(request.url))
    try:
        yield made
    finally:
        context.close()
