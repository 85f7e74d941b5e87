"""When an agent loops at night: the real server, the real dashboard in a real browser, the real API."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from breakloop.testing import ThreadedLLM
from tests.browser import Visit, chromium, visit
from tests.builders import chat_body, user
from tests.deadlines import DEADLINE_S
from tests.e2e.served import KEY, Served, eventually, serving
from tests.redis_servers import free_port
from tests.unit.engine.test_procedure import stuck

pytestmark = pytest.mark.e2e

TOKEN = "bl_a-token-for-the-night"
POLICY = """
bundle_version: 1
policies:
  - id: killing
    spec:
      selector: {pathPrefix: /v1/chat}
      loop_detection: {similarity: steps, ladder: {notice: warn, block: kill, stop: kill}}
  - id: trial
    spec:
      selector: {pathPrefix: /trial}
      mode: shadow
      rules:
        - name: slow
          limit_keys: []
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 1, burst: 1}
"""


class Night:
    """A server with its admin plane."""

    def __init__(self, served: Served, admin_port: int) -> None:
        self.served = served
        self.admin = f"http://127.0.0.1:{admin_port}"

    def turn(self, count: int, agent: str, body: bytes = b"") -> int:
        """One request of a stuck agent after so many turns."""
        headers = {"Authorization": f"Bearer {KEY}night", "X_Agent_Id": agent, "Content_Type": "application/json"}
        return self.served.ask("/v1/chat/completions", "POST", body or chat_body(*stuck(count)), **headers)[0]

    def loop(self, agent: str) -> list[int]:
        return [self.turn(count, agent) for count in range(7)]

    def api(self, path: str, sent: dict[str, Any] | None = None) -> Any:
        data = None if sent is None else json.dumps(sent).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.admin}/api/v1/{path}", data, headers)
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, llm: ThreadedLLM) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    (folder / "policy.yaml").write_text(POLICY)
    port = free_port()
    arguments = ("--admin-port", str(port), "--policy", str(folder / "policy.yaml"), "--upstream", f"openai={llm.url}")
    with serving(folder, *arguments, BREAKLOOP_ADMIN_TOKEN=TOKEN) as served:
        yield Night(served, port)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def clean(seen: Visit) -> None:
    assert (seen.errors, seen.external, seen.axe()) == ([], [], [])


def test_the_incident_appears_and_its_agent_is_released(night: Night, browser: Browser) -> None:
    """Live, without a reload; with its steps; released with one click; in the audit log (X-2, G-1, G-3, K-3)."""
    with visit(browser, night.admin) as seen:
        seen.sign_in(TOKEN)
        expect(seen.page.locator("#live-said")).to_have_text("live")
        seen.page.evaluate("window.stayed = true")
        statuses = night.loop("night-bot")
        assert (statuses[0], statuses[-1]) == (200, 429)
        expect(seen.page.locator(".incidents .row").first).to_contain_text("night-bot")
        assert seen.page.evaluate("window.stayed") is True
        clean(seen)
        [incident] = [one for one in night.api("incidents")["incidents"] if one["agent"] == "night-bot"]
        seen.open(f"/incidents/{incident['id']}")
        expect(seen.page.get_by_role("heading", level=1)).to_contain_text("night-bot")
        assert seen.page.locator(".picture.wide-only svg rect.cell").count() >= 4
        clean(seen)
        seen.page.get_by_role("button", name="Release").click()
        seen.page.locator("dialog[open]").get_by_role("button", name="Release").click()
        expect(seen.page.locator("#notice")).to_contain_text("night-bot is released")
        assert night.turn(0, "night-bot", chat_body(user("Something quite different."))) == 200
        seen.open("/audit")
        expect(seen.page.locator("tbody tr").first).to_contain_text("agent.release")
        clean(seen)


def test_a_shadow_policy_is_promoted(night: Night, browser: Browser) -> None:
    """What it would have denied is shown, and from then on it is blocked (X-2, E-1)."""

    def asked() -> list[int]:
        return [night.served.decide("/trial")[0] for _ in range(4)]

    assert asked() == [200] * 4
    with visit(browser, night.admin) as seen:
        seen.sign_in(TOKEN)
        eventually(lambda: bool(night.api("shadow")["shadow"]), "the shadow report")
        seen.open("/policies")
        card = seen.page.locator("section.policy", has_text="trial")
        expect(card).to_contain_text("Would have denied 3 requests")
        clean(seen)
        card.get_by_role("button", name="Promote to enforce").click()
        seen.page.locator("dialog[open]").get_by_role("button", name="Promote").click()
        expect(seen.page.locator("#notice")).to_be_visible()
        eventually(lambda: 429 in asked(), "the promoted policy denies")
        clean(seen)


def test_money_is_counted(night: Night) -> None:
    """What agents spent, and what was saved (G-1, G-3)."""
    night.loop("spender")

    def found() -> tuple[int, int]:
        agents = [one for one in night.api("agents")["agents"] if one["agent"] == "spender"]
        return (agents[0]["requests"], agents[0]["input_tokens"]) if agents else (0, 0)

    eventually(lambda: found()[0] == 7, "all requests of the agent")  # they are written once a second
    assert found()[1] > 0


def test_a_kill_and_a_switch_by_the_api(night: Night) -> None:
    """Acknowledged when every instance has it (X-1, K-3)."""
    assert night.api("agents/quiet/kill", {"reason": "by hand"})["shared"] is True
    assert night.turn(0, "quiet") == 429
    assert night.api("agents/quiet/release", {})["shared"] is True
    assert night.turn(0, "quiet", chat_body(user("good again"))) == 200


def test_metrics_need_no_token_here(night: Night) -> None:
    """Metrics need no token here: on loopback (X-1, G-5)."""
    with urllib.request.urlopen(f"{night.admin}/metrics", timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    assert 'breakloop_decisions_total{reason="loop_detected",verdict="denied"}' in text
    for name in ("bundle_loaded_timestamp_seconds ", "state_saved_timestamp_seconds ", "upstream_connections_open{"):
        assert f"\nbreakloop_{name}" in text
    assert "night-bot" not in text


def test_nothing_of_a_prompt_or_key_is_kept(night: Night, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In no file of the data directory, no answer of the API, no log (Y-1)."""
    canaries = (b"no such file", b"Fix the bug.", KEY.encode() + b"night")
    seen = [json.dumps(night.api(path)).encode() for path in ("events", "incidents", "agents", "audit", "status")]
    folders = [path for path in tmp_path_factory.getbasetemp().glob("night*") if path.is_dir()]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "history.db" for path in files)
    seen += [path.read_bytes() for path in files]
    assert [canary for canary in canaries for text in seen if canary in text] == []
