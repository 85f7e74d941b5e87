"""The real command with its bundle elsewhere: behind a URL, in Redis, signed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bundle_server import BundleServer, bundle_server
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority
from tests.e2e.served import SRC, Served, eventually
from tests.redis_servers import Server

pytestmark = pytest.mark.e2e

TOKEN = "tok-canary-55"
Start = Callable[..., Served]


def bundle(version: int, *, burst: int = 1, more: str = "") -> str:
    return f"""\
bundle_version: {version}
policies:
  - id: team-{version}
    spec:
      selector: {{pathPrefix: /v1/}}
      rules:
        - name: per-team
          limit_keys: ["header:x-team"]
          algorithm: token_bucket
          algorithm_config: {{tokens_per_second: 0.001, burst: {burst}}}
{more}"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Served] = []

    def begin(*arguments: str, **environment: str) -> Served:
        started.append(Served(tmp_path, "--port", "0", *arguments, **environment))
        return started[-1].wait_listening()

    (tmp_path / "home").mkdir()
    yield begin
    for one in started:
        one.end()
    assert TOKEN not in (tmp_path / "log.jsonl").read_text(), "Y-1: the token is in the log"


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BREAKLOOP_", "XDG_"))}
    clean |= {"HOME": str(folder / "home"), "PYTHONPATH": str(SRC)}
    made = subprocess.run(
        [sys.executable, "-m", "breakloop", *arguments],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return made.returncode, made.stdout + made.stderr


def limits(served: Served, team: str) -> list[int]:
    return [served.decide("/v1/x", X_Team=team)[0] for _ in range(3)]


def version(served: Served) -> int:
    return int(served.ready()["bundle_version"])


def settled(server: BundleServer, count: int = 2) -> None:
    """Wait until it was asked so often more, so that whatever was there has been seen."""
    seen = len(server.seen)
    eventually(lambda: len(server.seen) >= seen + count, "looks at the URL")


def test_a_bundle_behind_a_url(start: Start, tmp_path: Path) -> None:
    """In force when it is asked again, refused when it is bad, forced by SIGHUP, kept over a restart (B-3, T-2)."""
    with bundle_server() as server:
        page = server.put("/policy.yaml", bundle(1), etag='"1"')
        url, poll = server.url + "/policy.yaml", {"BREAKLOOP_POLICY_POLL_SECONDS": "0.5"}
        served = start("--policy", url, BREAKLOOP_POLICY_TOKEN=TOKEN, **poll)
        assert any(f"{url}, version 1, 1 policy" in line for line in served.banner)
        assert limits(served, "a") == [200, 429, 429]
        settled(server)
        assert server.gave[-1] == 304
        assert server.field("Authorization") == f"Bearer {TOKEN}"

        page.body, page.etag = bundle(2, burst=2).encode(), '"2"'
        eventually(lambda: version(served) == 2, "version 2")
        assert limits(served, "b") == [200, 200, 429]

        page.body, page.etag = bundle(3).replace("burst", "brust").encode(), '"3"'
        eventually(lambda: served.ready()["bundle_rejected"] == 1, "the rejection of a bad one")
        page.status = 500
        eventually(lambda: served.ready()["bundle_rejected"] == 2, "the server's error to be told")
        assert (version(served), limits(served, "c")) == (2, [200, 200, 429])

        page.body, page.etag, page.status = bundle(1).encode(), '"4"', 200
        served.process.send_signal(signal.SIGHUP)
        eventually(lambda: version(served) == 1, "version 1, asked for by a signal")
        assert served.stop() == 0
    problems = [line["problem"] for line in served.log("bundle.rejected")]
    assert "algorithm_config.burst: is required" in problems[0]
    assert "the server returned 500" in problems[1]

    again = start("--policy", url, **poll)
    assert (version(again), again.ready()["bundle_from"]) == (1, "last good copy")
    assert limits(again, "d") == [200, 429, 429]
    port = int(url.split(":")[2].split("/")[0])
    with bundle_server(port=port) as server:
        server.put("/policy.yaml", bundle(5))
        eventually(lambda: version(again) == 5, "the URL's return")
    assert again.ready()["bundle_from"] == "source"
    assert again.stop() == 0


def test_tls_and_signatures(start: Start, tmp_path: Path) -> None:
    """A private authority, a signed bundle; a changed or unsigned one is refused, the good one stays (B-3, B-4)."""
    authority = Authority(tmp_path)
    assert command(tmp_path, "bundle", "keygen")[0] == 0

    def sign(text: str) -> tuple[str, str]:
        (tmp_path / "p.yaml").write_text(text)
        assert command(tmp_path, "bundle", "sign", "p.yaml", "--key", "policy.key")[0] == 0
        return text, (tmp_path / "p.yaml.sig").read_text()

    with bundle_server(authority.issue("127.0.0.1").server) as server:
        first, signature = sign(bundle(1))
        page, beside = server.put("/p.yaml", first), server.put("/p.yaml.sig", signature)
        (tmp_path / "breakloop.yaml").write_text(
            f"policy: {server.url}/p.yaml\npolicy_poll_seconds: 0.2\n"
            f"policy_ca_file: {authority.file}\npolicy_public_key_file: policy.pub\n"
        )
        served = start()
        assert version(served) == 1
        page.body = bundle(2).encode()
        eventually(lambda: served.ready()["bundle_rejected"] == 1, "the refusal of what is not signed")
        beside.status = 404
        eventually(lambda: served.ready()["bundle_rejected"] == 2, "the refusal of what has no signature")
        assert (version(served), limits(served, "a")) == (1, [200, 429, 429])
        second, signature = sign(bundle(2))
        page.body, page.headers = second.encode(), {"X-Breakloop-Signature": signature.strip()}
        eventually(lambda: served.log("bundle.loaded")[-1]["version"] == 2, "the signed one, and its copy")
        assert version(served) == 2
        assert served.stop() == 0
    problems = [line["problem"] for line in served.log("bundle.rejected")]
    assert "has an invalid signature" in problems[0]
    assert "is not signed" in problems[1]
    again = start()
    assert (version(again), again.ready()["bundle_from"]) == (2, "last good copy")
    assert again.stop() == 0
    (copy,) = (tmp_path / "home/.local/share/breakloop/last-good").iterdir()
    copy.write_text(copy.read_text().replace("/v1/", "/v9/"))
    tampered = start()
    assert tampered.ready()["reason"] == "no_bundle_loaded"


def test_an_expired_bundle_goes_on(start: Start) -> None:
    """It keeps enforcing, and an event says so, once (B-5)."""
    with bundle_server() as server:
        server.put("/p.yaml", bundle(1, more="expires_at: 2020-01-01T00:00:00Z\n"))
        served = start("--policy", server.url + "/p.yaml", BREAKLOOP_POLICY_POLL_SECONDS="0.1")
        settled(server, 3)
        assert limits(served, "a") == [200, 429, 429]
        assert served.stop() == 0
    (event,) = served.log("bundle.expired")
    assert event["expired_at"] == "2020-01-01T00:00:00+00:00"


def test_a_bundle_is_pushed_to_all(start: Start, tmp_path: Path, redis_server: Server) -> None:
    """One push, two instances; what is there is shown; an older one is refused (B-3, X-3)."""

    def push(text: str, *more: str) -> tuple[int, str]:
        (tmp_path / "p.yaml").write_text(text)
        return command(tmp_path, "bundle", "push", "p.yaml", "--state", redis_server.url, *more)

    assert command(tmp_path, "bundle", "show", "--state", redis_server.url)[0] == 1
    assert push(bundle(1), "--by", "anna")[0] == 0
    two = [start("--policy", "redis", "--state", redis_server.url, "--data-dir", str(tmp_path / name)) for name in "ab"]
    assert [version(served) for served in two] == [1, 1]
    assert push(bundle(2, burst=2), "--json")[0] == 0
    eventually(lambda: [version(served) for served in two] == [2, 2], "version 2 everywhere")
    code, said = push(bundle(1))
    assert (code, "Redis has version 2" in said, "--force" in said) == (1, True, True)
    assert push(bundle(1), "--force")[0] == 0
    eventually(lambda: [version(served) for served in two] == [1, 1], "the forced version everywhere")
    code, said = command(tmp_path, "bundle", "show", "--state", redis_server.url, "--json")
    shown = json.loads(said)
    assert (code, shown["version"], shown["forced"], shown["signed"]) == (0, 1, True, False)
    code, said = command(tmp_path, "bundle", "show", "--state", redis_server.url, "--content")
    assert (code, said) == (0, bundle(1))
    assert [served.stop() for served in two] == [0, 0]
