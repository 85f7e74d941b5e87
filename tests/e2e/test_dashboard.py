"""The dashboard in a real browser: accessible, quiet, within its own walls, live, and usable without a mouse, without a
script, and on a telephone (X-2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from tests.admin_client import LOOKS, OWN
from tests.admin_records import HOSTILE, NOW, PROJECT
from tests.admin_served import Served, served
from tests.admin_world import empty, full, hostile
from tests.browser import NARROW, WIDE, Scheme, Visit, chromium, visit

pytestmark = pytest.mark.e2e

PAGES = (
    "/",
    "/?span=1h",
    "/agents",
    "/agent?project=default&name=code-fixer",
    "/incidents",
    "/incidents/inc-7c20",
    "/incidents/inc-7b90",
    "/policies",
    "/limits?prefix=b",
    "/events",
    "/alerts",
    "/audit",
    "/settings",
    "/ask/agent.kill?project=default&agent=planner",
    "/incidents/none",
)
EVIL = ("/", "/agents", "/agent?" + urlencode({"project": HOSTILE, "name": HOSTILE}), "/incidents", "/incidents/inc-evil", "/policies", "/limits?prefix=%3C", "/events", "/alerts", "/audit")  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def stage() -> Iterator[Served]:
    """A world that is looked at; tests that change something have their own."""
    with served(full()) as running:
        yield running


def clean(seen: Visit) -> None:
    assert seen.errors == []
    assert seen.external == []


@pytest.mark.parametrize(
    ("size", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (NARROW, "light")], ids=["light", "dark", "narrow"]
)
def test_every_page_is_accessible_and_quiet(
    browser: Browser, stage: Served, size: ViewportSize, scheme: Scheme
) -> None:
    """No serious problem by axe-core, nothing on the console, nothing from elsewhere, nothing wider than the window."""
    with visit(browser, stage.url, size=size, scheme=scheme) as seen:
        seen.open("/login")
        assert seen.axe() == []
        seen.sign_in(OWN)
        for path in PAGES:
            seen.open(path)
            assert seen.axe() == [], path
            assert seen.overflow() <= 0, path
        seen.errors = [text for text in seen.errors if "404" not in text]  # the page that is not there
        clean(seen)


@pytest.mark.parametrize("made", [empty, hostile], ids=["empty", "hostile"])
def test_nothing_and_the_worst(browser: Browser, made: object) -> None:
    """The first minute, and markup everywhere: no script of theirs runs, no page breaks out of a telephone."""
    paths = (
        EVIL if made is hostile else [path for path in PAGES[:13] if not path.startswith(("/agent?", "/incidents/"))]
    )
    with served(made()) as stage, visit(browser, stage.url, size=NARROW) as seen:  # type: ignore[operator]
        dialogs: list[str] = []
        seen.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        seen.sign_in(OWN)
        for path in paths:
            seen.open(path)
            assert seen.axe() == [], path
            assert seen.overflow() <= 0, path
        assert dialogs == []
        clean(seen)


def test_an_incident_appears_by_itself(browser: Browser) -> None:
    """No reload: the stream tells, the page asks again, and a screen reader is told."""
    with served(full()) as stage, visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        expect(seen.page.locator("#live-said")).to_have_text("live")
        seen.page.evaluate("window.stayed = true")
        new = replace(stage.world.history.incident_rows[0], id="inc-new", agent="fresh-agent", last_at=NOW)
        stage.world.history.incident_rows.insert(0, new)
        stage.tell({"event": {"name": "loop.detected"}})
        expect(seen.page.locator(".incidents .row").first).to_contain_text("fresh-agent")
        expect(seen.page.locator("#announce")).to_contain_text("fresh-agent")
        assert seen.page.evaluate("window.stayed") is True
        clean(seen)


def test_the_curve_and_events_follow(browser: Browser) -> None:
    """An open table stays open, and what is new is marked."""
    with served(full()) as stage, visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        expect(seen.page.locator("#plot canvas")).to_be_visible()
        seen.page.click("#curve-table summary")
        with seen.page.expect_response(re.compile("/parts/curve")):
            stage.tell({"sums": {"requests": 1}})
        expect(seen.page.locator("#curve-table[open] table")).to_be_visible()
        seen.open("/events")
        expect(seen.page.locator("#live-said")).to_have_text("live")
        one = stage.world.history.event_rows[0]
        stage.world.history.event_rows.insert(0, replace(one, id=one.id + 1, name="agent.released", agent="just-now"))
        stage.tell({"event": {"name": "agent.released"}})
        expect(seen.page.locator("tr.fresh")).to_contain_text("just-now")
        assert seen.page.locator("tr.fresh").count() == 1
        clean(seen)


def test_release_in_a_dialog(browser: Browser) -> None:
    """Asked once, done, told, in the audit log; by keyboard alone."""
    with served(full()) as stage, visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        seen.open("/incidents/inc-7c20")
        seen.page.get_by_role("button", name="Release").focus()
        seen.page.keyboard.press("Space")
        dialog = seen.page.locator("dialog[open]")
        expect(dialog.get_by_role("heading")).to_have_text("Release code-fixer?")
        assert seen.axe() == []
        seen.page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        assert len(stage.world.operator.holds()) == 2
        seen.page.get_by_role("button", name="Release").press("Enter")
        dialog.get_by_role("button", name="Release").press("Enter")
        expect(seen.page.locator("#notice")).to_contain_text("code-fixer is released: 1 hold ended.")
        assert seen.page.url == f"{stage.url}/incidents/inc-7c20"
        assert [one.agent for one in stage.world.operator.holds()] == ["scraper-7"]
        seen.open("/audit")
        expect(seen.page.locator("tbody tr").first).to_contain_text("agent.release")
        clean(seen)


def test_a_question_can_be_left(browser: Browser, stage: Served) -> None:
    with visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        seen.open("/agents")
        seen.page.get_by_role("button", name="Kill").first.click()
        seen.page.get_by_role("button", name="Cancel").click()
        expect(seen.page.locator("dialog[open]")).to_have_count(0)
        assert seen.page.url.endswith("/agents")
        clean(seen)


def test_without_scripts(browser: Browser) -> None:
    """Links, forms and reloads do the same."""
    with served(full()) as stage, visit(browser, stage.url, scripts=False) as seen:
        seen.sign_in(OWN)
        seen.open("/agent?project=default&name=planner")
        seen.page.get_by_role("button", name="Kill").click()
        seen.page.fill("#ask-reason", "it spins")
        seen.page.get_by_role("button", name="Kill agent").click()
        expect(seen.page.locator("#notice")).to_contain_text("planner is quarantined.")
        seen.page.get_by_role("button", name="Dark colours").click()
        expect(seen.page.locator("html")).to_have_attribute("data-theme", "dark")
        assert [one.why for one in stage.world.operator.holds() if one.agent == "planner"] == ["it spins"]


def test_keys(browser: Browser, stage: Served) -> None:
    """The first Tab leads past the navigation; g and a letter lead to pages, / to the search."""
    with visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        seen.open("/")
        seen.page.keyboard.press("Tab")
        expect(seen.page.locator(":focus")).to_have_text("Skip to content")
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator("#main:focus")).to_have_count(1)
        seen.page.keyboard.press("g")
        seen.page.keyboard.press("a")
        seen.page.wait_for_url("**/agents")
        seen.page.keyboard.press("/")
        seen.page.keyboard.type("crew")
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_url("**/agents?find=crew*")
        expect(seen.page.locator("tbody tr")).to_have_count(1)
        clean(seen)


def test_colours_are_kept(browser: Browser, stage: Served) -> None:
    """Chosen without a reload, there after one; by itself as the system is."""
    paper = "getComputedStyle(document.body).backgroundColor"
    with visit(browser, stage.url, scheme="dark") as seen:
        seen.sign_in(OWN)
        dark = seen.page.evaluate(paper)
        seen.page.get_by_role("button", name="Light colours").click()
        light = seen.page.evaluate(paper)
        assert light != dark
        seen.page.reload()
        assert seen.page.evaluate(paper) == light
        clean(seen)


def test_a_viewer_looks(browser: Browser, stage: Served) -> None:
    with visit(browser, stage.url) as seen:
        seen.sign_in(LOOKS)
        for path in ("/", "/agents", "/incidents/inc-7c20", "/policies", "/limits", "/alerts"):
            seen.open(path)
            assert seen.page.locator("main a[role=button], main button:not([disabled])").filter(has_text=re.compile("Kill|Release|Snooze|Promote|Close|Lift|Add|Remove|Switch")).count() == 0, path  # fmt: skip
        clean(seen)


def test_signed_out_elsewhere(browser: Browser, stage: Served) -> None:
    """A page whose session has ended goes to the form when it asks again."""
    with visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        expect(seen.page.locator("#live-said")).to_have_text("live")
        seen.page.context.clear_cookies()
        stage.tell({"sums": {}})
        expect(seen.page.locator("#token")).to_be_visible()


def test_project_is_kept_apart(browser: Browser, stage: Served) -> None:
    """A page of an agent is of its project."""
    with visit(browser, stage.url) as seen:
        seen.sign_in(OWN)
        assert seen.open(f"/agent?project={PROJECT}x&name=code-fixer").status == 404  # type: ignore[union-attr]
