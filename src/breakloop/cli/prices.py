"""`breakloop prices`: print the price of a model and the list it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any, Final, NoReturn

import click

from breakloop.app.build import PriceList, price_list
from breakloop.cli.main import PROBLEM
from breakloop.cli.output import config_option, end, fail, json_option, print_json, settings_of
from breakloop.clock import SystemClock
from breakloop.model.call import Usage
from breakloop.pricing.prices import FoundPrice, Price, Prices, cost_microusd, dollars

_NEAR: Final = 5
_COUNT: Final = click.IntRange(min=0, max=2**53)
_KINDS: Final = {"input": "", "cached": "input", "cache_write": "input", "output": "", "reasoning": "output"}
_UNKNOWN: Final = {
    "warn": "a model without a price costs nothing; a warning is logged",
    "deny": "a model without a price is denied where money is limited",
    "assume": "a model without a price is assumed to cost",
}


@click.command(name="prices", epilog="Exit code 0: the price is known, or no MODEL was given; 1: it is not known.")
@click.argument("model", required=False, default="")
@click.option("--provider", metavar="NAME", default="", help="Provider, or the name of an upstream.")
@click.option(
    "--input", "asked", type=_COUNT, metavar="N", help="Input tokens, including cached ones; prints their cost."
)
@click.option("--output", "answered", type=_COUNT, metavar="N", help="Output tokens, including reasoning.")
@click.option("--cached", type=_COUNT, metavar="N", help="Input tokens that are read from the cache.")
@click.option("--cache-write", type=_COUNT, metavar="N", help="Input tokens that are written to the cache.")
@click.option("--reasoning", type=_COUNT, metavar="N", help="Output tokens that are reasoning.")
@config_option
@json_option
def command(model: str, provider: str, **options: Any) -> None:
    """Show the price of a model in US dollars per million tokens, and the list it comes from.

    Prices in the settings come first, then those of the price file (`prices.file`), then the table that ships with
    the package. No network is used. Without a MODEL, the lists are shown with the number of models they contain.
    """
    as_json = options["as_json"]
    counts = [options[name] for name in ("asked", "answered", "cached", "cache_write", "reasoning")]
    usage = Usage(*(count or 0 for count in counts)) if any(count is not None for count in counts) else None
    if usage is not None:
        _check(usage, model)
    listed = price_list(settings_of(options["config"]).settings, SystemClock())
    if not model:
        _tell_lists(listed, as_json=as_json)
        return
    found = listed.prices.look_up(provider, model)
    if found is None:
        _unknown(listed.prices, model, as_json=as_json)
    elif as_json:
        print_json(_json(model, found, usage))
    else:
        click.echo("\n".join(_lines(model, found, usage)))


def _check(usage: Usage, model: str) -> None:
    if not model:
        raise click.UsageError("give a MODEL to count tokens for")
    if usage.cached_tokens + usage.cache_write_tokens > usage.input_tokens:
        raise click.UsageError("--cached and --cache-write together must not exceed --input")
    if usage.reasoning_tokens > usage.output_tokens:
        raise click.UsageError("--reasoning must not exceed --output")


def _lines(model: str, found: FoundPrice, usage: Usage | None) -> Iterator[str]:
    yield f"{model}: {found.name}, from {found.source}"
    yield ""
    yield "US dollars for a million tokens:"
    yield from _kinds(found.price)
    for tier in found.price.tiers:
        yield f"calls with more than {tier.above_tokens:,} tokens of input:"
        yield from _kinds(tier.price)
    if usage is not None:
        yield ""
        yield f"{_said(usage)}: ${dollars(cost_microusd(found.price, usage)):,.6f}"


def _kinds(price: Price) -> Iterator[str]:
    for kind, part_of in _KINDS.items():
        amount = getattr(price, kind)
        shown = _dollars(amount) if amount is not None else f"as {part_of}"
        yield f"  {kind.replace('_', ' '):<12} {shown:>12}"
    if price.call:
        yield f"  {'each call':<12} {_dollars(price.call):>12}"


def _dollars(microusd: int) -> str:
    """Format with at least two decimals, and no more than necessary."""
    text = f"{dollars(microusd):,.6f}"
    whole, _, rest = text.partition(".")
    return f"{whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def _said(usage: Usage) -> str:
    parts = {"cached": usage.cached_tokens, "cache write": usage.cache_write_tokens}
    of_input = ", ".join(f"{count:,} {name}" for name, count in parts.items() if count)
    said = f"{usage.input_tokens:,} input" + (f" ({of_input})" if of_input else "")
    said += f" and {usage.output_tokens:,} output"
    return said + (f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else "")


def _json(model: str, found: FoundPrice, usage: Usage | None) -> dict[str, Any]:
    content: dict[str, Any] = {"ok": True, "model": model, "name": found.name, "source": found.source}
    content |= _price_json(found.price)
    content["call_usd"] = _dollars(found.price.call)
    tiers = [{"above_input_tokens": tier.above_tokens, **_price_json(tier.price)} for tier in found.price.tiers]
    content["tiers"] = tiers
    if usage is not None:
        content["usage"] = {name: count for name, count in usage._asdict().items() if name.endswith("_tokens")}
        content["cost_microusd"] = cost_microusd(found.price, usage)
    return content


def _price_json(price: Price) -> dict[str, Any]:
    """Return all prices as strings, so that they stay exact."""
    amounts: dict[str, Any] = {}
    for kind, part_of in _KINDS.items():
        amount = getattr(price, kind)
        amounts[f"{kind}_usd_per_million"] = _dollars(getattr(price, part_of) if amount is None else amount)
    return amounts


def _unknown(prices: Prices, model: str, *, as_json: bool) -> NoReturn:
    """Report that no price is known, suggest similar models, and explain the consequence."""
    near = _near(prices, model)
    if as_json:
        error = f"no price is known for {model}"
        print_json({"ok": False, "error": error, "nearest": near, "unknown_model": prices.unknown})
        end(PROBLEM)
    said = "input_usd_per_million: 2.50, output_usd_per_million: 10"
    lines = [
        f"no price is known for {model}",
        *([f"  nearest: {', '.join(near)}"] if near else []),
        f"  {_follows(prices)} (prices.unknown_model: {prices.unknown})",
        "  set one in breakloop.yaml, for example:",
        f'    prices: {{models: {{"{model}": {{{said}}}}}}}',
    ]
    fail("\n".join(lines), as_json=False)


def _near(prices: Prices, model: str) -> list[str]:
    names = {name.lower(): name for table in reversed(prices.tables) for name in table.names()}
    bare = {name.rpartition("/")[2]: name for name in names}
    last = model.lower().rpartition("/")[2]
    matches = get_close_matches(model.lower(), names, _NEAR) or get_close_matches(last, bare, _NEAR)
    return [names[bare.get(name, name)] for name in matches]


def _follows(prices: Prices) -> str:
    said = _UNKNOWN[prices.unknown]
    if prices.assumed is None:
        return said
    return f"{said} {_dollars(prices.assumed.input)} for input, {_dollars(prices.assumed.output)} for output"


def _tell_lists(listed: PriceList, *, as_json: bool) -> None:
    counts = [(table.source, sum(1 for _ in table.names())) for table in listed.prices.tables]
    if not as_json:
        click.echo("\n".join(_list_lines(counts, listed)))
        return
    lists = [{"source": source, "models": count} for source, count in counts]
    problems = [asdict(problem) for problem in listed.problems]
    print_json({"ok": True, "lists": lists, "unknown_model": listed.prices.unknown, "problems": problems})


def _list_lines(counts: Sequence[tuple[str, int]], listed: PriceList) -> Iterator[str]:
    width = max(len(f"{count:,}") for _, count in counts)
    yield "Prices are looked up in this order:"
    for source, count in counts:
        yield f"  {count:>{width},} {'model ' if count == 1 else 'models'}  {source}"
    yield f"{_follows(listed.prices)} (prices.unknown_model: {listed.prices.unknown})"
    if listed.problems:
        yield f"left out, {len(listed.problems)} of the file:"
        yield from (f"  {problem}" for problem in listed.problems)
