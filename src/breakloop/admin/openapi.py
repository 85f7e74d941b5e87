"""The OpenAPI 3.1 document, made from the table of operations: from the same types that check what comes in and shape
what goes out, and the bundle's own schema for an agent's settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from breakloop._version import __version__
from breakloop.admin.faults import CODES, ErrorAnswer
from breakloop.admin.operations import AgentChanges, NoQuery, Operation, Text
from breakloop.policy.schema_agents import Agent

PREFIX: Final = "/api/v1"
_REFERENCE: Final = "#/components/schemas/{name}"
_STATUSES: Final = {
    200: "Done.",
    201: "Made.",
    400: "Something is wrong with what was sent; `field` says where.",
    401: "There is no token, or it is not valid.",
    403: "The role may not do this, or the request may be forged.",
    404: "There is no such thing.",
    405: "The path has other methods.",
    409: "It cannot be done here as it is set up.",
    413: "The body is too large.",
    415: "The body has another form than JSON.",
    421: "The Host header names somebody else.",
    429: "Too many wrong tokens came from this address.",
    500: "A mistake of ours; the log has it.",
    503: "What is needed for it cannot be reached, or the audit log cannot be written.",
}
_DESCRIPTION: Final = (
    "See and steer a running breakloop. Send `Authorization: Bearer TOKEN`. Roles: `viewer` sees everything, "
    "`operator` acts, too. Times are seconds since 1970, money is in millionths of a dollar. Every action is in the "
    "audit log before it is answered. `shared: false` in an answer: it is in force here, and other instances get it "
    "as soon as their store can be reached. Errors have one shape."
)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document."""
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(PREFIX + one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "breakloop admin API", "version": __version__, "description": _DESCRIPTION},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _error(status, schemas) for status in sorted(CODES)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(operations: Sequence[Operation]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each type by the type, and what they refer to by name."""
    types: dict[str, Any] = {repr(ErrorAnswer): ErrorAnswer}
    for one in operations:
        for kind in (one.answer, one.body, one.query):
            if kind not in (None, Text, AgentChanges, NoQuery):
                types[repr(kind)] = kind
    made, components = msgspec.json.schema_components(list(types.values()), ref_template=_REFERENCE)
    agent = Agent.model_json_schema(ref_template=_REFERENCE.replace("{name}", "{model}"))
    components |= agent.pop("$defs", {})
    components["AgentChanges"] = _changes(agent)
    for kind in {repr(one.query): one.query for one in operations}.values():
        components.pop(kind.__name__, None)  # parameters stand where they are used
    by_type = dict(zip(types, made, strict=True))
    for kind in {repr(one.query): one.query for one in operations if one.query is not NoQuery}.values():
        by_type[repr(kind)] = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return by_type, components


def _changes(agent: dict[str, Any]) -> dict[str, Any]:
    """Each setting may be null, which takes it away."""
    properties = {}
    for name, said in agent["properties"].items():
        kept = {key: said[key] for key in ("title", "description") if key in said}
        choices = said.get("anyOf") or [{key: value for key, value in said.items() if key not in (*kept, "default")}]
        null = {"type": "null"}
        properties[name] = {**kept, "anyOf": [*choices, *([] if null in choices else [null])]}
    return {**agent, "title": "AgentChanges", "properties": properties}


def _operation(one: Operation, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "tags": [one.path.split("/")[1]],
        "x-role": one.role,
    }
    if one.acts:
        made["description"] = "For operators. Written to the audit log."
    parameters = [*_path_parameters(one), *_query_parameters(one, schemas)]
    if parameters:
        made["parameters"] = parameters
    if one.body is not None:
        made["requestBody"] = _body(one.body, schemas)
    made["responses"] = {str(status): _response(one, status, schemas) for status in one.statuses}
    return made


def _path_parameters(one: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
            "description": "URL-encoded; slashes too.",
        }
        for name in re.findall(r"{(\w+)}", one.path)
    ]


def _query_parameters(one: Operation, schemas: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    if one.query is NoQuery:
        return []
    schema = schemas[repr(one.query)]
    made = []
    for name, said in schema["properties"].items():
        plain = {key: value for key, value in said.items() if key != "description"}
        # A parameter that may be left out is not sent as null.
        choices = [choice for choice in plain.get("anyOf", ()) if choice != {"type": "null"}]
        if choices:
            plain = {**choices[0]}
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": plain}
        description = said.get("description") or plain.pop("description", "")
        if description:
            parameter["description"] = description
        made.append(parameter)
    return made


def _body(kind: type[msgspec.Struct], schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if kind is Text:
        text = {"schema": {"type": "string", "description": "The bundle, YAML or JSON."}}
        return {"required": True, "content": {"application/yaml": text, "text/plain": text}}
    reference = _REFERENCE.format(name="AgentChanges")
    schema = {"$ref": reference} if kind is AgentChanges else schemas[repr(kind)]
    required = kind is not AgentChanges and bool(msgspec.json.schema(kind)["$defs"][kind.__name__].get("required"))
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _response(one: Operation, status: int, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if status != one.status:
        return {"$ref": f"#/components/responses/{status}"}
    content: dict[str, Any] = {"application/json": {"schema": schemas[repr(one.answer)]}}
    if "follow" in one.query.__struct_fields__:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": _STATUSES[status], "content": content}


def _error(status: int, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    description = f"{_STATUSES[status]} Code `{CODES[status]}`, if nothing more is known."
    return {"description": description, "content": {"application/json": {"schema": schemas[repr(ErrorAnswer)]}}}
