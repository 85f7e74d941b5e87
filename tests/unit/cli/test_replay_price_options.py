"""The prices that `scan` and `replay` count with."""

from __future__ import annotations

import click
import pytest

from breakloop.cli.replay import pricing_of, tell_unpriced, unpriced_json
from breakloop.config.settings import Settings
from breakloop.model.call import Usage
from breakloop.replay.sessions import ByModel, ModelPricing

NOTHING: dict[str, object] = {"price_in": None, "price_out": None, "price_cached": None, "as_json": False}
OWN = Settings.model_validate(
    {"prices": {"models": {"own": {"input_usd_per_million": 2, "output_usd_per_million": "0.5"}}}}
)


def test_the_list_unless_options_say_otherwise() -> None:
    """The list unless options say otherwise (X-6, L-5)."""
    listed = pricing_of(NOTHING, OWN)
    assert isinstance(listed, ByModel)
    assert listed("own", Usage(1_000_000, 1_000_000)) == 2.5
    assert pricing_of(NOTHING | {"price_in": 3.0}, OWN) == ModelPricing(3.0, 0.0)
    assert pricing_of(NOTHING | {"price_out": 15.0, "price_cached": 1.0}, OWN) == ModelPricing(0.0, 15.0, 1.0)
    with pytest.raises(click.UsageError, match="needs --price-in"):
        pricing_of(NOTHING | {"price_cached": 1.0}, OWN)


def test_models_without_a_price_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A few of them, in one line, whatever their names hold; nothing when there are none (L-5)."""
    pricing = pricing_of(NOTHING, OWN)
    tell_unpriced(pricing)
    assert capsys.readouterr().err == ""
    for name in ("x\x1b[1m", *(f"m{number}" for number in range(6))):
        pricing(name, Usage(1, 1))
    tell_unpriced(pricing)
    assert capsys.readouterr().err.startswith("no price is known for m0, m1, m2, m3, m4 and 2 more: it is not included")
    assert len(unpriced_json(pricing)["unpriced_models"]) == 7
    assert unpriced_json(ModelPricing(1.0, 1.0)) == {}
