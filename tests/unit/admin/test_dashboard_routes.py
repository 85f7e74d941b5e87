"""Every page, with a lot to show, with nothing, and with what somebody hostile has written everywhere (X-2)."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.routing import Route

from breakloop.admin.dashboard import dashboard_routes, page_renderer
from tests.admin_client import LOOKS, OWN, auth_of, browser, client
from tests.admin_records import HOSTILE, PROJECT
from tests.admin_world import World, empty, full, hostile

PAGES = ("/", "/agents", "/incidents", "/policies", "/limits", "/events", "/alerts", "/audit", "/settings")
PARTS = ("/parts/overview", "/parts/curve", "/parts/incidents", "/parts/events")
ONE = ("/incidents/inc-7c20", "/incidents/inc-7b90", "/incidents/inc-7b11", "/agent?project=default&name=code-fixer", "/parts/agent-curve?name=code-fixer", "/limits?prefix=b", "/ask/agent.kill?agent=a")  # fmt: skip
EVIL = ("/incidents/inc-evil", "/agent?" + urlencode({"project": HOSTILE, "name": HOSTILE}), "/limits?prefix=%3C", "/events?agent=%3Cscript%3E%22", "/agents?find=%3Cscript%3E%22", "/incidents?agent=%22%3E%3Cscript%3E")  # fmt: skip
ACTS = ("agent.kill", "agent.release", "agent.settings", "loop.snooze", "policy.promote", "breaker.reset", "tree.kill", "tree.land", "tree.release", "tree_budget.reset", "switch.set", "switch.lift", "override.set", "override.lift", "webhook.add", "webhook.remove", "webhook.rotate", "webhook.test", "delivery.again")  # fmt: skip
CSP = ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'")  # fmt: skip


class Seen(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.headings += [tag] if re.fullmatch("h[1-6]", tag) else []
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.problems.append("a script of somebody else")
        self.problems += [f"{name} of {tag}" for name in given if name.startswith("on") or name == "style"]
        self.problems += [f"{tag} leads away: {given[name]}" for name in ("href", "src", "action", "hx-get") if name in given and not (given[name] or "").startswith(("/", "#"))]  # fmt: skip


def check(text: str, *, whole: bool) -> None:
    seen = Seen(text)
    assert seen.problems == []
    assert len(seen.ids) == len(set(seen.ids))
    assert "alert('x')</script>" not in text
    if whole:
        assert seen.headings[0] == "h1"
        assert seen.headings.count("h1") == 1
        assert '<main id="main"' in text
        assert 'class="skip" href="#main"' in text


@pytest.mark.parametrize("made", [full, empty, hostile])
@pytest.mark.parametrize("path", PAGES + PARTS)
def test_every_page_renders(made: object, path: str) -> None:
    """Strict policy, nothing inline, one heading of the first order, no id twice."""
    world: World = made()  # type: ignore[operator]
    answer = browser(world)[0].get(path)
    assert answer.status_code == 200
    assert all(rule in answer.headers["content-security-policy"] for rule in CSP)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    check(answer.text, whole=path in PAGES)


@pytest.mark.parametrize("path", ONE)
def test_pages_of_one_thing_render(path: str) -> None:
    answer = browser(full())[0].get(path)
    assert answer.status_code == 200
    check(answer.text, whole=not path.startswith("/parts"))


@pytest.mark.parametrize("path", EVIL)
def test_hostile_words_stay_words(path: str) -> None:
    """Markup in names, searches and filters is shown, never obeyed."""
    answer = browser(hostile())[0].get(path)
    assert answer.status_code == 200
    check(answer.text, whole=True)
    assert "\u202e" not in re.sub(r'(value|href|hx-get)="[^"]*"', "", answer.text)


@pytest.mark.parametrize("path", PAGES + ONE[:5] + PARTS)
def test_a_viewer_sees_no_buttons(path: str) -> None:
    """Whoever may only look is not asked to act."""
    answer = browser(full(), LOOKS)[0].get(path)
    assert answer.status_code == 200
    assert "/ask/" not in answer.text
    assert "Save settings" not in answer.text


@pytest.mark.parametrize("act", ACTS)
def test_a_viewer_cannot_act(act: str) -> None:
    """Neither ask nor act, whatever the form says; nothing is done and nothing audited."""
    world = full()
    before = list(world.history.audit_rows)
    made, csrf = browser(world, LOOKS)
    answer = made.post(f"/act/{act}", data={"csrf": csrf, "project": PROJECT, "agent": "planner", "reason": "x"})
    assert answer.status_code == 403
    assert "signed in as a viewer" in answer.text
    assert made.get(f"/ask/{act}").status_code == 403
    assert world.history.audit_rows == before
    assert len(world.operator.holds()) == 2


@pytest.mark.parametrize("act", ACTS)
def test_every_act_asks_once(act: str) -> None:
    """The question is a page of its own, and the part of one inside a dialog; both carry the session's secret."""
    made, csrf = browser(full())
    whole = made.get(f"/ask/{act}", params={"agent": HOSTILE, "back": "/agents"})
    part = made.get(f"/ask/{act}", params={"agent": HOSTILE, "back": "/agents"}, headers={"hx-request": "true"})
    check(whole.text, whole=True)
    assert f'action="/act/{act}"' in part.text
    assert f'name="csrf" value="{csrf}"' in part.text
    assert 'name="back" value="/agents"' in part.text
    assert "<html" not in part.text


@pytest.mark.parametrize("path", ["/act/agent.kill", "/theme", "/logout"])
def test_forged_forms_are_refused(path: str) -> None:
    """Without the session's secret nothing is done (Y-3)."""
    world = full()
    made, _ = browser(world)
    assert made.post(path, data={"csrf": "guess", "agent": "planner", "project": PROJECT}).status_code == 403
    assert len(world.operator.holds()) == 2


@pytest.mark.parametrize("path", PAGES + PARTS + ("/live", "/ask/agent.kill", "/agent?name=x"))
def test_nobody_gets_nothing(path: str) -> None:
    """Whoever has not signed in is led to the form, and learns nothing."""
    answer = client(full(), "").get(path, headers={"accept": "text/html"})
    assert answer.status_code == 401
    assert "code-fixer" not in answer.text


def test_a_token_does_as_well() -> None:
    """A script with a bearer token may read pages, too."""
    assert client(full(), OWN).get("/agents").status_code == 200


@pytest.mark.parametrize(("path", "said"), [("/incidents/none", "no such incident"), ("/agent?name=none", "No agent"), ("/ask/none", "no such action")])  # fmt: skip
def test_what_is_not_there(path: str, said: str) -> None:
    answer = browser(full())[0].get(path)
    assert answer.status_code == 404
    assert said in answer.text
    check(answer.text, whole=True)


def test_no_two_routes_are_one() -> None:
    """Each path and method is answered in one place."""
    world = full()
    routes = [one for one in dashboard_routes(page_renderer(world.services), auth_of(world)) if isinstance(one, Route)]
    found = [(one.path, method) for one in routes for method in one.methods or ()]
    assert len(found) == len(set(found))
    assert {path for path, _ in found} >= {*PAGES, *PARTS, "/login", "/live"}


def test_every_template_is_used() -> None:
    """What no page needs goes."""
    import breakloop.admin.dashboard as package

    here = Path(package.__file__).parent
    names = {path.relative_to(here / "templates").as_posix() for path in (here / "templates").rglob("*.html")}
    sources = "".join(path.read_text("utf-8") for path in here.rglob("*") if path.suffix in {".py", ".html"})
    assert [name for name in sorted(names) if f'"{name}"' not in sources] == []
