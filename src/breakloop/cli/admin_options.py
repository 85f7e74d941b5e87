"""What the commands that talk to the admin API share: where it is, who asks, and the end of one that failed. The
talking itself is `admin_client`'s."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from breakloop.cli.admin_client import AdminClient, AdminError
from breakloop.cli.main import USAGE
from breakloop.cli.output import config_option, fail, json_option, settings_of

URL: Final = "http://127.0.0.1:8788"
TOKEN_FILE: Final = "admin-token"
EPILOG: Final = "Exit code 0: done; 1: it was refused; 2: the admin API cannot be reached; 3: called wrongly."
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN_MAX_S: Final = 10 * 366 * 86_400

F = TypeVar("F", bound=Callable[..., Any])


class Span(click.ParamType[float]):
    """A length of time: 90, 30s, 10m, 1h, 7d."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it in seconds."""
        found = _SPAN.fullmatch(str(value).strip().lower())
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
        if not 0 < seconds <= _SPAN_MAX_S:
            self.fail(f"{value!r} is no length of time: write it like 30s, 10m, 1h or 7d", param, ctx)
        return seconds


SPAN: Final = Span()


def admin_options(function: F) -> F:
    """Add `--url`, `--token`, `--config` and `--json`; the command gets a client, and whether JSON is wanted."""

    @wraps(function)
    def called(*, url: str, token: str, config: str, as_json: bool, **more: Any) -> Any:
        try:
            client = AdminClient(url, token or _kept_token(config, as_json=as_json))
            return function(client=client, as_json=as_json, **more)
        except AdminError as error:
            fail(str(error), as_json=as_json, code=error.code)

    token_text = "Its token; else BREAKLOOP_ADMIN_TOKEN, the settings, or the file admin-token in the data directory."
    options = (
        click.option("--url", metavar="URL", default=URL, show_default=True, help="Where the admin API is."),
        click.option("--token", metavar="TOKEN", default="", help=token_text),
        config_option,
        json_option,
    )
    for option in reversed(options):
        called = option(called)
    return called  # type: ignore[return-value]  # it is called as the command is


def project_option(function: F) -> F:
    """Add `--project`."""
    return click.option("--project", metavar="NAME", default="", help="Project; else the default one.")(function)


def _kept_token(config: str, *, as_json: bool) -> str:
    settings = settings_of(config, as_json=as_json).settings
    given = settings.admin_token.get_secret_value()
    if given or not settings.data_dir:
        return given
    file = Path(settings.data_dir) / TOKEN_FILE
    try:
        return file.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AdminError(f"{file}: cannot be read: {why}", USAGE) from None
