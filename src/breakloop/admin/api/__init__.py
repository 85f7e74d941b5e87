"""The admin API: all operations and their routes.

Every operation is checked in the same way (role, path, parameters, body) and answered as JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from breakloop.admin.actions import AdminServices
from breakloop.admin.api import agents, alerts, bundle, history, orders, trees
from breakloop.admin.api.operations import (
    BODY_MAX,
    BUNDLE_MAX,
    PREFIX,
    Operation,
    OperationRequest,
    PlainText,
    checked_path,
    document,
    read_body,
    read_query,
)
from breakloop.admin.auth import identity
from breakloop.admin.errors import ApiError, fault_of
from breakloop.errors import BreakloopError

OPERATIONS: Final = (
    *agents.OPERATIONS,
    *history.OPERATIONS,
    *orders.OPERATIONS,
    *trees.OPERATIONS,
    *bundle.OPERATIONS,
    *alerts.OPERATIONS,
    *bundle.PROCESS_OPERATIONS,
)
DOCUMENT: Final = f"{PREFIX}/openapi.json"
_TAKE_BUNDLES: Final = {(one.method, PREFIX + one.path) for one in OPERATIONS if one.body is PlainText}


class _AgentName(Convertor[str]):
    """Matches any agent name, including slashes and line ends."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def api_routes(services: AdminServices) -> list[Route]:
    """Return the routes of all operations and of the OpenAPI document."""
    by_path: dict[str, list[Operation]] = {}
    for one in OPERATIONS:
        by_path.setdefault(one.path, []).append(one)
    register_url_convertor("agent", _AgentName())

    async def openapi(_request: Request) -> Response:
        return Response(_document(), media_type="application/json")

    routes = [_route(path, by_path[path], services) for path in _in_order(by_path)]
    return [Route(DOCUMENT, openapi, methods=["GET"]), *routes]


@cache
def _document() -> bytes:
    return encoded(document(OPERATIONS))


def body_max(scope: Scope) -> int:
    """Return the size limit of a request's body. It is needed before routing, because authentication reads forms."""
    return BUNDLE_MAX if (scope["method"], scope["path"]) in _TAKE_BUNDLES else BODY_MAX


def _in_order(paths: Iterable[str]) -> list[str]:
    """The longest paths first: an agent's name may end with "/kill"."""
    return sorted(paths, key=lambda path: path.count("/"), reverse=True)


def _pattern(path: str) -> str:
    return PREFIX + (path.replace("{id}", "{id:agent}") if path.startswith("/agents/") else path)


def _route(path: str, operations: list[Operation], services: AdminServices) -> Route:
    by_method = {one.method: one for one in operations}

    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await answer(by_method[method], services, request)

    return Route(_pattern(path), endpoint, methods=list(by_method), name=operations[0].name)


async def answer(operation: Operation, services: AdminServices, request: Request) -> Response:
    """Check a request, run its operation, and return the response."""
    try:
        who = identity(request)
        if operation.acts and not who.may_act:
            raise ApiError(403, f"your role is {who.role}, and this needs {operation.role}")
        query = read_query(operation, request.query_params)
        path = checked_path(request.path_params)
        body = await read_body(operation, request)
        found = await operation.handler(OperationRequest(services, who, request, path, query, body))
    except BreakloopError as error:
        fault = fault_of(error)
        if fault.status == 500:
            logging.getLogger("breakloop").exception("admin operation %s failed", operation.name)
        return fault.response()
    if isinstance(found, Response):
        return found
    return Response(encoded(found), operation.status, media_type="application/json")


def encoded(found: Any) -> bytes:
    """Return JSON. Types without a JSON form become text, infinite numbers null."""
    try:
        return msgspec.json.encode(found, enc_hook=_plain)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(msgspec.to_builtins(found, enc_hook=_plain)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, set | frozenset) else str(value)
