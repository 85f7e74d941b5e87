"""Pause and ask, from end to end: the real command, a real SDK in a loop, a receiver in the place of Slack, and a person
with a real browser who clicks on the link in the message (K-6, K-7, K-8)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from playwright.sync_api import Browser, expect

import breakloop.openai
from breakloop.exceptions import DeniedError, LoopDetectedError
from breakloop.model.verdict import ANSWERS
from breakloop.testing import StandInLLM, ThreadedLLM, call_tool
from tests.alert_world import Receiver, receiver
from tests.browser import chromium, visit
from tests.deadlines import DEADLINE_S
from tests.e2e.served import Served, serving
from tests.e2e.test_land import CHAT_TOOL, RESULT, TASK, TOOL
from tests.redis_servers import free_port

pytestmark = pytest.mark.e2e

ADMIN_TOKEN = "bl_a-token-for-whoever-is-asked"
POLICY: dict[str, Any] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "action": "pause"}},
}
SETTINGS: dict[str, Any] = {
    "alert_targets": {"team": {"type": "slack", "url": "env:SLACK_URL", "allow_private": True}},
    "alerts": [{"name": "ask the team", "type": "pause", "targets": ["team"]}],
}


@dataclass
class Asking:
    """A gateway that asks, and where the questions arrive."""

    served: Served
    admin: str
    slack: Receiver

    def links(self, number: int = 1) -> dict[str, str]:
        """Wait for so many messages; return the buttons of the last one, by their words."""
        message = self.slack.wait(number)[-1].json
        return buttons(message)

    def click(self, url: str) -> int:
        """Press the button on the page of a link, as its form does."""
        asked = urllib.request.Request(url, b"", {"Origin": self.admin, "Sec-Fetch-Site": "same-origin"})
        try:
            with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def api(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        asked = urllib.request.Request(f"{self.admin}/api/v1/{path}", headers=headers)
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            return json.load(answer)


def buttons(message: Any) -> dict[str, str]:
    [actions] = [block for block in message["blocks"] if block["type"] == "actions"]
    return {button["text"]["text"]: button["url"] for button in actions["elements"]}


@contextmanager
def asking(folder: Path, llm: ThreadedLLM, port: int = 0, **pause: Any) -> Iterator[Asking]:
    (folder / "policy.json").write_text(json.dumps({**POLICY, "pause": pause}))
    (folder / "breakloop.yaml").write_text(json.dumps(SETTINGS))
    port = port or free_port()
    upstreams = ("--upstream", f"openai={llm.url}", "--upstream", f"anthropic={llm.url}")
    arguments = ("--policy", "policy.json", "--config", "breakloop.yaml", "--admin-port", str(port), *upstreams)
    with receiver() as slack:
        url = f"http://127.0.0.1:{slack.server_port}/services/T0/B0/x"
        with serving(folder, *arguments, BREAKLOOP_ADMIN_TOKEN=ADMIN_TOKEN, SLACK_URL=url) as served:
            yield Asking(served, f"http://127.0.0.1:{port}", slack)


@pytest.fixture
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=lambda _: call_tool("search", {"query": "refunds"})) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


class Looping:
    """A conversation that calls the same tool again and again, with the SDK of OpenAI or of Anthropic."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.messages: list[Any] = [{"role": "user", "content": TASK}]

    def step(self) -> None:
        if isinstance(self.client, anthropic.Anthropic):
            answer = self.client.messages.create(model="claude", max_tokens=99, messages=self.messages, tools=[TOOL])
            uses = [one for one in answer.content if one.type == "tool_use"]
            said = [{"type": "tool_use", "id": one.id, "name": one.name, "input": one.input} for one in uses]
            done = [{"type": "tool_result", "tool_use_id": one.id, "content": RESULT} for one in uses]
            self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": done}]
            return
        asked: Any = {"model": "m", "messages": self.messages, "tools": [CHAT_TOOL]}
        calls = self.client.chat.completions.create(**asked).choices[0].message.tool_calls
        said = [{"id": one.id, "type": "function", "function": one.function.model_dump()} for one in calls]
        self.messages.append({"role": "assistant", "tool_calls": said})
        self.messages += [{"role": "tool", "tool_call_id": one.id, "content": RESULT} for one in calls]

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def until_paused(self, steps: int = 5) -> Any:
        """Take the steps that are allowed; return the error of the one that is not."""
        self.steps(steps)
        with pytest.raises(openai.RateLimitError) as caught:
            self.step()
        return caught.value


