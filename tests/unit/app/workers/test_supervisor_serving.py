"""What stands around the supervisor: the port, the secret. The whole is in tests/e2e/test_workers.py."""

from __future__ import annotations

import asyncio
import io
import socket
from pathlib import Path

import pytest

from breakloop.app.workers.control import StartupSummary
from breakloop.app.workers.supervisor import common_secret, serve
from breakloop.config.settings import Settings
from breakloop.errors import FleetError, SettingsError
from breakloop.observe.log import Logging


def settings(tmp_path: Path, **values: object) -> Settings:
    made = Settings.model_validate({"data_dir": str(tmp_path / "data"), "admin_port": 0, "port": 0, **values})
    return made.model_copy(update={"workers": 2})  # memory:// is for one process: here only what comes before that


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """Before any process is started (S-5)."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^127\.0\.0\.1:{port} is in use \(stop the other program"):
            serve(settings(tmp_path, port=port), lambda _seen: None, Logging(io.StringIO()))


def test_the_admin_port_is_looked_at_too(tmp_path: Path) -> None:
    """The control process would meet it after it has opened the history of the instance that has it (S-5)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = settings(tmp_path, admin_port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match=r"is in use .* --admin-port"):
            serve(busy, lambda _seen: None, Logging(io.StringIO()))
    assert not (tmp_path / "data").exists()


def test_all_have_one_secret(tmp_path: Path) -> None:
    """The one that is kept, made if need be; none of its own where the settings name one (S-5)."""
    made = asyncio.run(common_secret(settings(tmp_path)))
    assert (tmp_path / "data/secret").read_text().strip() == made
    assert asyncio.run(common_secret(settings(tmp_path))) == made
    assert asyncio.run(common_secret(settings(tmp_path, secret="given"))) == ""
    (tmp_path / "file").write_text("x")
    assert asyncio.run(common_secret(settings(tmp_path, secret_file=str(tmp_path / "file")))) == ""
    (tmp_path / "blocked").write_text("a file where a directory should be")
    alone = settings(tmp_path, data_dir=str(tmp_path / "blocked"))
    assert asyncio.run(common_secret(alone)) != asyncio.run(common_secret(alone))


@pytest.mark.e2e
def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """Real processes; what one of them says is what the command prints (S-5, E-0)."""
    seen: list[StartupSummary] = []
    (tmp_path / "b.yaml").write_text("bundle_version: 0\n")
    strict = settings(tmp_path, policy=str(tmp_path / "b.yaml"), strict=True)
    with pytest.raises(FleetError, match="bundle_version"):
        serve(strict, seen.append, Logging(io.StringIO()))
    assert seen == []
