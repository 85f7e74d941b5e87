"""What is said about wrong data, without places: shared by the tests of the bundle's models."""

from __future__ import annotations

from typing import Any

from breakloop.policy.diagnostics import findings
from breakloop.policy.schema.types import Model, validate


def messages(model: type[Model], data: Any) -> list[str]:
    """Return the messages alone."""
    return [finding.message for finding in findings(validate(model, data)[1], data, model)]
