"""Entry point of child processes: `python -m breakloop.app.workers ROLE NUMBER FD`; the child reads its configuration
from the descriptor FD."""

from __future__ import annotations

import asyncio
import sys

from breakloop.app.build import run_event_loop
from breakloop.app.workers.control import Control
from breakloop.app.workers.ipc import CONTROL, ChildConfig, read_config
from breakloop.app.workers.worker import Worker
from breakloop.observe.log import Logging


def main() -> int:
    """Run as a worker or as the control process; returns the exit code."""
    config = read_config(int(sys.argv[3]))
    settings = config.settings
    always = {} if config.role == CONTROL else {"worker": config.number}
    logging = Logging(sys.stderr, settings.log_level, settings.log_format, always)
    logging.start()
    try:
        return asyncio.run(_run(Control, config)) if config.role == CONTROL else run_event_loop(_run(Worker, config))
    finally:
        logging.stop()


async def _run(role: type[Control | Worker], config: ChildConfig) -> int:
    return await role(config).run()


if __name__ == "__main__":
    sys.exit(main())