def make(name: str, url: str, **more: Any) -> Any:
    if name == "anthropic":
        return anthropic.Anthropic(base_url=url, api_key=f"k-{name}", **more)
    return openai.OpenAI(base_url=f"{url}/v1", api_key=f"k-{name}", **more)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_the_agent_goes_on_when_a_person_clicks(
    tmp_path: Path, llm: ThreadedLLM, browser: Browser, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Loop, message, link, one click. The SDK asks again by itself after the `Retry-After`, during which the person
    answers (K-6, K-8)."""
    clicked, slept, sleep = threading.Event(), [], time.sleep

    def wait(seconds: float) -> None:
        if threading.current_thread().name != "agent":
            sleep(seconds)
            return
        slept.append(seconds)
        assert clicked.wait(DEADLINE_S)

    with asking(tmp_path, llm) as here, make(name, here.served.url) as client:
        monkeypatch.setattr("time.sleep", wait)
        agent = Looping(client)
        running = threading.Thread(target=agent.steps, args=(7,), name="agent")
        running.start()
        links = here.links()
        assert list(links) == [*ANSWERS.values(), "Open the dashboard"]
        assert len(llm.requests) == 5
        click_in_a_browser(here, browser, links["Go on once"])
        clicked.set()
        running.join(DEADLINE_S)
        assert (slept, len(llm.requests), len(agent.messages)) == ([60], 7, 15)
        text = json.dumps([one.json for one in here.slack.got])
        assert "refunds" not in text  # nothing of what was asked or answered
        assert "waits for your answer" in text
        [audit] = [one for one in here.api("audit")["audit"] if one["action"] == "run.answer"]
        assert (audit["who"], audit["detail"]["answer"]) == ("link (127.0.0.1)", "once")
        assert [line["answer"] for line in here.served.log("run.answered")] == ["once"]


def click_in_a_browser(here: Asking, browser: Browser, url: str) -> None:
    """Open the link, read, press the button; then try again."""
    with visit(browser, here.admin) as seen:
        path = url.removeprefix(here.admin)
        seen.open(path)
        heading = seen.page.get_by_role("heading", level=1)
        expect(heading).to_have_text("Go on once?")
        assert seen.axe() == []
        assert len(here.api("pauses")["pauses"]) == 1  # opening it changed nothing
        seen.page.get_by_role("button", name="Go on once").click()
        expect(heading).to_have_text("Done")
        assert here.api("pauses")["pauses"] == []
        assert (seen.errors, seen.external) == ([], [])
        seen.open(path)
        expect(heading).to_have_text("Nothing was done")
        assert here.click(f"{here.admin}{path}") == 404


@pytest.mark.parametrize("drop_in", [False, True])
def test_errors_without_retries(tmp_path: Path, llm: ThreadedLLM, drop_in: bool) -> None:
    """A rate limit whose header and body say that the run is paused, and when to ask again (K-6)."""
    with asking(tmp_path, llm) as here:
        kind = breakloop.openai.OpenAI if drop_in else openai.OpenAI
        with kind(base_url=f"{here.served.url}/v1", api_key="k", max_retries=0) as client:
            agent = Looping(client)
            error = agent.until_paused()
        assert error.response.headers["retry-after"] == "60"
        assert error.response.headers["x-should-retry"] == "true"
        assert error.response.headers["x-breakloop-stop-reason"] == "paused"
        assert error.response.json()["detail"]["stop_reason"] == "paused"
        if drop_in:
            assert (error.reason, error.stop_reason, error.retry_after) == ("run_paused", "paused", 60)
            assert isinstance(error, DeniedError)
            assert not isinstance(error, LoopDetectedError)


def test_a_restart_keeps_the_question_and_its_links(tmp_path: Path, llm: ThreadedLLM) -> None:
    """The person answers the message of the process before (K-6, S-1)."""
    port = free_port()
    with asking(tmp_path, llm, port) as here, make("openai", here.served.url, max_retries=0) as client:
        agent = Looping(client)
        agent.until_paused()
        link = here.links()["Go on for 1 hour"]
    with asking(tmp_path, llm, port) as here, make("openai", here.served.url, max_retries=0) as client:
        agent.client = client
        with pytest.raises(openai.RateLimitError):
            agent.step()
        assert here.click(link.replace(".1h.", ".kill.")) == 404
        assert here.click(link) == 200
        for _ in range(9):
            agent.step()
        assert here.click(link) == 404


def test_the_dashboard_asks_and_the_command_line_too(tmp_path: Path, llm: ThreadedLLM, browser: Browser) -> None:
    """The question appears without a reload; one is answered there, the next one with `breakloop pauses` (K-6)."""
    with asking(tmp_path, llm) as here, make("openai", here.served.url, max_retries=0) as client:
        agent = Looping(client)
        with visit(browser, here.admin) as seen:
            seen.sign_in(ADMIN_TOKEN)
            expect(seen.page.locator("#live-said")).to_have_text("live")
            agent.until_paused()
            expect(seen.page.get_by_role("heading", name="1 run waits for your answer")).to_be_visible()
            assert seen.axe() == []
            seen.open("/pauses")
            assert (seen.axe(), seen.overflow()) == ([], 0)
            seen.page.get_by_role("button", name="Go on once").click()
            seen.page.locator("dialog[open]").get_by_role("button", name="Go on").click()
            expect(seen.page.locator("#notice")).to_contain_text("The answer is in force")
            expect(seen.page.locator("#pauses")).to_contain_text("Nobody waits for an answer")
            assert (seen.errors, seen.external) == ([], [])
        agent.until_paused(4)
        asked = ("--url", here.admin, "--token", ADMIN_TOKEN)
        listed = run("pauses", *asked)
        [pause] = here.api("pauses")["pauses"]
        assert pause["id"] in listed.stdout
        assert "search" in listed.stdout
        assert run("pauses", pause["id"][:6], "maybe", *asked).returncode == 1
        done = run("pauses", pause["id"][:6], "$5", *asked)
        assert (done.returncode, done.stdout.endswith("the answer $5 is in force\n")) == (0, True)
        for _ in range(6):
            agent.step()
        assert run("pauses", *asked).stdout == "no run waits for an answer\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "breakloop", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_call_that_is_held_open_goes_on(tmp_path: Path, llm: ThreadedLLM) -> None:
    """No retry, no error: the call takes as long as the person does, and others are served meanwhile (K-7)."""
    with asking(tmp_path, llm, hold_open_seconds=300) as here:
        clients = {name: make(name, here.served.url, max_retries=0) for name in ("openai", "anthropic")}
        agents = {name: Looping(client) for name, client in clients.items()}
        for agent in agents.values():
            for _ in range(5):
                agent.step()
        waiting = [threading.Thread(target=agent.step) for agent in agents.values()]
        for one in waiting:
            one.start()
        here.links(2)
        status, _, _ = here.served.ask("/v1/models", Authorization="Bearer other")
        assert status == 200
        assert all(one.is_alive() for one in waiting)
        for message in here.slack.got:
            assert here.click(buttons(message.json)["Go on for 1 hour"]) == 200
        for one in waiting:
            one.join(DEADLINE_S)
            assert not one.is_alive()
        for client in clients.values():
            client.close()
        assert [len(agent.messages) for agent in agents.values()] == [13, 13]
