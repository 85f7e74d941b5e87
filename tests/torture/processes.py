"""kill -9 of every process of `breakloop serve --workers`, under load."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.fleet import Fleet, fleet, is_alive
from tests.e2e.served import eventually
from tests.e2e.steady_load import CLOSED
from tests.redis_servers import running
from tests.torture.gateway import BYSTANDERS, Rig, bystanders
from tests.torture.table import Row
from tests.torture.upstream import upstream

_CALM: Final = 100


def _replaced(started: Fleet, role: str, died: int) -> bool:
    return started.children().get(role, died) != died and started.ready()["bundle_version"] is not None


def every_process(rig: Rig, row: Row) -> None:
    rounds = rig.size(1, 5)
    row.done = f"two workers and the control process are killed one after the other under load, {rounds} times; then the supervisor"
    workers = ("worker 1", "worker 2")
    with upstream() as url, running() as server, tempfile.TemporaryDirectory(prefix="torture-") as name:
        with fleet(Path(name), server.url, "--upstream", f"openai={url}") as started:
            started.wait_ready()
            with bystanders(started.port) as others, others.watch(_CALM):
                for role in [*workers, "control 0"] * rounds:
                    died = started.kill(role)
                    eventually(lambda role=role, died=died: _replaced(started, role, died), "a new process")  # type: ignore[misc]
                    others.load.answers(_CALM)
            saw = others.saw
            good, cut = saw.statuses[200], saw.statuses[CLOSED]
            most = BYSTANDERS * len(workers) * rounds
            row.expect("every killed process is replaced", True, f"{3 * rounds} of {3 * rounds}")
            row.expect(
                f"at most one request a connection is cut, {most} in all",
                good + cut == len(saw.seen) and cut <= most,
                f"{good} succeeded, {cut} cut",
            )
            left = list(started.children().values())
            started.process.kill()
            eventually(lambda: not any(map(is_alive, left)), "the end of all processes")
            row.expect("without the supervisor, all others end and the port is free", True, f"{len(left)} ended")
        with fleet(Path(name), server.url, "--upstream", f"openai={url}") as started:
            started.wait_ready()
            row.expect("it starts again", started.ready()["workers"] == 2, "it does")


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {"kill-9-of-every-process": every_process}
