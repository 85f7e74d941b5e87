"""A process that takes events and sends them until it is killed: `python -m tests.e2e.alerts_process FOLDER URL FIRST`.
It registers a webhook if there is none, and says how many events are on disk."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from breakloop.alerts.service import Alerts
from breakloop.alerts.transport import DeliveryContext
from breakloop.app.build import aside
from breakloop.clock import SystemClock
from tests.alert_world import loop
from tests.deadlines import DEADLINE_S

AGENTS = 5


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(folder: str, url: str, first: int) -> None:
    clock = SystemClock()
    alerts = Alerts(Path(folder), DeliveryContext(clock, aside, timeout_s=DEADLINE_S))
    alerts.load()
    if not alerts.webhooks():
        alerts.add_webhook(url, [], allow_private=True)
    job = asyncio.create_task(alerts.run())
    if first >= 0:
        for number in range(first, 100_000):
            event = loop(f"agent-{number % AGENTS}", clock.now(), hit_count=number)
            await aside(lambda event=event: alerts.take([event]))  # type: ignore[misc]
            say(f"kept {number}")
    await job


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
