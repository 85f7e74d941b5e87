"""HTML files and prices, shared by `scan` and `replay`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from breakloop.app.build import price_list
from breakloop.cli.output import fail
from breakloop.clock import SystemClock
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError
from breakloop.replay.html import Heading, page
from breakloop.replay.sessions import ByModel, ModelPricing, Pricing
from breakloop.replay.timeline import Timeline, shown


def write_html(name: str, heading: Heading, timelines: Iterable[Timeline]) -> None:
    """Write the report; exit with 1 if the file cannot be written."""
    try:
        Path(name).write_text(page(heading, timelines), encoding="utf-8", errors="replace")
    except OSError as error:
        fail(f"{name}: cannot be written: {error.strerror or error}")
    click.echo(f"report: {name}", err=True)


_DOLLARS: Final = click.FloatRange(min=0)
_SHOWN: Final = 5
_NAME_MAX: Final = 60
_Command = TypeVar("_Command", bound=Callable[..., Any])


def price_options(command: _Command) -> _Command:
    cached = "For a million read from a cache.  [a tenth of --price-in]"
    command = click.option("--price-cached", type=_DOLLARS, metavar="USD", help=cached)(command)
    answered = "US dollars for a million tokens answered."
    command = click.option("--price-out", type=_DOLLARS, metavar="USD", help=answered)(command)
    asked = "US dollars for a million tokens sent, of every model; else the list that `prices` shows."
    return click.option("--price-in", type=_DOLLARS, metavar="USD", help=asked)(command)


def pricing_of(options: Mapping[str, Any], settings: Settings) -> Pricing:
    asked, answered, cached = options["price_in"], options["price_out"], options["price_cached"]
    if asked is not None or answered is not None:
        return ModelPricing(asked or 0.0, answered or 0.0, cached)
    if cached is not None:
        raise click.UsageError("--price-cached needs --price-in")
    try:
        return ByModel(price_list(settings, SystemClock()).prices)
    except SettingsError as error:
        fail(str(error), as_json=options["as_json"])


def unpriced_json(pricing: Pricing) -> dict[str, list[str]]:
    """Return the models without a price, so that a total is not mistaken for complete."""
    names = sorted(pricing.unpriced) if isinstance(pricing, ByModel) else []
    return {"unpriced_models": names} if names else {}


def tell_unpriced(pricing: Pricing) -> None:
    names = unpriced_json(pricing).get("unpriced_models", [])
    if not names:
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    said = ", ".join(shown(name, _NAME_MAX) for name in names[:_SHOWN]) + more
    click.echo(f"no price is known for {said}: not in the sums (set prices.models, or --price-in)", err=True)
