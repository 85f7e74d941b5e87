"""What a new process gets from the supervisor."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from breakloop.app.workers.ipc import WORKER, ChildConfig, read_config, write_config
from breakloop.config.settings import Settings


def settings() -> Settings:
    values = {
        "port": 0,
        "workers": 3,
        "state": "redis://:sk-redis@127.0.0.1:1/0",
        "jwt": {"secret": "sk-jwt", "leeway_seconds": 1.5},
        "debug_secret": "sk-debug",
        "prices": {"models": {"m": {"input_usd_per_million": 2.5, "output_usd_per_million": "0.000001"}}},
        "trusted_proxies": ["10.0.0.0/8"],
    }
    return Settings.model_validate(values)


def test_it_arrives_as_it_was_given() -> None:
    """Every setting, secrets and exact amounts too; a process of several is one process (S-5)."""
    given = ChildConfig(WORKER, 2, 3, settings(), pipe=7, listeners=(8, 9), connection_counts=10, mark="m", first=False)
    found = read_config(write_config(given))
    assert found.settings == settings().model_copy(update={"workers": 1})
    assert found.settings.jwt.secret.get_secret_value() == "sk-jwt"
    assert found == replace(given, settings=found.settings)


def test_the_secret_of_the_fleet_becomes_a_setting() -> None:
    """All processes have the same, whoever made it (S-5)."""
    found = read_config(write_config(ChildConfig(WORKER, 1, 2, settings(), secret="shared")))
    assert found.settings.secret.get_secret_value() == "shared"


def test_nothing_is_left_on_a_disk() -> None:
    """It is in memory, and gone with its last descriptor (Y-1)."""
    fd = write_config(ChildConfig(WORKER, 1, 2, settings()))
    assert "memfd:" in str(Path(f"/proc/self/fd/{fd}").readlink())
    read_config(fd)
    try:
        os.fstat(fd)
    except OSError:
        return
    raise AssertionError("the descriptor is still open")
