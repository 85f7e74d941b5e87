"""Envoy's questions over gRPC, asked by a real gRPC client, and without one where only the answer matters."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from breakloop.errors import SettingsError
from breakloop.gateway.envoy_grpc import SERVICE, EnvoyCheck, serve_envoy
from breakloop.gateway.envoy_processor import EnvoyProcessor
from breakloop.gateway.exchange import DeferredReply
from breakloop.gateway.http_request import Handler, Reply, RequestLimits
from breakloop.policy.client import CallerKeys
from breakloop.policy.descriptors import ContextSettings
from tests.builders import SECRET, World, bucket, bundle, exact, policy, world
from tests.e2e.certificates import Authority
from tests.unit.gateway.envoy_client import Checked, check, checked

Ask = Callable[[bytes], Awaitable[bytes]]


def asked_of(here: World, *questions: bytes) -> list[Checked]:
    """What Envoy is told, one question after the other."""
    checking = EnvoyCheck(here.door.envoy, RequestLimits())

    async def ask() -> list[Checked]:
        return [checked(await checking.check(question) or b"") for question in questions]

    return asyncio.run(ask())


def serving(door: Handler, port: int, **options: Any) -> Any:
    """Serve both services."""
    limits, admission = RequestLimits(), world(bundle(policy("p"))).door._admission
    terms: dict[str, Any] = {"shared": False, "tls": None, **options}
    return serve_envoy(
        EnvoyCheck(door, limits), EnvoyProcessor(admission, limits), f"127.0.0.1:{port}", limits, **terms
    )


def over_grpc(
    door: Handler, test: Callable[[Ask], Awaitable[None]], port: int, channel: Any = None, **more: Any
) -> None:
    """Serve, and run a test with what asks."""

    async def run() -> None:
        async with (
            serving(door, port, **more),
            channel() if channel else grpc.aio.insecure_channel(f"127.0.0.1:{port}") as link,
        ):
            await test(link.unary_unary(f"/{SERVICE}/Check"))

    asyncio.run(run())


def test_a_loop_is_stopped_over_grpc(free_port: Callable[[], int]) -> None:
    """What is allowed passes with its fields, what is denied has status, fields and body (D-3, LD-1)."""
    here = world(bundle(policy("p", bucket(rate=100, burst=100), loop=exact(3))))

    async def test(ask: Ask) -> None:
        first, _, third = [checked(await ask(check("/a?b=1"))) for _ in range(3)]
        assert first.allowed
        assert first.headers["ratelimit-remaining"] == "99"
        assert (third.allowed, third.status) == (False, 429)
        assert third.headers["x-breakloop-reason"] == "loop_detected"
        assert third.headers["content-type"] == "application/json"
        assert b"recursive_loop_detected" in third.body
        assert checked(await ask(check("/a?b=2"))).allowed

    over_grpc(here.door.envoy, test, free_port())


def test_clients_are_told_apart() -> None:
    """By the address that is connected to Envoy, whatever they say it is (C-4)."""
    here = world(bundle(policy("p", loop=exact(2))))
    said = {"x-forwarded-for": "203.0.113.1"}
    answers = asked_of(here, check(), check(peer="198.51.100.8"), check(headers=said))
    assert [answer.allowed for answer in answers] == [True, True, False]


def test_bodies_that_were_not_sent_are_no_loop() -> None:
    """Envoy sends bodies where it is told to. Where it does not, or cuts them, POSTs are not taken for the same; a
    client cannot hide a request by saying so (LD-1)."""
    here = world(bundle(policy("p", loop=exact(2))))
    part = {"x-envoy-auth-partial-body": "true"}
    unseen = [
        check(method="POST"),
        check(method="POST", headers={"content-length": "5"}),
        check(method="DELETE", headers={"transfer-encoding": "chunked"}),
        check(method="POST", headers=part, body=b"beginning"),
    ]
    for question in unseen:
        assert [answer.allowed for answer in asked_of(here, question, question)] == [True, True]
    seen = [
        check("/get", headers=part),
        check("/empty", "POST", {"content-length": "0"} | part),
        check("/whole", "POST", {"x-envoy-auth-partial-body": "false"}, b"whole"),
    ]
    for question in seen:
        assert [answer.allowed for answer in asked_of(here, question, question)] == [True, False]


def test_what_is_no_request_is_refused() -> None:
    """By the rules of any other head; a line break adds no field (Y-3, R-3)."""
    here = world(bundle(policy("p", loop=exact(2))))
    asked = [
        check("/a%2Fb"),
        check(headers={"x-a": "1\r\nx-agent-id: other"}),
        check(headers={"x-a": "1\nx-agent-id: other"}),
        check(headers={f"x-{number}": "v" for number in range(250)}),
        check(method="BREW"),
    ]
    assert [answer.status for answer in asked_of(here, *asked)] == [400, 400, 400, 431, 501]
    upgrade = {"upgrade": "websocket", "connection": "upgrade", "expect": "x"}
    assert asked_of(here, check(headers=upgrade))[0].allowed


def test_a_5xx_of_a_policy_is_a_denial() -> None:
    """Over gRPC Envoy tells it from a failure (A-1)."""
    here = world(bundle(policy("p", bucket(rate=0.01, burst=1), deny_status=503)))
    assert [answer.status for answer in asked_of(here, check("/1"), check("/2"))] == [200, 503]


def test_without_a_bundle_there_is_no_answer(free_port: Callable[[], int]) -> None:
    """Envoy does then what failure_mode_allow says; the same with a message that is none, and with a fault (E-0)."""
    here = world(load=False)
    wrong = [(here.door.envoy, check(), "UNAVAILABLE"), (here.door.envoy, b"\x0b", "INVALID_ARGUMENT")]

    def broken(_request: object) -> Reply:
        raise KeyError("a secret prompt")

    for door, question, code in [*wrong, (broken, check(), "INTERNAL")]:

        async def test(ask: Ask, question: bytes = question, code: str = code) -> None:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await ask(question)
            assert raised.value.code().name == code
            assert "secret" not in str(raised.value.details())

        over_grpc(door, test, free_port())


def test_a_fault_is_logged_without_what_was_asked(
    free_port: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """A fault is logged without what was asked (Y-1)."""

    def broken(_request: object) -> Reply:
        raise KeyError("a secret prompt")

    async def test(ask: Ask) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(check())

    with caplog.at_level(logging.ERROR):
        over_grpc(broken, test, free_port())
    assert "KeyError" in caplog.text
    assert "secret" not in caplog.text


def test_a_throttled_answer_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """By not answering (LD-5)."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    here = world(bundle(policy("p", loop=exact(2, action="throttle"))))
    answers = asked_of(here, check(), check())
    assert answers[1].headers["x-breakloop-loop-delay"] == "200"
    assert slept == [0.2]


