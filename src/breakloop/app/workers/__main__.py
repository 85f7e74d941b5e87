"""The supervisor starts `python -m breakloop.app.workers ROLE NUMBER FD`; FD is where the child reads its settings."""

from __future__ import annotations

import sys
from importlib import import_module

from breakloop.app.workers.ipc import CONTROL, read
from breakloop.observe.log import Logging


def main() -> int:
    """Be what was handed over; returns the exit code."""
    handover = read(int(sys.argv[3]))
    settings = handover.settings
    always = {} if handover.role == CONTROL else {"worker": handover.number}
    logging = Logging(sys.stderr, settings.log_level, settings.log_format, always)
    logging.start()
    try:
        code: int = import_module(f"breakloop.app.workers.{handover.role}").run(handover)
    finally:
        logging.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
