"""What the doors share. Decisions in full are in test_decision, test_decision_bodies and test_proxy."""

from __future__ import annotations

import json
import zlib

from breakloop.dialects.denial import VerdictHeaders
from breakloop.gateway.admission import Admission, DebugSessions
from breakloop.model.verdict import Verdict
from tests.builders import CHAT, SECRET, World, bundle, call, chat, chat_body, exact, policy, request, user, world
from tests.fake_remote import RemoteWorld, run

LOOP = bundle(policy("p", loop=exact(2)))


def judging(here: World, debug_secret: str = "") -> Admission:
    debug = DebugSessions(debug_secret, "X-Breakloop-", here.clock) if debug_secret else None
    return Admission(here.engine, here.descriptors, VerdictHeaders("X-Breakloop-", SECRET), run_id="run-", debug=debug)


def test_every_request_has_an_id_of_its_own() -> None:
    judge = judging(world())
    ids = [judge.request_id() for _ in range(300)]
    assert (len(set(ids)), ids[0], ids[255]) == (300, "run-0", "run-ff")


def test_gateways_get_the_status_and_mcp_clients_a_result() -> None:
    """The same verdict, for two who read different things (A-3)."""
    here = world(LOOP)
    body = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t"}}'
    asked = [call("/mcp", "POST", body=body) for _ in range(2)]
    verdict = [here.engine.decide(one) for one in asked][-1]
    judge = judging(here)
    gateway = judge.gateway_denial(request(), asked[-1], verdict)
    client = judge.client_denial(asked[-1], verdict)
    assert (gateway.status, json.loads(gateway.body)["error"]["code"]) == (429, -32000)
    assert (client.status, json.loads(client.body)["result"]["isError"]) == (200, True)
    assert client.head == gateway.head


def test_debug_fields_come_with_the_verdict() -> None:
    """Only with the cookie (A-6)."""
    here = world(LOOP)
    judge = judging(here, "open sesame")
    assert judge.debug is not None
    opened = judge.debug.open(request(headers={"x-breakloop-debug-secret": "open sesame"}))
    cookie = opened.head.decode().partition("Set-Cookie: ")[2].partition(";")[0]
    assert judge.decide(request(), chat())[1] == b""
    _, fields = judge.decide(request(headers={"cookie": cookie}), chat())
    assert b"X-Breakloop-Debug-Decision: deny\r\n" in fields


def test_unpacked_bodies_count_as_held_until_the_verdict() -> None:
    """Many may wait for the store at the same time; where there is no room, a body is judged as it came (Y-2)."""
    body = chat_body(user(" ".join(map(str, range(80_000)))))
    packed = zlib.compress(body, wbits=31)
    headers = {"content-encoding": b"gzip"}

    def test() -> None:
        there = RemoteWorld(LOOP)
        there.store.holds = True
        judge = judging(there.here)
        judge.remote = there.remote
        verdicts: list[Verdict] = []
        first, second = (call(CHAT, "POST", headers, body=packed) for _ in range(2))
        judge.decide_remote(request(headers=headers), first, lambda verdict, _lines=b"": verdicts.append(verdict))
        assert judge.body_memory.held == len(body)
        judge.body_memory.is_short = True
        judge.decide_remote(request(headers=headers), second, lambda verdict, _lines=b"": verdicts.append(verdict))
        assert (first.body, second.body) == (body, packed)
        assert there.here.engine.tally.not_unpacked == {"too_large": 1}
        there.store.deliver()
        assert ([verdict.allowed for verdict in verdicts], judge.body_memory.held) == ([True, True], 0)

    run(test)
