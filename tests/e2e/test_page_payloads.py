"""The JSON that pages show has the fields, in the order and of the types, that the real server sends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from breakloop.testing import StandInLLM, ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.served import Served, eventually, serving
from tests.pages.blocks import blocks
from tests.pages.shell import same
from tests.redis_servers import free_port

pytestmark = pytest.mark.e2e

TOKEN = "token-of-the-operator-0123456789"
KEY = {"Authorization": "Bearer sk-one"}
DASHBOARD = "https://breakloop.example.com"
VARYING = {
    "saved_microusd",
    "spent_microusd",
    "caller",
    "fingerprint",
    "incident",
    "incident_url",
    "model",
    "request_id",
    "time",
    "timestamp",
}
BODY = '{"model": "m", "messages": [{"role": "user", "content": "Again."}]}'


def shown(page: str, beginning: str) -> str:
    (text,) = (block.text for block in blocks() if block.page == page and block.text.startswith(beginning))
    return text


def wrong(real: Any, page: Any, name: str = "") -> list[str]:
    """Where the page shows other fields, in another order, or other values; of names, times and digests only the type."""
    if isinstance(real, dict) and isinstance(page, dict):
        if list(real) != list(page):
            return [f"{name}: {list(real)} is not {list(page)}"]
        return [one for key, value in real.items() for one in wrong(value, page[key], key)]
    alike = type(real) is type(page) and (name in VARYING or same(str(page), str(real)))
    return [] if alike else [f"{name}: {real!r} is not {page!r}"]


@pytest.fixture(scope="module")
def receiver() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, llm: ThreadedLLM, receiver: ThreadedLLM
) -> Iterator[tuple[Served, Any]]:
    """A server that has detected one loop and told a webhook of it, and the body of the denial."""
    port = free_port()
    options = ("--upstream", f"openai={llm.url}", "--admin-port", str(port))
    with serving(
        tmp_path_factory.mktemp("served"), *options, BREAKLOOP_ADMIN_TOKEN=TOKEN, BREAKLOOP_DASHBOARD_URL=DASHBOARD
    ) as running:
        hook = {"url": f"{receiver.url}/hook", "events": ["loop.detected"], "allow_private": True}
        address, head = f"http://127.0.0.1:{port}/api/v1/webhooks", {"Authorization": f"Bearer {TOKEN}"}
        httpx.post(address, json=hook, headers=head, timeout=DEADLINE_S).raise_for_status()
        asked = [running.ask("/agents/summariser/v1/chat/completions", "POST", BODY, **KEY) for _ in range(6)]
        assert [status for status, _, _ in asked] == [200] * 5 + [429]
        yield running, json.loads(asked[5][2])


@pytest.fixture
def served(world: tuple[Served, Any]) -> Served:
    return world[0]


def test_denial(world: tuple[Served, Any]) -> None:
    """The body of a denial (A-3)."""
    _, denied = world
    assert wrong(denied, json.loads(shown("docs/reference/decision-api.md", "{"))) == []


def test_event(served: Served) -> None:
    """The line of the log (G-2)."""
    eventually(lambda: bool(served.log("loop.detected")), "a line of the log")
    assert wrong(served.log("loop.detected")[0], json.loads(shown("docs/reference/events.md", "{"))) == []


def test_webhook(served: Served, receiver: ThreadedLLM) -> None:
    """The payload of a webhook (N-1)."""
    eventually(lambda: bool(receiver.requests), "a delivery")
    assert wrong(receiver.requests[0].json(), json.loads(shown("docs/how-to/webhooks.md", "{"))) == []


def test_reported_result(served: Served) -> None:
    """A gateway that forwards requests itself reports the response as the page shows it (D-6)."""
    status, fields, _ = served.decide("/v1/chat/completions", BODY.replace("Again", "Something else"), **KEY)
    assert status == 200
    head, _, body = shown("docs/reference/decision-api.md", "POST").partition("\n\n")
    method, path, name, value = re.split(r"[ \n]", head)
    path = re.sub(r"1ef9780a-5\.\w+", fields["x-breakloop-result-id"], path)
    assert served.ask(path, method, body, **{name.rstrip(":"): value}, **KEY)[0] == 204
