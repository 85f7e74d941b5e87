"""Building blocks of the bundle's models: the strict base class, shared field types, and how a check reports a fault.
The messages of pydantic's own checks are reworded in `policy.diagnostics`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from ipaddress import ip_address
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from breakloop.errors import RequestError
from breakloop.policy import descriptors
from breakloop.policy.paths import normalise

LARGEST = 2**53  # whole numbers beyond it are not exact in every store


class Model(BaseModel):
    """Base of every block: unknown fields are refused, nothing is converted silently, nothing changes later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class SchemaFault(NamedTuple):
    """One finding of a cross-field check: where below the block, what, and why or what to do."""

    at: tuple[str | int, ...]
    message: str
    hint: str = ""


def fault(message: str, hint: str = "") -> PydanticCustomError:
    """Return the error that the check of one field raises; `policy.diagnostics` reads message and hint from it."""
    # The message goes through the context because pydantic reads braces in a message as fields of a template.
    return PydanticCustomError("breakloop", "{message}", {"message": message, "hint": hint})


def refuse(faults: list[SchemaFault]) -> None:
    """Report everything that a check of several fields found, each at its own place. An empty list is not an error."""
    if faults:
        details = [InitErrorDetails(type=fault(f.message, f.hint), loc=f.at, input=None) for f in faults]
        raise ValidationError.from_exception_data("bundle", details)


def refuse_field(name: str, message: str, hint: str = "") -> NoReturn:
    """Report one field of a block."""
    refuse([SchemaFault((name,), message, hint)])
    raise AssertionError


def require(block: BaseModel, *names: str) -> None:
    """Report the fields that an enabled block must have and has not."""
    refuse([SchemaFault((one,), "is required when enabled") for one in names if one not in block.model_fields_set])


Block = TypeVar("Block", bound=BaseModel)


def validate(model: type[Block], data: Any) -> tuple[Block | None, list[Any]]:
    """Return the block, or None and the list of errors that `policy.diagnostics` puts into words."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, list(error.errors(include_url=False))


class Shorthand:
    """Marks a field that may be written in a shorter form: `expand` turns that into the full one before validation.

    `short` is the JSON Schema of the short form, or None where it is the schema of one item of the list.
    """

    def __init__(self, expand: Callable[[Any], Any], short: dict[str, Any] | None = None) -> None:
        self._expand = expand
        self._short = short

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        full = handler(schema)
        short = self._short if self._short is not None else full["items"]
        return {"anyOf": [short, full]}


def one_as_list(value: Any) -> Any:
    """Turn a single block into a list of one."""
    return [value] if isinstance(value, dict) else value


_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")


def _timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _TIMESTAMP.fullmatch(value)
    if match is None:
        raise fault(f'"{value}" is not a timestamp', "write it like 2026-01-31T18:00:00Z")
    if match[2] is None:
        raise fault(f'timestamp "{value}" has no time zone', f'add Z for UTC, or an offset: "{value}Z"')
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise fault(f'timestamp "{value}" does not exist', "check the day, the hour and the offset") from None


def _descriptor(value: str) -> str:
    found = descriptors.fault(value)
    if found is not None:
        raise fault(*found)
    return descriptors.canonical(value)


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        raise fault(f"must be text, got the number {value!r}", "put it in quotes, so that 1.10 does not become 1.1")
    return str(value) if isinstance(value, int) else value


def _deny_status(value: Any) -> Any:
    if value == "auto" or (type(value) is int and 400 <= value <= 599):
        return value
    raise fault(f"must be auto or an HTTP status from 400 to 599, got {value!r}")


def _non_blank(value: str) -> str:
    if not value.strip():
        raise fault("must not be empty")
    return value


def check_descriptor_value(descriptor: str, value: str) -> str | None:
    """Return why `value` can never equal that descriptor, or None; only addresses can be checked beforehand."""
    if descriptor != "ip:address":
        return None
    try:
        ip_address(value)
    except ValueError:
        return f'"{value}" is not an IP address, so it can never match'
    return None


def check_path(path: str, wildcard_hint: str) -> None:
    """Raise unless `path` can be equal to, or the beginning of, a normalised request path.

    Requests are matched by their normal form, so a path that is not in it would silently match nothing.
    """
    if not path.startswith("/"):
        raise fault(f'must begin with "/", got "{path}"', f'write "/{path.split("://", 1)[-1].lstrip("*")}"')
    for mark, name in (("?", "a query"), ("#", "a fragment")):
        if mark in path:
            raise fault(f'"{path}" has {name}, which is not part of a path', f'write "{path.split(mark, 1)[0]}"')
    if "*" in path:
        raise fault(f'"{path}" has a wildcard', wildcard_hint)
    try:
        normal = normalise(path)
    except RequestError as error:
        raise fault(f'"{path}" can never match', f"a request is rejected when {error}") from None
    if normal != path:
        raise fault(f'"{path}" can never match', f'request paths are matched in normal form; write "{normal}"')


def _route(value: str) -> str:
    if value == "*":
        raise fault('must begin with "/", got "*"', 'write "/*"')
    check_path(value.removesuffix("*"), f'a * is only allowed at the end; write "{value.split("*", 1)[0]}*"')
    return value


Text = Annotated[str, AfterValidator(_non_blank)]
Timestamp = Annotated[datetime, BeforeValidator(_timestamp)]
Descriptor = Annotated[str, AfterValidator(_descriptor)]
DescriptorValue = Annotated[Text, Shorthand(_as_text, {"type": ["integer", "boolean"]})]
DenyStatus = Annotated[
    int | Literal["auto"],
    BeforeValidator(_deny_status),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 400, "maximum": 599}]}),
]
Route = Annotated[str, AfterValidator(_route)]
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST)]
CountInt = Annotated[int, Field(ge=0, le=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
CountFloat = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
