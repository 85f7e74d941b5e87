"""The bundle's JSON Schema, for editors (`breakloop schema`): made from the models, so that it cannot disagree."""

from __future__ import annotations

from typing import Any

from breakloop.policy.schema import Bundle

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def bundle_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a bundle."""
    schema = Bundle.model_json_schema(by_alias=True)
    _name_optional(schema["$defs"])
    return {"$schema": DIALECT, **schema, "title": "breakloop policy bundle"}


def _name_optional(definitions: dict[str, Any]) -> None:
    """A `fallback_limit` is a rule whose name may be left out."""
    limit = definitions["Spec"]["properties"]["fallback_limit"]
    rules = [choice["$ref"].rsplit("/", 1)[1] for choice in limit["anyOf"][0]["oneOf"]]
    for rule in rules:
        required = [field for field in definitions[rule]["required"] if field != "name"]
        definitions[f"{rule}Fallback"] = {**definitions[rule], "title": f"{rule}Fallback", "required": required}
    limit["anyOf"][0] = {"oneOf": [{"$ref": f"#/$defs/{rule}Fallback"} for rule in rules]}
