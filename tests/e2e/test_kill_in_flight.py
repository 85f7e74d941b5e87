"""Kill means stopped: orders end calls in flight, streams included, on every instance, and refuse what comes after. The
model never sends another chunk, so whatever ends was ended by the order."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, say
from tests.builders import chat_body, user
from tests.deadlines import DEADLINE_S
from tests.e2e.behind import free_port
from tests.e2e.fleet import fleet
from tests.e2e.raw_client import RECEIVE, RawClient
from tests.e2e.served import KEY, Served, eventually, serving
from tests.redis_servers import Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

TOKEN = "an-admin-token-of-at-least-32-characters"
STREAMS, WHOLE = 100, 4
CHAT = "/v1/chat/completions"
# A hundred agents at once are a loop by themselves.
POLICY = """
bundle_version: 1
policies: []
defaults: {loop_detection: [{similarity: steps, max_agents_per_tree: never, max_started_per_minute: never}]}
"""


def respond(seen: SeenRequest) -> Answer:
    if seen.header("x-hangs") == "stream":
        return say("one two three four").stall(1)
    return say("Hello.").stall("start") if seen.header("x-hangs") else say("Hello.")


@pytest.fixture(scope="module")
def model() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=respond) as llm:
        yield llm


class Instance:
    """A server, and its admin API."""

    def __init__(self, served: Served, admin: int) -> None:
        self.served = served
        self.admin = admin

    def api(self, path: str, sent: dict[str, Any] | None = None) -> Any:
        data = None if sent is None else json.dumps(sent).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.admin}/api/v1/{path}", data, headers)
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, model: ThreadedLLM, _redis_session: Server
) -> Iterator[list[Instance]]:
    """Two instances that share a Redis."""
    folders = [tmp_path_factory.mktemp("instance") for _ in range(2)]
    policy = folders[0] / "policy.yaml"
    policy.write_text(POLICY)
    shared = (
        "--policy",
        str(policy),
        "--upstream",
        f"openai={model.url}",
        "--upstream",
        f"anthropic={model.url}",
        "--state",
        f"{_redis_session.url}?time_budget_ms=5000",
    )
    ports = [free_port() for _ in folders]
    first, second = (
        serving(folder, *shared, "--admin-port", str(port), BREAKLOOP_ADMIN_TOKEN=TOKEN)
        for folder, port in zip(folders, ports, strict=True)
    )
    with first as one, second as two:
        yield [Instance(one, ports[0]), Instance(two, ports[1])]


async def opened(
    port: int, path: str, body: bytes, **headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {"Authorization": f"Bearer {KEY}kill", "Content-Type": "application/json", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


def in_tree(session: int) -> dict[str, str]:
    named = {"X-Agent-Session": f"session-{session}", "X-Agent-Id": f"agent-{session % 10}"}
    return named if session == 0 else {**named, "X-Parent-Session-Id": "session-0"}


def test_a_tree_with_100_streams_on_two_instances(
    pair: list[Instance], model: ThreadedLLM, record_property: Callable[[str, object], None]
) -> None:
    """All end with an error event or the denial, though the model sends nothing; the rest goes on; what follows is denied
    until the tree is released (K-4)."""

    async def scene() -> tuple[list[bytes], list[bytes], dict[str, Any], bool]:
        ports = [one.served.port for one in pair]
        body, whole = chat_body(user("Go."), stream=True), chat_body(user("Go."))
        opening = [opened(ports[n % 2], CHAT, body, **in_tree(n), **{"X-Hangs": "stream"}) for n in range(STREAMS)]
        opening += [opened(ports[n % 2], CHAT, whole, **in_tree(n), **{"X-Hangs": "whole"}) for n in range(WHOLE)]
        opening.append(opened(ports[1], CHAT, body, **{"X-Agent-Session": "other", "X-Hangs": "stream"}))
        async with asyncio.timeout(DEADLINE_S):
            made = await asyncio.gather(*opening)
            *streams, bystander = [one for n, one in enumerate(made) if n not in range(STREAMS, STREAMS + WHOLE)]
            for reader, _ in (*streams, bystander):
                await reader.readuntil(b"data: ")
        await asyncio.to_thread(model.wait_for_requests, STREAMS + WHOLE + 1, timeout_s=DEADLINE_S)
        roots: list[dict[str, Any]] = []

        def known() -> bool:
            roots[:] = [one for one in pair[0].api("trees")["trees"] if one["root"] == "session-0"]
            return bool(roots)

        await asyncio.to_thread(eventually, known, "the tree")
        place = {name: roots[0][name] for name in ("project", "caller", "root")}
        began = asyncio.get_running_loop().time()
        killing = asyncio.to_thread(pair[0].api, "tree/kill", {**place, "session": "session-0", "reason": "enough"})
        async with asyncio.timeout(DEADLINE_S):
            told, *ends = await asyncio.gather(killing, *[reader.read() for reader, _ in streams])
            took = asyncio.get_running_loop().time() - began
            denied = await asyncio.gather(*[reader.readuntil(b"}}") for reader, _ in made[STREAMS : STREAMS + WHOLE]])
        record_property("seconds", took)
        goes_on = not bystander[0].at_eof()
        for _, writer in made:
            writer.close()
        return ends, denied, {**told, "place": place}, goes_on

    ends, denied, told, goes_on = asyncio.run(scene())
    assert all(b'"stop_reason":"killed"' in end and end.endswith(b"0\r\n\r\n") for end in ends), ends[:2]
    assert all(one.startswith(b"HTTP/1.1 429") and b"enough" in one for one in denied), denied
    assert goes_on
    assert (told["stopped"]["calls"], told["stopped"]["streams"]) == (STREAMS + WHOLE, STREAMS)
    assert len(told["stopped"]["agents"]) == 10

    def asks(session: int) -> list[int]:
        fields = {name.replace("-", "_"): value for name, value in in_tree(session).items()}
        key = {"Authorization": f"Bearer {KEY}kill", "Content_Type": "application/json"}
        return [one.served.ask(CHAT, "POST", chat_body(user("Go on.")), **key, **fields)[0] for one in pair]

    assert [asks(0), asks(7), asks(STREAMS + 1)] == [[429, 429]] * 3
    pair[0].api("tree/release", {**told["place"], "session": "session-0"})
    eventually(lambda: asks(0) == [200, 200], "released")


def chat(base: str, headers: dict[str, str]) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{base}/v1", api_key=f"{KEY}sdk", default_headers=headers) as client:
        yield from client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}], stream=True)


def responses(base: str, headers: dict[str, str]) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{base}/v1", api_key=f"{KEY}sdk", default_headers=headers) as client:
        yield from client.responses.create(model="m", input="Go.", stream=True)


def messages(base: str, headers: dict[str, str]) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=base, api_key=f"{KEY}sdk", default_headers=headers) as client:
        said: Any = [{"role": "user", "content": "Go."}]
        yield from client.messages.create(model="m", max_tokens=10, messages=said, stream=True)


@pytest.mark.parametrize("stream", [chat, responses, messages])
def test_sdks_raise_a_readable_error(
    pair: list[Instance], stream: Callable[[str, dict[str, str]], Iterator[Any]]
) -> None:
    """In a stream that has begun, with the reason and the word to branch on (K-4)."""
    instance, agent = pair[0], f"reads-{stream.__name__}"
    events = stream(instance.served.url, {"X-Agent-Id": agent, "X-Hangs": "stream"})
    next(events)
    done = instance.api(f"agents/{agent}/kill", {"reason": "enough"})
    assert done["stopped"] == {"calls": 1, "streams": 1, "agents": [agent]}
    with pytest.raises((openai.APIError, anthropic.APIError), match="enough") as raised:
        list(events)
    assert "agent_quarantined" in str(raised.value)


def test_a_kill_switch_of_a_new_bundle(tmp_path: Path, model: ThreadedLLM) -> None:
    """Ends calls in flight as an order does (K-4)."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("bundle_version: 1\npolicies: []\n")
    with serving(tmp_path, "--policy", str(policy), "--upstream", f"openai={model.url}") as served:
        events = chat(served.url, {"X-Agent-Id": "switched", "X-Hangs": "stream"})
        next(events)
        switch = '{scope_key: "agent:id", scope_value: switched, reason: enough}'
        policy.write_text(f"bundle_version: 2\npolicies: []\nkill_switches: [{switch}]\n")
        with pytest.raises(openai.APIError, match="enough"):
            list(events)


