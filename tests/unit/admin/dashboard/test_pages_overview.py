"""The overview: the money first, then what needs a look."""

from __future__ import annotations

import re

from tests.admin_client import browser
from tests.admin_world import empty, full


def test_the_headline_is_what_was_saved() -> None:
    text = browser(full())[0].get("/").text
    assert '<p class="amount">$72.44</p>' in text
    assert "1,297 requests of looping agents were never sent" in text
    assert text.index('class="amount"') < text.index("docs-writer") < text.index("scraper-7")


def test_open_incidents_come_first() -> None:
    """Also one that is older than all that are shown."""
    world = full()
    rows = world.history.incident_rows
    world.history.incident_rows = [*rows[1:], *[rows[-1]] * 6, rows[0]]
    text = browser(world)[0].get("/parts/overview").text
    found = re.findall(r'href="/incidents/(inc-\w+)"', text)
    assert found[0] == "inc-7c21"
    assert len(found) == len(set(found)) <= 6
    assert 'data-newest="inc-7c21"' in text


def test_spans() -> None:
    """Sums and curve are of the chosen span, and ask for the same again."""
    text = browser(full())[0].get("/?span=1h").text
    assert "last hour" in text
    assert 'hx-get="/parts/overview?span=1h"' in text
    assert 'hx-get="/parts/curve?span=1h"' in text
    assert "last 24 hours" in browser(full())[0].get("/?span=%3Cb%3E").text


def test_the_curve_has_a_table() -> None:
    """Who does not see the chart reads the numbers."""
    text = browser(full())[0].get("/parts/curve").text
    assert 'data-points="[[' in text
    assert text.count('<th scope="row">') == 24


def test_held_ones_can_be_released_from_here() -> None:
    text = browser(full())[0].get("/").text
    assert "Quarantined" in text
    assert "/ask/agent.release?project=default&amp;agent=scraper-7" in text


def test_the_first_minute_teaches() -> None:
    """Nothing to show: what to type to see something."""
    text = browser(empty())[0].get("/").text
    assert "<code>breakloop demo</code>" in text
    assert "curl http://127.0.0.1:8787/v1/chat/completions" in text
    assert "nothing-drawn" in text
