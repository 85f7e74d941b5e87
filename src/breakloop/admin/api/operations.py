"""The description of an API operation: route, role, parameters, body and response. `Operations` is a list of them.

Routes, validation and the OpenAPI 3.1 document are all derived from it, so they cannot differ. See decision 13 for
why this is not a framework.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from breakloop._version import __version__
from breakloop.admin.actions import Actions, AdminServices
from breakloop.admin.auth import OPERATOR, VIEWER, AdminIdentity
from breakloop.admin.errors import CODES, ApiError, ErrorResponse
from breakloop.history.store import History
from breakloop.policy.schema.bundle import Agent

BODY_MAX: Final = 64 * 1024
BUNDLE_MAX: Final = 16 * 1024 * 1024
_LAST: Final = 1e11  # the largest supported time
_AT: Final = " - at `$"
_NAMED: Final = re.compile(r"(missing required|contains unknown) field `(.*?)`")
_WORDS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
}


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


class PlainText(msgspec.Struct):
    """A body that is the text of a bundle, in YAML or JSON."""


class AgentChanges(msgspec.Struct):
    """A body that is an entry of the bundle's `agents`; validated by the bundle's schema."""


@dataclass(slots=True)
class OperationRequest:
    """A request that has passed all checks."""

    services: AdminServices
    identity: AdminIdentity
    http: Request
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def actions(self) -> Actions:
        """The actions of the operator who sent the request."""
        return Actions(self.services, self.identity)

    @property
    def project(self) -> str:
        return self.query.project or self.services.project

    async def past(self, ask: Callable[[History], Any]) -> Any:
        """Query the history, in a thread."""
        return await self.services.past(ask)


Handler = Callable[[OperationRequest], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path below /api/v1."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answer: Any
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    acts: bool = False  # changes something: operators only, and written to the audit log
    status: int = 200
    errors: tuple[int, ...] = ()  # in addition to those of every operation

    @property
    def role(self) -> str:
        return OPERATOR if self.acts else VIEWER

    @property
    def statuses(self) -> list[int]:
        """All statuses that it may answer with."""
        known = {self.status, 400, 401, 421, 429, 500, 503, *self.errors}
        if "{" in self.path:
            known.add(404)
        if self.method not in {"GET", "HEAD"}:
            known |= {403, 413}
        if self.body is not None and self.body is not PlainText:
            known.add(415)
        return sorted(known)


class Operations(list[Operation]):
    """The operations of one module. Called with fields of an `Operation`, it returns a decorator for its handler, whose
    docstring is the summary and whose return type describes the response."""

    def __call__(self, method: str, path: str, name: str, **more: Any) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            summary = (handler.__doc__ or "").partition("\n")[0].removesuffix(".")
            answer = get_type_hints(handler)["return"]
            if get_origin(answer) is UnionType:  # JSON, or a stream
                answer = next(one for one in get_args(answer) if not issubclass(one, Response))
            self.append(Operation(method, path, name, summary, handler, answer, **more))
            return handler

        return add


Name = Annotated[str, msgspec.Meta(max_length=256)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=_LAST, description="Seconds since 1970.")]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Most = Annotated[int, msgspec.Meta(ge=1, le=500, description="Maximum number of results.")]
Rows = list[Mapping[str, Any]]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="Reason, shown to people.")]
Ends = Annotated[
    float | str | None,
    msgspec.Meta(description="When it ends: seconds since 1970, or a time like 2027-01-31T18:00:00Z; null for never."),
]


def ends(given: float | str | None, name: str = "expires_at") -> float | None:
    """Parse a time that is a number or a text. Raises `ApiError`."""
    if not isinstance(given, str):
        if given is not None and given > _LAST:
            raise ApiError(400, "must be seconds since 1970", field=name)
        return given
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise ApiError(400, "must be a time like 2027-01-31T18:00:00Z", field=name) from None
    if found.tzinfo is None:
        raise ApiError(400, f"has no time zone: add Z for UTC: {given}Z", field=name)
    return found.timestamp()


def read_query(operation: Operation, given: QueryParams) -> Any:
    """Return the validated parameters of a request. Raises `ApiError`."""
    hints = get_type_hints(operation.query)
    lists = {name for name, hint in hints.items() if get_origin(hint) is list}
    raw: dict[str, Any] = {}
    for name in given:
        values = given.getlist(name)
        if name not in lists and len(values) > 1:
            raise ApiError(400, "is given twice", field=name)
        raw[name] = values if name in lists else values[0]
    _printable(raw, "")
    found = _converted(raw, operation.query, strict=False)
    for name in raw:
        if getattr(found, name) is None:  # msgspec reads the word null as None
            raise ApiError(400, "must not be null: leave it out", field=name)
    return found


async def read_body(operation: Operation, request: Request) -> Any:
    """Return the validated body of a request. Raises `ApiError`."""
    if operation.body is None:
        return None
    raw = await request.body()
    if operation.body is PlainText:
        return raw
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and kind != "application/json":
        raise ApiError(415, "send the body as application/json")
    try:
        data = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="bad_json") from None
    if operation.body is AgentChanges and not isinstance(data, dict):
        raise ApiError(400, "the body must be a map")
    _printable(data, "")
    return data if operation.body is AgentChanges else _converted(data, operation.body, strict=True)


def _converted(data: Any, kind: type[msgspec.Struct], *, strict: bool) -> Any:
    try:
        return msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _fault(str(error)) from None


def _fault(message: str) -> ApiError:
    """Turn a message of msgspec into an error with the name of the field."""
    named = _NAMED.search(message)
    plain, at, place = message.rpartition(_AT)
    plain, inside = (plain, place.removesuffix("`").removeprefix(".")) if at else (message, "")
    if named:
        field = f"{inside}.{named[2]}" if inside else named[2]
        return ApiError(400, "is required" if named[1].startswith("missing") else "is not known", field=field)
    plain = re.sub(r"^Expected `str` of length >= 1$", "must not be empty", plain)
    plain = re.sub(r"^Expected `(?:str|array)` of length <= (\d+)$", r"must have a length of at most \1", plain)
    plain = re.sub(r"^Expected `\w+` (>=|<=|>|<) (\S+)$", r"must be \1 \2", plain)
    plain = re.sub(r"`([a-z |]+)`", lambda kinds: _kinds(kinds[1]), plain).replace("Expected ", "must be ", 1)
    return ApiError(400, plain if inside else f"the body {plain}", field=inside)


def _kinds(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))


def _printable(value: Any, at: str) -> None:
    """Reject NUL characters: PostgreSQL cannot store them."""
    if isinstance(value, str):
        if "\0" in value:
            raise ApiError(400, "must not contain a NUL character", field=at)
    elif isinstance(value, dict):
        for name, item in value.items():
            _printable(name, at)
            _printable(item, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _printable(item, f"{at}[{index}]")


def checked_path(params: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parameters of a path. Raises `ApiError`."""
    _printable(dict(params), "")
    return params


