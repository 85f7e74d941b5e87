"""Whether a process has operations, and that it pays nothing where it has none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from breakloop.app.operations_base import NoOperations, sources_of
from breakloop.app.runtime import Runtime
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.observe.log import LogEvents
from breakloop.observe.metric_table import gather

SRC = Path(__file__).resolve().parents[3] / "src"


def test_nobody_does_nothing() -> None:
    """Events go where they went; there is nothing to run, and nothing to end."""
    nobody, events = NoOperations(), LogEvents()

    async def life() -> None:
        nobody.load()
        await nobody.start()
        await nobody.finish()

    asyncio.run(life())
    assert nobody.listening(events) is events
    assert (nobody.jobs(), nobody.admin_url, nobody.new_token) == ([], "", "")


def test_without_it_no_framework_is_imported() -> None:
    """DESIGN: the data plane is not slowed down by what it does not use."""
    program = (
        "import sys, breakloop.app.runtime\n"
        "print([name for name in ('sqlalchemy', 'starlette', 'uvicorn', 'jinja2', 'prometheus_client')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_a_process_counts_is_found(tmp_path: Path) -> None:
    """Connections to upstreams, when the bundle was put in force, when the state was saved (G-5)."""
    (tmp_path / "b.yaml").write_text("bundle_version: 3\npolicies: []\n")
    given = {"data_dir": str(tmp_path), "secret": "s", "admin_port": 0, "policy": str(tmp_path / "b.yaml")}

    async def life() -> None:
        runtime = Runtime(Settings.model_validate(given), clock=FakeClock(500.0))
        runtime.load()
        before = gather(sources_of(runtime, None, 0.0, dict))
        assert "breakloop_upstream_connections_open" not in before.sums
        assert before.sums["breakloop_processes"] == {(): 0}
        runtime.server = runtime._server()
        found = gather(sources_of(runtime, None, 0.0, dict))
        upstreams = found.sums["breakloop_upstream_connections_open"]
        assert ("openai",) in upstreams
        assert found.highest["breakloop_bundle_loaded_timestamp_seconds"] == {(): 500.0}
        assert found.counters["breakloop_state_problems_total"] == {(): 0}
        await runtime.server.stop(0.0)
        await runtime.state.finish()

    asyncio.run(life())
