"""Entry point of child processes: `python -m breakloop.app.workers ROLE NUMBER FD`; the child reads its configuration
from the descriptor FD."""

from __future__ import annotations

import sys
from importlib import import_module

from breakloop.app.workers.ipc import CONTROL, read_config
from breakloop.observe.log import Logging


def main() -> int:
    """Run as a worker or as the control process; returns the exit code."""
    config = read_config(int(sys.argv[3]))
    settings = config.settings
    always = {} if config.role == CONTROL else {"worker": config.number}
    logging = Logging(sys.stderr, settings.log_level, settings.log_format, always)
    logging.start()
    try:
        code: int = import_module(f"breakloop.app.workers.{config.role}").run(config)
    finally:
        logging.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
