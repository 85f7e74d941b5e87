"""Errors of the admin API, all of the shape `{"error": {code, message, field?}}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec
from starlette.responses import JSONResponse

from breakloop.errors import (
    AlertError,
    BreakloopError,
    BundleError,
    HistoryError,
    OrderError,
    SettingsError,
    StateError,
)

CODES: Final = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    421: "misdirected",
    429: "slow_down",
    500: "internal",
    503: "unavailable",
}


class ErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong."""

    code: str
    message: str
    field: str = ""
    problems: list[dict[str, Any]] = []


class ErrorResponse(msgspec.Struct):
    """The shape of every error."""

    error: ErrorBody


class ApiError(BreakloopError):
    """An error response; `headers` are added to it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "",
        field: str = "",
        problems: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or CODES[status]
        self.field = field
        self.problems = problems
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.field:
            error["field"] = self.field
        if self.problems:
            error["problems"] = [dict(one) for one in self.problems]
        return JSONResponse({"error": error}, self.status, self.headers)


def fault_of(error: BreakloopError) -> ApiError:
    """Return the response for an error of another package."""
    match error:
        case ApiError():
            return error
        case OrderError():
            return order_fault(error)
        case BundleError():
            problems = [asdict(problem) for problem in error.problems]
            return ApiError(400, str(error.problems[0]), code="bundle_refused", problems=problems)
        case AlertError():
            return ApiError(400, str(error), code="target_refused", field="url")
        case SettingsError():
            return ApiError(409, str(error))
        case HistoryError():
            return ApiError(503, str(error), code="no_history")
        case StateError():
            return ApiError(503, str(error), code="no_state")
    return ApiError(500, str(error))


def order_fault(error: OrderError) -> ApiError:
    """The message of an order error begins with the name of the field and a colon."""
    field, colon, _ = error.problems[0].partition(": ")
    named = field.partition(".")[0].partition("[")[0]
    return ApiError(400, str(error), field=field if colon and named.isidentifier() else "")
