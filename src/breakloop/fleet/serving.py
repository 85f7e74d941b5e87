"""`breakloop serve` with several workers: binds the port, agrees on the secret, and runs the supervisor until a signal
comes. What each process does is in `worker` and `control`."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from breakloop.clock import SystemClock
from breakloop.errors import SettingsError
from breakloop.fleet.child import Child, launch
from breakloop.fleet.handover import WORKER, Handover
from breakloop.fleet.line import Say
from breakloop.fleet.started import Started
from breakloop.fleet.supervisor import Slot, Supervisor
from breakloop.gateway.listening import bind, url, why_not
from breakloop.gateway.sharing import Shares
from breakloop.observe.log import LogEvents, Logging, log
from breakloop.parts import check_ports
from breakloop.settings import Settings
from breakloop.state.data_dir import DataDir
from breakloop.state_parts import open_state


def serve(settings: Settings, ready: Callable[[Started], None], logging_: Logging) -> int:
    """Run a fleet until it is told to stop; returns the exit code."""
    logging_.start()
    try:
        return asyncio.run(_serve(settings, ready))
    finally:
        logging_.stop()


async def _serve(settings: Settings, ready: Callable[[Started], None]) -> int:
    check_ports(settings)
    with ExitStack() as stack:
        try:
            listeners = [stack.enter_context(one) for one in bind(settings.host, settings.port)]
        except OSError as error:
            raise SettingsError(why_not(settings.host, settings.port, error)) from None
        memory = os.memfd_create("breakloop-shares")
        stack.callback(os.close, memory)
        os.ftruncate(memory, 4 * settings.workers)
        basis = Handover(
            role=WORKER,
            number=0,
            workers=settings.workers,
            settings=settings,
            secret=await fleet_secret(settings),
            listeners=tuple(one.fileno() for one in listeners),
            shares=memory,
            mark=secrets.token_hex(8),
        )
        address = url(settings.host, listeners[0].getsockname()[1], tls=bool(settings.tls.cert_file))
        supervisor = _supervisor(basis)
        supervisor.on_stop = partial(_close, listeners)
        return await supervisor.run(
            lambda: ready(replace(Started(**supervisor.started), url=address, workers=settings.workers))
        )


def _close(listeners: list[socket.socket]) -> None:
    """From now on nobody is let in: connections must not wait in a queue that nobody looks at."""
    for one in listeners:
        one.close()


def _supervisor(basis: Handover) -> Supervisor:
    async def start(slot: Slot, heard: Callable[[Say], None]) -> Child:
        mine = replace(basis, role=slot.role, number=slot.number, first=slot.first)
        return await launch(mine if slot.role == WORKER else replace(mine, listeners=(), shares=-1), heard)

    shares = Shares(basis.shares, basis.workers)
    supervisor = Supervisor(
        basis.workers, start, SystemClock(), LogEvents(), grace_s=basis.settings.shutdown_grace_seconds
    )
    for slot in supervisor.workers:
        shares.absent(slot.number - 1)
    supervisor.on_death = lambda slot: shares.absent(slot.number - 1) if slot.role == WORKER else None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    return supervisor


async def fleet_secret(settings: Settings) -> str:
    """Return the secret that all processes use, or nothing where the settings name one."""
    if settings.secret.get_secret_value() or settings.secret_file:
        return ""
    opened = await open_state(settings)
    if opened.shared is not None:
        await opened.shared.close()
    if opened.secret:
        return opened.secret
    data = DataDir(Path(settings.data_dir))
    told = len(data.warnings)  # by the control process
    secret = data.kept_secret().decode()
    for warning in data.warnings[told:]:
        log(logging.WARNING, warning)
    return secret
