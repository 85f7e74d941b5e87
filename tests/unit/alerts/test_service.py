"""`Alerts`: the whole of it, with real receivers and a clock that moves when told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from breakloop.alerts.channels.base import Target
from breakloop.alerts.channels.services import PagerDutyTarget, SlackTarget
from breakloop.alerts.delivery import FILE
from breakloop.alerts.service import TEST, AlertConfig, Alerts
from breakloop.clock import FakeClock, SystemClock
from breakloop.errors import AlertError
from tests.alert_world import CANARY, NOW, Receiver, Said, fixed, killed, loop, means, named, receiver, released, rule

LOOPS = rule("loops", ("loop", "kill_switch"), ("chat", "pager"), recovery=True)


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def started(folder: Path, clock: Any = None, configured: AlertConfig | None = None, **others: Any) -> Alerts:
    made = Alerts(folder, means(clock or FakeClock(NOW), **others), configured, project="default")
    made.load()
    return made


def flush(alerts: Alerts) -> None:
    asyncio.run(alerts.flush())


def test_without_webhooks_the_lists_are_empty(tmp_path: Path) -> None:
    """The admin API lists nothing (X-1)."""
    hooks = started(tmp_path)
    assert (hooks.webhooks(), hooks.deliveries(), hooks.rules()) == ([], [], [])


def test_a_webhook_from_beginning_to_end(tmp_path: Path, server: Receiver) -> None:
    """Registered, signed, delivered, listed, removed (G-4, T-2)."""
    alerts = started(tmp_path, SystemClock())
    made = alerts.add_webhook(server.url, ["loop.detected", "agent.*"], allow_private=True)
    assert set(made) == {"id", "secret"}
    alerts.take([loop(), killed()])
    flush(alerts)
    assert named(server.got) == ["loop.detected", "agent.killed"]
    for got in server.got:
        assert Webhook(made["secret"]).verify(got.body, got.headers)
    assert [one["state"] for one in alerts.deliveries()] == ["delivered"] * 2
    assert alerts.deliveries(1)[0]["webhook"] == made["id"]
    assert alerts.remove_webhook(made["id"])
    assert not alerts.remove_webhook(made["id"])
    alerts.take([loop()])
    flush(alerts)
    assert len(server.got) == 2


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/", "http://localhost/", "ftp://x.example", "http://2130706433/", "http://inside.example/"],
)
def test_a_target_inside_is_refused_at_once(tmp_path: Path, url: str) -> None:
    """When it is registered (Y-4)."""
    alerts = started(tmp_path, resolve=fixed("10.0.0.7"))
    with pytest.raises(AlertError):
        alerts.add_webhook(url, [], allow_private=False)
    assert alerts.webhooks() == []


def test_a_name_that_leads_inside_later_is_refused_too(tmp_path: Path, server: Receiver) -> None:
    """At every send (Y-4)."""
    answers = [["93.184.215.14"], ["127.0.0.1"]]
    alerts = started(tmp_path, resolve=lambda _host, _port: answers.pop(0))
    alerts.add_webhook(f"http://hooks.example.com:{server.server_address[1]}/", [], allow_private=False)
    alerts.take([loop()])
    flush(alerts)
    assert server.got == []
    (found,) = alerts.deliveries()
    assert (found["state"], found["error"]) == (
        "waiting",
        "hooks.example.com is not allowed: it is this machine (set allow_private to allow it)",
    )


def test_a_redirect_inside_is_refused(tmp_path: Path, server: Receiver) -> None:
    """A receiver that redirects to a private address (Y-4)."""
    with receiver() as inside:
        server.status, server.headers = 302, {"Location": inside.url}
        alerts = started(tmp_path)
        alerts.add_webhook(server.url, [], allow_private=True)
        alerts.take([loop()])
        flush(alerts)
        assert (len(server.got), inside.got) == (1, [])
    assert alerts.deliveries()[0]["error"] == "answered 302, a redirect, which is not followed"


def test_a_receiver_that_is_down_for_a_while(tmp_path: Path, free_port: Any) -> None:
    """Refused, then 500s, then back: each event once, in order for each agent, none lost over restarts (G-4)."""
    clock, port = FakeClock(NOW), free_port()
    alerts = started(tmp_path, clock)
    alerts.add_webhook(f"http://127.0.0.1:{port}/hook", [], allow_private=True)
    alerts.take([loop("a"), loop("b"), killed("a")])
    flush(alerts)
    clock.advance(2)
    alerts = started(tmp_path, clock)  # a restart
    flush(alerts)
    with receiver(port) as server:
        server.status = 500
        clock.advance(120)
        alerts.take([released("a"), killed("b")])
        flush(alerts)
        clock.advance(900)
        flush(alerts)
        failed = len(server.got)
        assert failed > 0
        server.status = 200
        alerts = started(tmp_path, clock)
        for _ in range(20):
            clock.advance(900)
            flush(alerts)
        got = server.got[failed:]
    agents = {name: [one.json["event"] for one in got if one.json["data"]["agent"] == name] for name in "ab"}
    assert agents == {"a": ["loop.detected", "agent.killed", "agent.released"], "b": ["loop.detected", "agent.killed"]}
    assert len({one.headers["webhook-id"] for one in server.got}) == 5
    assert {one["state"] for one in alerts.deliveries()} == {"delivered"}


def test_rules_tell_people(tmp_path: Path, server: Receiver) -> None:
    """A loop once, its end once, to chat and pager; when a rule last told is known over a restart (G-4)."""
    clock = FakeClock(NOW)
    base = server.url.removesuffix("/hook")
    targets: dict[str, Target] = {
        "chat": SlackTarget(means(clock), f"{base}/slack", allow_private=True),
        "pager": PagerDutyTarget(means(clock), "key", base, allow_private=True),
    }
    alerts = started(tmp_path, clock, AlertConfig([LOOPS], targets))
    for number in range(50):
        alerts.take([loop(at=NOW + number)])
    alerts.take([released(at=NOW + 60)])
    flush(alerts)
    assert sorted(got.path for got in server.got) == ["/slack", "/slack", "/v2/enqueue", "/v2/enqueue"]
    actions = [got.json["event_action"] for got in server.got if got.path != "/slack"]
    assert actions == ["trigger", "resolve"]
    again = started(tmp_path, clock, AlertConfig([LOOPS], targets))
    (rule,) = again.rules()
    assert (rule["name"], rule["type"], rule["targets"], rule["last_at"]) == (
        "loops",
        "loop, kill_switch",
        ["chat", "pager"],
        NOW,
    )
    assert {one["webhook"] for one in again.deliveries()} == {"chat", "pager"}


def test_tests_are_sent_at_once(tmp_path: Path, server: Receiver) -> None:
    """To a webhook, or to a target of the settings; nothing of it is kept (X-1)."""
    targets: dict[str, Target] = {"chat": SlackTarget(means(), f"{server.url}/slack", allow_private=True)}
    alerts = started(tmp_path, SystemClock(), AlertConfig([], targets))
    made = alerts.add_webhook(server.url, ["loop.detected"], allow_private=True)
    came = asyncio.run(alerts.test(made["id"]))
    assert (came["delivered"], came["status"], came["error"]) == (True, 200, "")
    assert Webhook(made["secret"]).verify(server.got[0].body, server.got[0].headers)["event"] == TEST
    assert asyncio.run(alerts.test("chat"))["delivered"]
    assert "Test: breakloop alerts arrive here" in server.got[1].json["text"]
    server.status = 404
    assert dict(asyncio.run(alerts.test(made["id"]))) | {"id": ""} == {
        "id": "",
        "delivered": False,
        "status": 404,
        "error": "answered 404",
    }
    with pytest.raises(AlertError, match="no such webhook"):
        asyncio.run(alerts.test("nobody"))
    assert alerts.deliveries() == []


def test_one_that_wants_nothing_any_more(tmp_path: Path, server: Receiver) -> None:
    """410 disables it; a new secret enables it (G-4)."""
    said = Said()
    alerts = started(tmp_path, log=said)
    made = alerts.add_webhook(server.url, [], allow_private=True)
    server.status = 410
    alerts.take([loop()])
    flush(alerts)
    alerts.take([loop()])
    flush(alerts)
    assert len(server.got) == 1
    assert alerts.webhooks()[0]["state"] == "disabled"
    assert said.lines == [("alerts.disabled", {"target": made["id"]})]
    server.status = 200
    assert alerts.rotate_webhook(made["id"])["secret"] != made["secret"]
    alerts.take([loop()])
    flush(alerts)
    assert len(server.got) == 2
    with pytest.raises(AlertError, match="no such webhook"):
        alerts.rotate_webhook("wh_none")


def test_what_was_given_up_can_be_sent_again(tmp_path: Path, server: Receiver) -> None:
    """Visible as failed; under the same id (G-4)."""
    clock = FakeClock(NOW)
    alerts = started(tmp_path, clock)
    alerts.add_webhook(server.url, [], allow_private=True)
    server.status = 500
    alerts.take([loop()])
    for _ in range(40):
        flush(alerts)
        clock.advance(3600)
    (found,) = alerts.deliveries()
    assert (found["state"], found["attempts"]) == ("failed", 12)
    assert alerts.webhooks()[0]["state"] == "failing"
    server.status = 200
    assert alerts.retry(found["id"])
    flush(alerts)
    assert alerts.deliveries()[0]["state"] == "delivered"
    assert len({got.headers["webhook-id"] for got in server.got}) == 1
    assert [one["state"] for one in alerts.deliveries()] == ["delivered"]
    assert not alerts.retry(found["id"])


def test_it_runs(tmp_path: Path, server: Receiver) -> None:
    """As a job beside the traffic; closing sends what is due, and what is left is there at the next start
    (S-6, G-4)."""

    async def main() -> None:
        alerts = started(tmp_path)
        alerts.add_webhook(server.url, [], allow_private=True)
        job = asyncio.create_task(alerts.run())
        await asyncio.to_thread(alerts.take, [loop()])
        await asyncio.to_thread(server.wait, 1)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await asyncio.to_thread(alerts.take, [killed()])
        await alerts.close()

    asyncio.run(main())
    assert named(server.got) == ["loop.detected", "agent.killed"]


def test_closing_waits_for_nobody(tmp_path: Path, server: Receiver, free_port: Any) -> None:
    """A target that is down holds up no shutdown (S-6)."""
    alerts = started(tmp_path)
    alerts.add_webhook(f"http://127.0.0.1:{free_port()}/", [], allow_private=True)
    alerts.take([loop()])
    asyncio.run(alerts.close(0.5))
    assert [one["state"] for one in started(tmp_path).deliveries()] == ["waiting"]


def test_targets_that_are_no_more(tmp_path: Path) -> None:
    """What waits for a target that the settings do not name any more is given up (G-4)."""
    targets: dict[str, Target] = {
        "chat": SlackTarget(means(), "https://h.example"),
        "pager": PagerDutyTarget(means(), "key"),
    }
    started(tmp_path, configured=AlertConfig([LOOPS], targets)).take([loop()])
    assert {(one["state"], one["error"]) for one in started(tmp_path).deliveries()} == {
        ("failed", "the target no longer exists")
    }


def test_the_tick_ends_what_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(NOW)
    targets: dict[str, Target] = {
        "chat": SlackTarget(means(), "https://h.example"),
        "pager": PagerDutyTarget(means(), "key"),
    }
    alerts = started(tmp_path, clock, AlertConfig([LOOPS], targets))
    alerts.take([loop()])
    clock.advance(601)
    alerts.tick()
    assert [one["event"] for one in alerts.deliveries()] == ["loop.cleared"] * 2 + ["loop.detected"] * 2


def test_nothing_secret_anywhere(tmp_path: Path, server: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """Canaries in the URL and in the secret: in no log, list, error or repr; the file is its owner's alone (Y-1)."""
    said = Said()
    clock = FakeClock(NOW)
    alerts = started(tmp_path, clock, log=said)
    with caplog.at_level(logging.DEBUG):
        made = alerts.add_webhook(f"{server.url}?token={CANARY}", [], allow_private=True)
        alerts.add_webhook(f"{server.url}/in/{CANARY}", [], allow_private=True)
        server.status = 500
        alerts.take([loop(steps=[CANARY])])
        for _ in range(20):
            flush(alerts)
            clock.advance(7200)
        shown = repr((alerts.webhooks(), alerts.deliveries(), alerts.rules(), said, vars(alerts)["_webhooks"].all()))
    assert "alerts.given_up" in shown
    for secret in (CANARY, made["secret"]):
        assert secret not in shown
        assert secret not in caplog.text
    assert {one["url"] for one in alerts.webhooks()} == {f"{server.url}?***", f"{server.url}/***"}
    assert all(CANARY.encode() not in got.body for got in server.got)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """Told in the log and to whoever asks; taking events raises nothing (G-4)."""
    said = Said()
    folder = tmp_path / "data"
    folder.mkdir()
    alerts = started(folder, log=said)
    folder.rename(tmp_path / "gone")
    alerts.take([loop()])
    with pytest.raises(AlertError, match="cannot be used"):
        alerts.add_webhook("https://93.184.215.14/", [], allow_private=False)
    assert said.lines[0][0] == "alerts.file"
    tmp_path.joinpath("gone").rename(folder)
    alerts.take([])
    assert [line for line, _ in said.lines][-1] == "alerts.file"


def test_the_stop_webhook_of_an_agent(tmp_path: Path, server: Receiver) -> None:
    """Called once, in the background; an address that is not public only if that is allowed; a failure is logged without
    the URL, which may contain a token (K-4, Y-3)."""
    said = Said()
    alerts = started(tmp_path, SystemClock(), log=said)
    content = {"event": "agent.killed", "agent": "scraper", "reason": "enough"}

    async def story() -> None:
        alerts.call_stop(f"{server.url}?token={CANARY}", content, allow_private=True)
        alerts.call_stop(f"{server.url}?token={CANARY}", content, allow_private=False)
        await asyncio.gather(*alerts._stops)

    asyncio.run(story())
    assert [json.loads(one.body) for one in server.got] == [content]
    [line] = said.lines
    assert (line[0], line[1]["agent"]) == ("stop_webhook.failed", "scraper")
    assert CANARY not in str(said.lines)
