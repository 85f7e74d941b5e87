"""The JSON Schema for editors."""

from __future__ import annotations

from breakloop.policy.schema.bundle import bundle_json_schema


def test_json_schema_describes_every_field() -> None:
    """The schema ships, and reference pages are made from its descriptions (T-1)."""
    made = bundle_json_schema()
    assert made["$schema"].startswith("https://json-schema.org/")
    for name, block in {"Bundle": made, **made["$defs"]}.items():
        assert block["additionalProperties"] is False, name
        for field, about in block["properties"].items():
            assert len(about.get("description", "")) > 10, (name, field)


def test_json_schema_knows_both_spellings_and_short_forms() -> None:
    made = bundle_json_schema()["$defs"]
    assert {"rps", "tokens_per_second"} <= set(made["TokenBucketConfig"]["properties"])
    assert made["TokenBucketConfig"]["required"] == ["burst"]
    assert "pathPrefix" in made["Selector"]["properties"]
    assert len(made["Spec"]["properties"]["loop_detection"]["anyOf"]) == 3
    assert "name" not in made["TokenBucketRuleFallback"]["required"]
    assert "name" in made["TokenBucketRule"]["required"]
    assert {"type": "string"} in made["Allow"]["properties"]["tools"]["items"]["anyOf"]
