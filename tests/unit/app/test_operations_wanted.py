"""Whether a process has operations, and that it pays nothing where it has none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from breakloop.app.build import operations_wanted
from breakloop.app.runtime import Runtime
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.observe.metrics import collect

SRC = Path(__file__).resolve().parents[3] / "src"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({"admin_port": 8788}, True), ({"history": "past.db"}, True), ({}, False), ({"history": "off"}, False)],
)
def test_operations_where_they_are_wanted(given: dict[str, object], wanted: bool) -> None:
    """An admin server, or a history that was asked for; port 0 and `off` are off (X-1, G-2, T-2)."""
    assert operations_wanted(Settings.model_validate({"admin_port": 0, **given})) is wanted


@pytest.mark.slow
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
        assert runtime.operations is None
        runtime.load()
        before = collect(runtime.metric_sources()).values
        assert "breakloop_upstream_connections_open" not in before
        assert before["breakloop_processes"] == {(): 0}
        runtime.server = runtime._server()
        found = collect(runtime.metric_sources()).values
        upstreams = found["breakloop_upstream_connections_open"]
        assert ("openai",) in upstreams
        assert found["breakloop_bundle_loaded_timestamp_seconds"] == {(): 500.0}
        assert found["breakloop_state_problems_total"] == {(): 0}
        await runtime.server.stop(0.0)
        await runtime.state.finish()

    asyncio.run(life())