PREFIX: Final = "/api/v1"
_REFERENCE: Final = "#/components/schemas/{name}"
_STATUSES: Final = {
    200: "Success.",
    201: "Created.",
    400: "The request is invalid; `field` names the place.",
    401: "There is no token, or it is not valid.",
    403: "The role is not sufficient, or the request may be forged.",
    404: "Not found.",
    405: "The path has no such method.",
    409: "Not possible with this configuration.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host header is not accepted.",
    429: "Too many wrong tokens from this address.",
    500: "Internal error; see the log.",
    503: "A dependency is unavailable, or the audit log cannot be written.",
}
_DESCRIPTION: Final = (
    "Observe and control a running breakloop. Send `Authorization: Bearer TOKEN`. Roles: `viewer` sees everything, "
    "`operator` also acts. Times are seconds since 1970, money is in millionths of a dollar. Every action is in the "
    "audit log before it is answered. `shared: false` in a response: it is active here, and other instances get it "
    "when their store is available. All errors have one shape."
)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
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
    """Return the schemas by type, and the components they refer to by name."""
    types: dict[str, Any] = {repr(ErrorResponse): ErrorResponse}
    for one in operations:
        for kind in (one.answer, one.body, one.query):
            if kind not in (None, PlainText, AgentChanges, NoQuery):
                types[repr(kind)] = kind
    made, components = msgspec.json.schema_components(list(types.values()), ref_template=_REFERENCE)
    agent = Agent.model_json_schema(ref_template=_REFERENCE.replace("{name}", "{model}"))
    components |= agent.pop("$defs", {})
    components["AgentChanges"] = _changes(agent)
    for kind in {repr(one.query): one.query for one in operations}.values():
        components.pop(kind.__name__, None)  # parameters are listed in their operation
    by_type = dict(zip(types, made, strict=True))
    for kind in {repr(one.query): one.query for one in operations if one.query is not NoQuery}.values():
        by_type[repr(kind)] = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return by_type, components


def _changes(agent: dict[str, Any]) -> dict[str, Any]:
    """Allow null for every setting, which removes it."""
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
        # A parameter that may be omitted is not sent as null.
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
    if kind is PlainText:
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
    return {"description": description, "content": {"application/json": {"schema": schemas[repr(ErrorResponse)]}}}
