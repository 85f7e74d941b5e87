"""Connections that do nothing, on every port, with few descriptors; and tokens that are guessed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.certificates import Authority
from tests.e2e.forking import SRC
from tests.e2e.raw_client import CutShortError, RawClient, request
from tests.e2e.served import eventually
from tests.torture.gateway import (
    CUT,
    TOKEN,
    Gateway,
    Rig,
    bystanders,
    chat,
    expect_alive,
    gateway,
    idle,
    send,
    told,
)
from tests.torture.limits import Limits
from tests.torture.table import Row
from tests.torture.upstream import upstream

_CALM: Final = 100
_HALF_HEAD: Final = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-"


def _new_clients(running: Gateway, count: int) -> Counter[int]:
    """What so many new clients get, one after the other."""
    return Counter(send(running.port, chat(f"Client {number}.", key=f"new-{number}")) for number in range(count))


def traffic(rig: Rig, row: Row) -> None:
    files, count = rig.size(400, 1024), rig.size(180, 1000)
    row.done = f"{count} idle connections on the traffic port of a process that may open {files} files"
    with upstream() as url, gateway(url, limits=Limits().files(files)) as running:
        with bystanders(running.port) as others, others.watch(_CALM), idle(running.port, count):
            statuses = _new_clients(running, 10)
            admin = running.api("/livez", token="")[0]
        row.expect("new clients are served", statuses == {200: 10}, told(statuses))
        row.expect("the admin port answers", admin == 200, f"/livez: {admin or 'cut'}")
        expect_alive(row, running)
        others.judge(row, fast=False, idle_may_be_cut=True)  # idle as well, between two requests


def full(rig: Rig, row: Row) -> None:
    most = rig.size(20, 500)
    row.done = f"`limits.connections` is {most}; {most} idle connections, then as many with half a request head"
    limits = {"BREAKLOOP_LIMITS_CONNECTIONS": str(most), "BREAKLOOP_LIMITS_HEAD_SECONDS": "1"}
    with upstream() as url, gateway(url, env=limits) as running:
        with idle(running.port, most):
            statuses = _new_clients(running, 10)
        row.expect("new clients are served beside idle ones", statuses == {200: 10}, told(statuses))
        with idle(running.port, most, _HALF_HEAD):
            eventually(lambda: send(running.port, chat("Client.", key="late")) == 200, "room for a new client")
            ready = running.ask("/readyz")[0]
        row.expect("and beside the others when `head_seconds` are over", ready == 200, "they are")
        expect_alive(row, running)


def admin(rig: Rig, row: Row) -> None:
    count = rig.size(120, 600)
    row.done = (
        f"{count} connections on the admin port that send nothing, and {count // 4} that send half a request head"
    )
    with upstream() as url, gateway(url) as running:
        with idle(running.admin_port, count), idle(running.admin_port, count // 4, b"GET /livez HTTP/1.1\r\nHo"):
            statuses = Counter(running.api(path)[0] for path in ("/livez", "/metrics", "/api/v1/agents") * 2)
            code, printed = _command(running, "kill", "runaway", "--reason", "loops") if rig.long else (0, "")
        row.expect("every call is answered", statuses == {200: 6}, told(statuses))
        if rig.long:
            row.expect("`breakloop kill` works", code == 0, f"exit {code}" if code == 0 else printed[-200:])
        expect_alive(row, running)


def _command(running: Gateway, *arguments: str) -> tuple[int, str]:
    """Run a command of an operator on this gateway."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(SRC),
        "HOME": str(running.folder / "home"),
        "BREAKLOOP_ADMIN_TOKEN": TOKEN,
    }
    command = [sys.executable, "-m", "breakloop", *arguments, "--url", f"http://127.0.0.1:{running.admin_port}"]
    done = subprocess.run(command, env=environment, cwd=running.folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def guesses(rig: Rig, row: Row) -> None:
    clients, rights = rig.size(8, 40), rig.size(5, 50)
    row.done = (
        f"{clients} clients guess admin tokens without a pause; an operator with the right one asks {rights} times"
    )
    wrong: Counter[int] = Counter()
    with upstream() as url, gateway(url) as running:
        stop = threading.Event()

        def guess(number: int) -> None:
            while not stop.is_set():
                status = running.api("/api/v1/agents", token=f"guess-{number}")[0]
                wrong[status] += 1  # approximate: threads share it

        threads = [threading.Thread(target=guess, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        eventually(lambda: wrong.total() >= clients, "guesses")
        right = Counter(running.api("/api/v1/agents")[0] for _ in range(rights))
        stop.set()
        for thread in threads:
            thread.join()
        row.expect("the right token is never refused", right == {200: rights}, told(right))
        row.expect("no guess succeeds", not {200, CUT} & set(wrong), told(wrong))
        lines = [line for line in running.log() if line["message"].startswith("admin.denied")]
        row.expect("guesses are logged", lines, f"{len(lines)} lines for {wrong.total()} guesses")
        expect_alive(row, running)


def handshakes(rig: Rig, row: Row) -> None:
    count = rig.size(50, 300)
    row.done = f"on a TLS port: {count} connections that send nothing, {count} that send garbage, {count} with half a handshake"
    with upstream() as url, tempfile.TemporaryDirectory(prefix="torture-") as name:
        authority = Authority(Path(name))
        files = authority.issue("localhost", "127.0.0.1")
        tls = {
            "BREAKLOOP_LIMITS_HEAD_SECONDS": "1",
            "BREAKLOOP_TLS_CERT_FILE": str(files.certificate),
            "BREAKLOOP_TLS_KEY_FILE": str(files.key),
        }
        with gateway(url, env=tls) as running:

            def ask(number: int) -> int:
                try:
                    with RawClient(running.port, tls=authority.client) as client:
                        client.send(chat(f"Client {number}."))
                        return client.answer().status
                except (OSError, CutShortError):
                    return CUT

            ask(0)
            before = running.files()
            hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
            garbage = request("GET", "/livez")
            with (
                idle(running.port, count),
                idle(running.port, count, garbage),
                idle(running.port, count, hello),
            ):
                statuses = Counter(ask(number) for number in range(1, 11))
                eventually(lambda: running.files() <= before + 5, "closed connections", within_s=60)
            row.expect("clients with TLS are served", statuses == {200: 10}, told(statuses))
            row.expect(
                "the others are closed after head_seconds", True, f"{running.files()} open files, {before} before"
            )
            expect_alive(row, running)


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {
    "idle-clients-few-files": traffic,
    "idle-clients-at-the-limit": full,
    "idle-clients-of-the-admin-port": admin,
    "guessed-admin-tokens": guesses,
    "unfinished-tls-handshakes": handshakes,
}
