"""docs/how-to/several-instances.md: a Redis with the settings and the user that it advises. The user can do all that
breakloop does, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from breakloop.cli.doctor import examine_redis
from tests.deploy.tools import ROOT
from tests.e2e.served import serving
from tests.redis_servers import Server, running

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs" / "how-to" / "several-instances.md"


def command(client: redis.Redis, *words: str) -> object:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


@pytest.fixture
def server() -> Iterator[Server]:
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^ACL SETUSER breakloop (.*)$", page, re.MULTILINE)
    block = re.search(r"^```text\n(appendonly .*?)requirepass", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert block is not None
    settings = dict(line.split()[:2] for line in block[1].splitlines())
    assert len(settings) == 4
    with running(settings) as started:
        command(started.client(), "ACL", "SETUSER", "breakloop", *found[1].split())
        yield started


def test_it_may_do_what_is_needed(server: Server, tmp_path: Path) -> None:
    """Decisions, orders and bundles go through Redis with it, and `doctor` has nothing to complain of (S-2, B-3)."""
    # A busy machine is not a slow Redis: `doctor` warns of answers that take half of the time budget.
    url = f"redis://breakloop:PASSWORD@127.0.0.1:{server.port}/0?time_budget_ms=5000"
    with serving(tmp_path, "--state", url) as served:
        statuses = [served.decide("/v1/chat/completions", '{"messages": []}')[0] for _ in range(3)]
        assert statuses == [200, 200, 200]
        assert served.ready()["degraded"] is False
        assert [line for line in served.log() if line["level"] not in {"info", "debug"}] == []
    assert [finding for finding in examine_redis(url) if finding.level != "note"] == []
    assert command(server.client(), "ACL", "LOG") == []


def test_it_may_not_do_more(server: Server) -> None:
    """Keys of others, and commands that empty or reconfigure a server."""
    with server.client(username="breakloop", password="PASSWORD") as client:
        client.set("bl:mine", 1)
        for words in (("GET", "theirs"), ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "SET", "maxmemory", "1")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                command(client, *words)
