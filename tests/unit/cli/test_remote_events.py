"""`breakloop events`: what happened, and what happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.cli import remote
from breakloop.cli.main import run
from tests.fake_admin import fake_admin


def event(number: int, **data: Any) -> dict[str, Any]:
    made = {"kind": "exact", "action": "reject", "hit_count": 5, "agent": "code-fixer", "steps": [], **data}
    return {
        "id": number, "name": "loop.detected", "at": 1_800_000_000.0 + number, "project": "default", "agent": "code-fixer",
        "request_id": "r", "incident": "i", "data": made,
    }  # fmt: skip


def message(number: int) -> bytes:
    return f"id: {number}\nevent: loop.detected\ndata: {json.dumps(event(number))}\n\n".encode()


LINE = "2027-01-15 08:00:0{}Z  loop.detected       code-fixer            kind=exact action=reject hit_count=5"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before he tries again."""
    monkeypatch.setattr(remote, "_PAUSE_S", 0.0)


def test_a_page_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A page oldest first (G-2, X-3)."""
    with fake_admin() as admin:
        admin.answers["GET /events"] = {"events": [event(2, reason="\x1b[2J"), event(1)], "next": None}
        assert run(["events", *admin.args]) == 0
        assert admin.asked == [("GET /events?most=50", None)]
    assert capsys.readouterr().out.splitlines() == [
        "time                   event           agent        what",
        "─" * 103,
        "2027-01-15 08:00:01Z   loop.detected   code-fixer   kind=exact action=reject hit_count=5",
        "2027-01-15 08:00:02Z   loop.detected   code-fixer   kind=exact action=reject reason=\\x1b[2J hit_count=5",
    ]


def test_which_ones(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters are the API's (X-3)."""
    monkeypatch.setattr("breakloop.cli.remote.SystemClock.now", lambda _: 1_800_000_000.0)
    with fake_admin() as admin:
        admin.answers["GET /events"] = {"events": [], "next": None}
        more = ["--name", "loop.detected", "--name", "agent.killed", "--agent", "a b", "--incident", "i1"]
        assert run(["events", *more, "--since", "1h", "--most", "5", "--project", "blue", *admin.args]) == 0
        assert admin.asked[0][0] == (
            "GET /events?name=loop.detected&name=agent.killed&agent=a+b&incident=i1&project=blue"
            "&since=1799996400.0&most=5"
        )
        assert run(["events", *admin.args]) == 0
    assert capsys.readouterr().out == "no events that match\nno events yet\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON (X-3)."""
    with fake_admin() as admin:
        admin.answers["GET /events"] = {"events": [event(2), event(1)], "next": None}
        assert run(["events", "--json", *admin.args]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "events": [event(1), event(2)]}


def test_following_goes_on_behind_the_last_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones first, then what happens; a connection that is lost is made again, and none comes twice
    (G-2, X-3)."""
    monkeypatch.setattr(remote, "_TRIES", 1)
    with fake_admin() as admin:
        asked: list[Any] = [b": hello\n\n" + message(3), message(4) + b"id: 5\ndata: {"]

        class Both(dict[str, Any]):
            """A page to who asks for one, else a stream."""

            def get(self, key: str, default: Any = None) -> Any:
                paged = admin.headers[-1]["accept"] == "application/json"
                return {"events": [event(2)], "next": None} if paged else asked

        admin.answers = Both()
        assert run(["events", "--follow", "--agent", "code-fixer", *admin.args]) == 2
        assert admin.asked[0][0] == "GET /events?agent=code-fixer&most=10"
        assert {path for path, _ in admin.asked[1:]} == {"GET /events?agent=code-fixer&follow=true"}
        assert [one.get("last-event-id") for one in admin.headers[1:]] == ["2", "3", "4"]
    said = capsys.readouterr()
    assert said.out.splitlines() == [LINE.format(number) for number in (2, 3, 4)]
    assert said.err == f"{admin.url}: closed the stream\n"


def test_following_as_json_is_one_line_an_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For other programs (X-3)."""
    monkeypatch.setattr(remote, "_TRIES", 0)
    with fake_admin() as admin:
        admin.answers["GET /events"] = [message(1) + message(2)]
        assert run(["events", "-f", "--most", "0", "--json", *admin.args]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines[:2]] == [event(1), event(2)]


def test_a_refusal_is_not_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        admin.answers["GET /events"] = (401, {"error": {"message": "the token is wrong"}})
        assert run(["events", "-f", "--most", "0", *admin.args]) == 1
        assert len(admin.asked) == 1
    assert "the token is wrong" in capsys.readouterr().err


def test_control_c_ends_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how following ends, and no problem (X-3)."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("breakloop.cli.remote.AdminClient.follow", stopped)
    with fake_admin() as admin:
        assert run(["events", "-f", "--most", "0", *admin.args]) == 0
    assert capsys.readouterr().err == ""
