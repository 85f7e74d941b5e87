"""One operation of the API: its place, who may use it, what it takes and what it answers. From this one description
come the route (`api`), the check of every field (here) and the OpenAPI document (`openapi`), so that they cannot
differ."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, get_origin, get_type_hints

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from breakloop.admin.actions import Actions
from breakloop.admin.auth import Identity
from breakloop.admin.faults import Fault
from breakloop.admin.services import OPERATOR, VIEWER, Services

BODY_MAX: Final = 64 * 1024
BUNDLE_MAX: Final = 16 * 1024 * 1024
_LAST: Final = 1e11  # beyond it no calendar goes
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
    """An operation without parameters."""


class Text(msgspec.Struct):
    """Stands for a body that is a bundle's text, YAML or JSON."""


class AgentChanges(msgspec.Struct):
    """Stands for a body that is an entry of the bundle's `agents`; checked by the bundle's own schema."""


@dataclass(slots=True)
class Asked:
    """A request that has passed every check: who asks for what."""

    services: Services
    identity: Identity
    request: Request
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def actions(self) -> Actions:
        """What whoever asks can do."""
        return Actions(self.services, self.identity)

    @property
    def project(self) -> str:
        """The project that is meant."""
        return self.query.project or self.services.project


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, below /api/v1."""

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[Asked], Awaitable[Any]]
    answer: Any
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    acts: bool = False  # changes something: for operators only, and in the audit log
    status: int = 200
    errors: frozenset[int] = field(default_factory=frozenset)  # beside those that every operation may have

    @property
    def role(self) -> str:
        """The least role that may use it."""
        return OPERATOR if self.acts else VIEWER

    @property
    def statuses(self) -> list[int]:
        """Every status that it may answer with."""
        known = {self.status, 400, 401, 421, 429, 500, 503, *self.errors}
        if "{" in self.path:
            known.add(404)
        if self.method not in {"GET", "HEAD"}:
            known |= {403, 413}
        if self.body is not None and self.body is not Text:
            known.add(415)
        return sorted(known)

    @property
    def body_max(self) -> int:
        """The largest body that it takes."""
        return BUNDLE_MAX if self.body is Text else BODY_MAX


# -- fields ------------------------------------------------------------------------------------------------------------

Name = Annotated[str, msgspec.Meta(max_length=256)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=_LAST, description="Seconds since 1970.")]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Most = Annotated[int, msgspec.Meta(ge=1, le=500, description="How many at most.")]
Ends = Annotated[
    float | str | None,
    msgspec.Meta(description="When it ends: seconds since 1970, or a time like 2027-01-31T18:00:00Z; null for never."),
]


def ends(given: float | str | None, name: str = "expires_at") -> float | None:
    """Return a moment that was given as a number or as text."""
    if not isinstance(given, str):
        if given is not None and given > _LAST:
            raise Fault(400, "is no time: seconds since 1970", field=name)
        return given
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise Fault(400, "must be a time like 2027-01-31T18:00:00Z", field=name) from None
    if found.tzinfo is None:
        raise Fault(400, f"has no time zone: add Z for UTC: {given}Z", field=name)
    return found.timestamp()


def read_query(operation: Operation, given: QueryParams) -> Any:
    """Return the parameters of a request, each checked. Raises `Fault`."""
    hints = get_type_hints(operation.query)
    lists = {name for name, hint in hints.items() if get_origin(hint) is list}
    raw: dict[str, Any] = {}
    for name in given:
        values = given.getlist(name)
        if name not in lists and len(values) > 1:
            raise Fault(400, "is given twice", field=name)
        raw[name] = values if name in lists else values[0]
    _printable(raw, "")
    found = _converted(raw, operation.query, strict=False)
    for name in raw:
        if getattr(found, name) is None:  # msgspec reads the word null so; here a parameter is left out instead
            raise Fault(400, "must not be null: leave it out", field=name)
    return found


async def read_body(operation: Operation, request: Request) -> Any:
    """Return the body of a request, checked. Raises `Fault`."""
    if operation.body is None:
        return None
    raw = await request.body()
    if operation.body is Text:
        return raw
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and kind != "application/json":
        raise Fault(415, "send the body as application/json")
    try:
        data = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(400, f"the body is no JSON: {error}", code="bad_json") from None
    if operation.body is AgentChanges:
        if not isinstance(data, dict):
            raise Fault(400, "the body must be a map")
        _printable(data, "")
        return data
    _printable(data, "")
    return _converted(data, operation.body, strict=True)


def _converted(data: Any, kind: type[msgspec.Struct], *, strict: bool) -> Any:
    try:
        return msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _fault(str(error)) from None


def _fault(message: str) -> Fault:
    """Put what msgspec found into plain words, with the name of the field."""
    named = _NAMED.search(message)
    plain, at, place = message.rpartition(_AT)
    plain, inside = (plain, place.removesuffix("`").removeprefix(".")) if at else (message, "")
    if named:
        field = f"{inside}.{named[2]}" if inside else named[2]
        return Fault(400, "is required" if named[1].startswith("missing") else "is not known", field=field)
    plain = re.sub(r"^Expected `str` of length >= 1$", "must not be empty", plain)
    plain = re.sub(r"^Expected `(?:str|array)` of length <= (\d+)$", r"must have a length of at most \1", plain)
    plain = re.sub(r"^Expected `\w+` (>=|<=|>|<) (\S+)$", r"must be \1 \2", plain)
    plain = re.sub(r"`([a-z |]+)`", lambda kinds: _kinds(kinds[1]), plain).replace("Expected ", "must be ", 1)
    return Fault(400, plain if inside else f"the body {plain}", field=inside)


def _kinds(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))


def _printable(value: Any, at: str) -> None:
    """No NUL in any text: not every database can keep it."""
    if isinstance(value, str):
        if "\0" in value:
            raise Fault(400, "must not have a NUL character in it", field=at)
    elif isinstance(value, dict):
        for name, item in value.items():
            _printable(name, at)
            _printable(item, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _printable(item, f"{at}[{index}]")


def checked_path(params: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parts of a path, if they can be names at all."""
    _printable(dict(params), "")
    return params
