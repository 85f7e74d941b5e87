"""Whether a process has operations, and that it pays nothing where it has none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from breakloop.observe.log import LogEvents
from breakloop.seating import Nobody

SRC = Path(__file__).resolve().parents[2] / "src"


def test_nobody_does_nothing() -> None:
    """Events go where they went; there is nothing to run, and nothing to end."""
    nobody, events = Nobody(), LogEvents()

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
        "import sys, breakloop.runtime\n"
        "print([name for name in ('sqlalchemy', 'starlette', 'uvicorn', 'jinja2', 'prometheus_client')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