def ask(client: RawClient, body: bytes, **headers: str) -> None:
    fields = {"Authorization": f"Bearer {KEY}workers", "Content-Type": "application/json", **headers}
    client.ask("POST", CHAT, body, *[f"{name}: {value}" for name, value in fields.items()])


def is_open(client: RawClient) -> bool:
    """Tell whether the server has not closed a connection, after all that has arrived."""
    client.socket.setblocking(False)
    try:
        while client.socket.recv(RECEIVE):
            pass
    except BlockingIOError:
        return True
    return False


def connected(port: int, count: int) -> dict[int, list[RawClient]]:
    """So many connections of each of the two workers, by the worker that has accepted them."""
    found: dict[int, list[RawClient]] = {1: [], 2: []}
    while min(map(len, found.values())) < count:
        client = RawClient(port)
        client.ask("GET", "/readyz")
        found[client.answer().json()["worker"]].append(client)
    return found


def test_streams_of_two_workers(tmp_path: Path, model: ThreadedLLM, redis_server: Server) -> None:
    """Several processes on one port: what each of them has in flight ends and is counted, streams of others go on, none
    of them passes anything new, and all of them serve again after the release (K-4, S-5)."""
    admin, stream = free_port(), chat_body(user("Go."), stream=True)
    options = ("--upstream", f"openai={model.url}", "--admin-port", str(admin))
    state = f"{redis_server.url}?time_budget_ms=5000"
    with ExitStack() as stack, fleet(tmp_path, state, *options, BREAKLOOP_ADMIN_TOKEN=TOKEN) as served:
        served.wait_ready()
        clients = connected(served.port, 5)
        for client in chain(*clients.values()):
            stack.enter_context(client)
        others = [of_worker.pop() for of_worker in clients.values()]
        asking = [of_worker.pop() for of_worker in clients.values()]
        runaways = list(chain(*clients.values()))
        hangs = {"X-Hangs": "stream"}
        for number, client in enumerate(runaways):
            ask(client, stream, **hangs, **{"X-Agent-Id": "runaway", "X-Agent-Session": f"s{number}"})
        for client in others:
            ask(client, stream, **hangs, **{"X-Agent-Id": "careful"})
        for client in (*runaways, *others):
            client.until(b"data: ")

        instance = Instance(served, admin)
        told = instance.api("agents/runaway/kill", {"reason": "enough"})
        assert told["stopped"] == {"calls": len(runaways), "streams": len(runaways), "agents": ["runaway"]}
        ends = [client.rest() for client in runaways]
        assert all(b'"stop_reason":"killed"' in end and end.endswith(b"0\r\n\r\n") for end in ends), ends

        def statuses() -> list[int]:
            found = []
            for client in asking:  # one of each worker
                ask(client, chat_body(user("Go on.")), **{"X-Agent-Id": "runaway"})
                found.append(client.answer().status)
            return found

        assert statuses() == [429, 429]
        assert all(map(is_open, others))
        instance.api("agents/runaway/release", {})
        eventually(lambda: statuses() == [200, 200], "released")
