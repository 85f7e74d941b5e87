"""Trees of agents: the list, and one as a picture (G-6)."""

from __future__ import annotations

from breakloop.admin.dashboard import views
from breakloop.errors import StateError
from tests.admin_client import browser
from tests.admin_records import NOW
from tests.admin_world import TREES, empty, full

PAGE = "/tree?project=default&caller=key:4f2a&root=nightly-refactor"


def test_the_list() -> None:
    text = browser(full())[0].get("/trees").text
    for said in ("nightly-refactor", "$19.40", "4.81M", "/tree?project=default&amp;caller=key%3A4f2a&amp;root="):
        assert said in text, said
    assert "No trees yet" in browser(empty())[0].get("/trees").text


def test_who_started_whom_when_and_how_much() -> None:
    """Each below the one that started it, with its share and its bar; what is left of the budget; parts are live."""
    made, _ = browser(full())
    text = made.get(PAGE).text
    sessions = ["nightly-refactor</code>", "plan-02", "code-03", "test-04", "test-05"]
    assert sorted(sessions, key=text.index) == sessions
    for said in (
        "Stop 5",
        "Stop 3",
        "Finish",
        "$0.60",
        "of $20.00",
        "9 denied",
        "37 %",
        "3 at work, 3 deep",
        "branch d3",
    ):
        assert said in text, said
    assert "Stop 3" in made.get(PAGE.replace("/tree?", "/parts/tree?")).text
    assert made.get("/tree?project=default&caller=key:4f2a&root=another").status_code == 404


def test_an_incident_leads_to_its_tree_and_back() -> None:
    """With what the tree has cost, as long as the tree is known (G-6)."""
    world = full()
    made, _ = browser(world)
    text = made.get("/incidents/inc-7c20").text
    assert (
        '<a href="/tree?project=default&amp;caller=key%3A4f2a&amp;root=nightly-refactor">nightly-refactor</a>' in text
    )
    assert "5 agents, $19.40" in text
    assert '<a href="/incidents/inc-7c20">cycle of code-fixer</a>' in made.get(PAGE).text
    assert "Tree of agents" not in made.get("/incidents/inc-7c1e").text


def test_without_the_store_the_rest_is_shown() -> None:
    world = full()

    async def away() -> list[object]:
        raise StateError("no connection")

    world.services.tree_budgets = away  # type: ignore[assignment]
    text = browser(world)[0].get(PAGE).text
    assert "code-03" in text
    assert "of $20.00" not in text


def test_the_rows_of_the_picture() -> None:
    """Bars within the time of the tree; the share of tokens where nothing has a price."""
    tree = full().services.trees.find("default", TREES[0].caller, TREES[0].root)
    assert tree is not None
    rows = views.tree_rows(tree, {"key:4f2a|test-04": False, "key:4f2a|test-05": True}, NOW)
    assert [one.held for one in rows] == ["", "", "", "stopped", "finishing"]
    assert [one.started for one in rows] == [4, 0, 2, 0, 0]
    assert (rows[0].left, round(rows[0].width)) == (0.0, 100)
    assert all(0 <= one.left <= 99 and 1 <= one.width <= 100 for one in rows)
    assert round(sum(one.share for one in rows), 9) == 1
