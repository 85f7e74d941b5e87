"""Talking to the admin API: what is sent, and what becomes of what goes wrong."""

from __future__ import annotations

import socket

import pytest

from breakloop import __version__
from breakloop.cli.remote import AdminClient, AdminError, part
from tests.fake_admin import TOKEN, fake_admin


def failure(url: str, token: str = TOKEN) -> AdminError:
    with pytest.raises(AdminError) as raised:
        AdminClient(url, token).get("/status")
    return raised.value


def test_what_is_sent() -> None:
    """Paths below /api/v1, the token as a bearer's, bodies as JSON (X-1, T-2)."""
    with fake_admin() as admin:
        admin.answers |= {"GET /agents": {"agents": []}, "POST /agents/a%2Fb/kill": {"ok": 1}, "DELETE /x/1": {}}
        client = AdminClient(admin.url, TOKEN)
        query = {"name": ["a", "b c"], "project": "", "since": None, "most": 5}
        assert client.get("/agents", query) == {"agents": []}
        assert client.post(f"/agents/{part('a/b')}/kill", {"reason": "ü"}) == {"ok": 1}
        assert client.delete("/x/1") == {}
        assert admin.asked == [
            ("GET /agents?name=a&name=b+c&most=5", None),
            ("POST /agents/a%2Fb/kill", {"reason": "ü"}),
            ("DELETE /x/1", None),
        ]
        assert [one["authorization"] for one in admin.headers] == [f"Bearer {TOKEN}"] * 3
        assert admin.headers[0]["user-agent"] == f"breakloop/{__version__}"
        assert admin.headers[1]["content-type"] == "application/json"


def test_without_a_token_none_is_sent() -> None:
    with fake_admin() as admin:
        admin.answers["GET /status"] = {}
        AdminClient(admin.url + "/", "").get("/status")
        assert "authorization" not in admin.headers[0]


def test_who_is_there_is_asked_once_before_the_token_is_shown() -> None:
    """A token is for an admin plane, and nobody else sees it (Y-3)."""
    with fake_admin() as admin:
        admin.answers["GET /status"] = {}
        client = AdminClient(admin.url, TOKEN)
        client.get("/status")
        client.get("/status")
        assert ["authorization" in one for one in admin.met] == [False]


def test_the_traffic_port_never_sees_the_token() -> None:
    """It would forward it to a provider (Y-3)."""
    with fake_admin() as traffic:
        traffic.plane = ""
        error = failure(traffic.url)
        with pytest.raises(AdminError):
            list(AdminClient(traffic.url, TOKEN).follow("/events", {}))
        assert "is it the traffic port?" in str(error)
        assert error.code == 1
        assert traffic.asked == []
        assert [TOKEN in str(one) for one in traffic.met] == [False, False]


def test_nobody_is_there() -> None:
    """Exit code 2, and what to do (X-3)."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        error = failure(url)
    assert error.code == 2
    assert str(error) == (
        f"{url}: cannot be reached: Connection refused "
        "(is `breakloop serve` running there, with its admin port? use --url for another address)"
    )


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (401, {"message": "the token is wrong"}, "the token is wrong (give the token with --token, in BREAKLOOP_ADMIN_TOKEN, or in the file admin-token of the data directory)"),
        (403, {"message": "your role is viewer"}, "your role is viewer (use the token of an operator)"),
        (404, {"message": "there is no such agent"}, "there is no such agent"),
        (400, {"message": "is required", "field": "reason"}, "reason: is required"),
        (400, {"message": "agent: must not be empty", "field": "agent"}, "agent: must not be empty"),
        (503, {"message": "the database is locked"}, "the database is locked"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(status: int, error: dict[str, str], said: str) -> None:
    """Exit code 1, in the API's words (X-3)."""
    with fake_admin() as admin:
        admin.answers["GET /status"] = (status, {"error": {"code": "x", **error}})
        raised = failure(admin.url)
        assert (raised.code, str(raised)) == (1, f"{admin.url}: {said}")


@pytest.mark.parametrize(
    "answer", [b"<html>", (404, b"not here"), (500, []), (404, {"detail": {"error": "not_found"}})]
)
def test_a_stranger_is_recognised(answer: object) -> None:
    """The traffic port, say (X-3)."""
    with fake_admin() as admin:
        admin.answers["GET /status"] = answer
        raised = failure(admin.url)
        assert raised.code == 1
        assert "is not the admin API of breakloop (is it the traffic port?)" in str(raised)


@pytest.mark.parametrize("url", ["127.0.0.1:8788", "ftp://x", "http://", "http://h:port", "redis://x:1"])
def test_urls_that_are_none(url: str) -> None:
    """URLs that are none: exit code 3 (X-3)."""
    raised = failure(url)
    assert raised.code == 3
    assert "write it like http://127.0.0.1:8788" in str(raised)


def test_a_token_with_a_line_break_in_it() -> None:
    raised = failure("http://127.0.0.1:1", "a\nb")
    assert raised.code == 3
    assert "a\nb" not in str(raised)


def test_a_password_in_the_url_is_not_repeated() -> None:
    """A password in the URL is not repeated (Y-1)."""
    assert AdminClient("https://user:secret@host.example/behind/", "").url == "https://host.example"


STREAM = b': hello\n\nid: 7\nevent: a.b\ndata: {"id": 7}\n\n: still here\n\nid: 8\ndata: {"id":\ndata: 8}\n\ndata: {'


def test_a_stream_is_read_message_by_message() -> None:
    """Comments are passed over, and so is what was cut off (X-1)."""
    with fake_admin() as admin:
        admin.answers["GET /events"] = [STREAM]
        found = list(AdminClient(admin.url, TOKEN).follow("/events", {"follow": "true"}, "6"))
        assert found == [("7", {"id": 7}), ("8", {"id": 8})]
        assert admin.headers[0]["last-event-id"] == "6"
        assert admin.headers[0]["accept"] == "text/event-stream"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error": {"message": "the token is wrong"}}), "the token is wrong"),
        ([b"data: nonsense\n\n"], "is not the admin API"),
    ],
)
def test_a_stream_that_is_refused_or_none(answer: object, said: str) -> None:
    with fake_admin() as admin:
        admin.answers["GET /events"] = answer
        with pytest.raises(AdminError, match=said):
            list(AdminClient(admin.url, TOKEN).follow("/events", {}))
