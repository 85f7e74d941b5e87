"""Starts the processes of `streams_load` and reads what they tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.deadlines import DEADLINE_S
from tests.e2e.served import SRC

MODULE = "tests.e2e.streams_load"


class Part:
    """One of the processes, whose lines of JSON are read one by one."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        # Without coverage: it would measure itself. Nor may a developer's settings reach the server.
        unwanted = ("BREAKLOOP_", "COV_", "COVERAGE_", "XDG_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        clean |= {"HOME": str(folder), "PYTHONPATH": os.pathsep.join((str(SRC), str(SRC.parent)))}
        self._errors = folder / f"{arguments[0]}.log"
        with self._errors.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                cwd=folder,
                env=clean,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        read = self.process.stdout.readline()
        assert read, self._errors.read_text()[-2000:]
        found: dict[str, Any] = json.loads(read)
        return found

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGTERM)
        found = self.line()
        assert self.process.wait(DEADLINE_S) == 0
        return found

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._errors.read_text().splitlines()]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
