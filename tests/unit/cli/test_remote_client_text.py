"""Numbers, times and names, as commands write them."""

from __future__ import annotations

import pytest

from breakloop.cli.remote import ago, clean, dollars, moment, show_table, until, words


def test_names_cannot_move_the_cursor() -> None:
    """An agent may be called anything (Y-1, X-3)."""
    assert clean("\x1b[2Jgone\r\nü") == "\\x1b[2Jgone\\r\\nü"
    assert clean("\u202etxet") == "\\u202etxet"
    assert clean("x" * 70) == "x" * 57 + "..."
    assert clean(5) == "5"


def test_times() -> None:
    assert moment(1_800_000_000.0) == "2027-01-15 08:00:00Z"
    assert moment(None) == ""
    assert until(None) == "until it is released"
    assert until(1_800_000_000.0) == "until 2027-01-15 08:00:00Z"
    assert ago(None, 5.0) == ago(0.0, 5.0) == "never"
    assert ago(100.0, 165.0) == "1 min 5 s ago"


@pytest.mark.parametrize(
    ("microusd", "text"),
    [(0, "$0.00"), (1, "$0.0000"), (9_999, "$0.0100"), (10_000, "$0.01"), (1_234_567_890, "$1,234.57")],
)
def test_amounts(microusd: int, text: str) -> None:
    assert dollars(microusd) == text


def test_what_an_event_carries() -> None:
    """The weightiest first; what stands elsewhere, is empty or long is left out (G-2)."""
    data = {
        "agent": "a",
        "model": "gpt-x",
        "steps": [[1]],
        "fingerprint": "",
        "expires_at": None,
        "kind": "exact",
        "shadow": False,
    }
    assert words(data) == "kind=exact model=gpt-x shadow=False"
    more = {
        "expires_at": 1_800_000_000.0,
        "key": "9b0c44d1e2a7f3509b0c44d1e2a7f350",
        "digest": "sha256:" + "ab" * 32,
        "rate": 12.3456789,
        "hit_count": 1200,
    }
    assert words(more) == (
        "hit_count=1,200 expires_at=2027-01-15T08:00:00Z key=9b0c44d1e2a7... digest=sha256:ababa... rate=12.35"
    )


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name", "count"), [["a", "1"], ["long name", "1,000"]], right=("count",))
    assert capsys.readouterr().out.splitlines() == [
        "name        count",
        "─────────────────",
        "a               1",
        "long name   1,000",
    ]
