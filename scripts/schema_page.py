"""JSON Schema -> Markdown tables, one per object: for the generated pages about the bundle and the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def tables(schema: Schema, top: str) -> str:
    """Return a table for the schema itself, headed `top`, and one for each of its definitions in reading order."""
    parts = [_table(top, schema)]
    definitions: Schema = schema.get("$defs", {})
    parts += [_table(name, definitions[name]) for name in _reading_order(schema, definitions)]
    return "\n".join(parts)


def _reading_order(schema: Schema, definitions: Schema) -> list[str]:
    """Definitions as a reader meets them: breadth first from the top."""
    order: list[str] = []
    waiting: list[Schema] = [schema]
    while waiting:
        for name in _references({key: value for key, value in waiting.pop(0).items() if key != "$defs"}):
            if name not in order and "properties" in definitions[name]:
                order.append(name)
                waiting.append(definitions[name])
    return order


def _references(node: object) -> list[str]:
    if isinstance(node, Mapping):
        found = [node["$ref"].rpartition("/")[2]] if isinstance(node.get("$ref"), str) else []
        return found + [name for value in node.values() for name in _references(value)]
    if isinstance(node, list):
        return [name for value in node for name in _references(value)]
    return []


def _table(name: str, schema: Schema) -> str:
    lines = [f"## {name}", "", str(schema.get("description", "")).strip(), ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    required = schema.get("required", ())
    for field, said in schema.get("properties", {}).items():
        default = "required" if field in required else _default(said)
        meaning = str(said.get("description", "")).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| `{field}` | {_type(said)} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(said: Schema) -> str:
    value = said.get("default")
    # A block's own table says what its fields default to.
    return "" if value in (None, "", []) or isinstance(value, Mapping) else f"`{json.dumps(value)}`"


def _type(said: Schema) -> str:
    if "$ref" in said:
        name = said["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in said:
            kinds = [_type(option) for option in said[key] if option.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in said or "const" in said:
        return ", ".join(f"`{value}`" for value in said.get("enum", [said.get("const")]))
    kind = said.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_type(said['items'])}" if "items" in said else "list"
    if kind == "object":
        values = said.get("additionalProperties")
        return f"map to {_type(values)}" if isinstance(values, Mapping) and values else "map"
    return f"{kind}{_range(said)}"


def _range(said: Schema) -> str:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {said[key]:g}" for key, sign in words.items() if key in said and abs(said[key]) < 2**53]
    return f" {', '.join(bounds)}" if bounds else ""