def test_a_decision_that_has_to_be_waited_for() -> None:
    """With state elsewhere the answer comes when it is there; Envoy may leave meanwhile (S-2)."""

    async def test() -> None:
        made, pending = DeferredReply(), DeferredReply()
        made.resolve(lambda: Reply(200))
        waiting = iter([made, pending, (left := DeferredReply())])
        checking = EnvoyCheck(lambda _request: next(waiting), RequestLimits())
        assert checked(await checking.check(check()) or b"").allowed
        task = asyncio.create_task(checking.check(check()))
        await asyncio.sleep(0)
        assert not task.done()
        pending.resolve(lambda: Reply(429, b"", b"{}"))
        assert checked(await task or b"").status == 429
        task = asyncio.create_task(checking.check(check()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left._cancelled

    asyncio.run(test())


def test_two_instances_do_not_share_a_port(free_port: Callable[[], int]) -> None:
    """Unless they are workers of one; else the second says why it cannot start (S-5)."""
    here, port = world(bundle(policy("p"))), free_port()

    async def second(_ask: Ask) -> None:
        async with serving(here.door.envoy, port, shared=True):
            pass

    with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
        over_grpc(here.door.envoy, second, port)
    over_grpc(here.door.envoy, second, port, shared=True)


def test_tls(free_port: Callable[[], int], tmp_path: Path) -> None:
    """The traffic port's certificate is shown here, too (Y-6)."""
    authority, port = Authority(tmp_path), free_port()
    files = authority.issue("127.0.0.1")
    here = world(bundle(policy("p")))
    trust = grpc.ssl_channel_credentials(authority.file.read_bytes())

    async def test(ask: Ask) -> None:
        assert checked(await ask(check())).allowed

    over_grpc(
        here.door.envoy,
        test,
        port,
        channel=lambda: grpc.aio.secure_channel(f"127.0.0.1:{port}", trust),
        tls=(files.key.read_bytes(), files.certificate.read_bytes()),
    )


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    real = builtins.__import__

    def missing(name: str, *more: Any, **options: Any) -> Any:
        if name.startswith("grpc"):
            raise ImportError(name)
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=r"breakloop\[envoy\]"):
        asyncio.run(_enter())


async def _enter() -> None:
    async with serving(lambda _request: Reply(200), 1):
        pass


def test_envoys_own_key_is_in_the_metadata_of_its_calls(free_port: Callable[[], int]) -> None:
    """Without it, or with one that a client invented, nothing is decided (Y-6)."""
    callers = CallerKeys([f"envoy={sha256(b'its-key').hexdigest()}"])
    here = world(bundle(), settings=ContextSettings(secret=SECRET, callers=callers))

    async def test(ask: Any) -> None:
        question = check(headers={"x-breakloop-key": "invented"})
        assert checked(await ask(question)).status == 401
        assert checked(await ask(question, metadata=(("x-breakloop-key", "its-key"),))).allowed

    over_grpc(here.door.envoy, test, free_port())
