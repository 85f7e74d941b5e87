"""The bundle's JSON Schema, for editors (`breakloop schema`): made from the models, so that it cannot disagree."""

from __future__ import annotations

from typing import Any

from breakloop.policy.schema import Bundle

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def bundle_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a bundle."""
    schema = Bundle.model_json_schema(by_alias=True)
    return {"$schema": DIALECT, "title": "breakloop policy bundle", **{k: v for k, v in schema.items() if k != "title"}}
