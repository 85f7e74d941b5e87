"""A process that orders and says so, over and over, until it is killed: see test_operator_crash."""

from __future__ import annotations

import sys
from pathlib import Path

from breakloop.clock import SystemClock
from breakloop.engine.engine import Engine
from breakloop.engine.operator import Operator
from breakloop.engine.quarantine import AGENT, Hold
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import FileOrderStore


def say(what: str, which: object) -> None:
    """Acknowledge."""
    sys.stdout.write(f"{what} {which}\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    """Give four kinds of orders by turns, and say each when it is acknowledged."""
    clock = SystemClock()
    engine = Engine(MemoryStore(), clock, Descriptors(ContextSettings(secret=b"x" * 32), clock))
    operator = Operator(
        engine, FileOrderStore(Path(folder), lambda trouble: sys.exit(str(trouble))), clock, lambda _: None
    )
    operator.start()
    number = 0
    while True:
        name = f"{number}"
        operator.kill("default", name, "by hand", "ann")
        say("killed", name)
        engine.quarantine.hold(Hold(AGENT, "default", name, name, clock.now(), float("inf"), "it loops"))
        say("held", name)
        switch = operator.set_switch("agent:id", name, "ann")
        say("set", switch)
        operator.release("default", agent=f"{number - 1}", by="bob")
        say("released", number - 1)
        operator.tick()
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
