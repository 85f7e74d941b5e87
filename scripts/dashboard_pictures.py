"""Takes the pictures of the dashboard for the documentation: `python -m scripts.dashboard_pictures`, with Chromium.

The world they show is that of the tests, at one fixed moment, so that a picture changes only when a page does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.admin_client import OWN
from tests.admin_served import served
from tests.admin_world import full
from tests.browser import NARROW, WIDE, Visit, chromium, visit

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "dashboard"
PAGES = {
    "overview": "/",
    "incidents": "/incidents",
    "incident": "/incidents/inc-7c20",
    "agents": "/agents",
    "agent": "/agent?project=default&name=code-fixer",
    "tree": "/tree?project=default&caller=key:4f2a&root=nightly-refactor",
    "policies": "/policies",
    "limits": "/limits",
    "events": "/events?name=loop.detected",
    "alerts": "/alerts",
    "audit": "/audit",
    "settings": "/settings",
}


def take(seen: Visit, names: list[str], suffix: str = "") -> None:
    """Take pictures of these pages."""
    seen.sign_in(OWN)
    for name in names:
        seen.open(PAGES[name])
        if seen.page.locator("#plot").count():
            seen.page.wait_for_selector("#plot canvas")
        seen.page.wait_for_selector("#live[data-state=on]")
        seen.page.screenshot(path=TARGET / f"{name}{suffix}.png", full_page=True)


def main() -> int:
    """Take them all."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with served(full()) as stage, chromium() as browser:
        with visit(browser, stage.url, size=WIDE) as seen:
            seen.open("/login")
            seen.page.screenshot(path=TARGET / "login.png")
            take(seen, list(PAGES))
        with visit(browser, stage.url, size=WIDE, scheme="dark") as seen:
            take(seen, ["overview", "incident"], "-dark")
        with visit(browser, stage.url, size=NARROW) as seen:
            take(seen, ["incident"], "-narrow")
    print(f"{len(list(TARGET.glob('*.png')))} pictures in {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
