"""Bundle model of a policy's selector (SPEC B-1, R-1): which requests a policy is for. Matching is `policy.routes`'."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Annotated

from pydantic import AfterValidator, Field

from breakloop.policy.paths import normalise_host
from breakloop.policy.schema_types import Model, check_path, fault
from breakloop.policy.suggest import did_you_mean

# fmt: off
METHODS = (
    "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "COPY", "LOCK", "MKCOL", "MOVE",
    "PROPFIND", "PROPPATCH", "SEARCH", "UNLOCK", "BIND", "REBIND", "UNBIND", "ACL", "REPORT", "MKACTIVITY", "CHECKOUT",
    "MERGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE", "PURGE", "MKCALENDAR", "LINK", "UNLINK", "SOURCE",
    "QUERY",
)
# fmt: on
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")


def _path(value: str) -> str:
    check_path(value, f'pathPrefix matches everything below it; write "{value.split("*", 1)[0]}"')
    return value


def _method(value: str) -> str:
    if value in METHODS:
        return value
    if value.upper() in METHODS:
        raise fault(f'"{value}" is not in upper case, so it can never match', f'write "{value.upper()}"')
    raise fault(f'unknown method "{value}"{did_you_mean(value.upper(), METHODS)}')


def _host(value: str) -> str:
    for mark, what in (("://", "a scheme"), ("@", "a user"), ("/", "a path"), ("?", "a query"), ("#", "a fragment")):
        if mark in value:
            bare = re.split(r"[/?#]", value.split("://", 1)[-1])[0].rpartition("@")[2]
            raise fault(f'"{value}" has {what}, a host is only a name', f'write "{bare}"')
    if "*" in value:
        raise fault(f'"{value}" has a wildcard', "list each host, or leave hosts out to match every host")
    host = normalise_host(value)
    if host.startswith("["):
        return _ipv6_host(host)
    if not host.isascii():
        raise fault(f'"{value}" has characters that a request carries encoded', _punycode(host))
    if not _HOST.fullmatch(host) or ".." in host:
        raise fault(f'"{value}" is not a host name')
    return host


def _ipv6_host(host: str) -> str:
    try:
        return f"[{IPv6Address(host[1:-1])}]"
    except ValueError:
        raise fault(f'"{host}" is not an IPv6 address in brackets') from None


def _punycode(host: str) -> str:
    try:
        return f'write "{host.encode("idna").decode("ascii")}"'
    except UnicodeError:
        return "write it in its ASCII form (xn--...)"


class Selector(Model):
    """Which requests a policy is for; without a path it is for every path."""

    path_exact: Annotated[str, AfterValidator(_path)] | None = Field(
        default=None, alias="pathExact", description="The whole path."
    )
    path_prefix: Annotated[str, AfterValidator(_path)] | None = Field(
        default=None, alias="pathPrefix", description="The beginning of the path; `/v1/` matches `/v1/x` and not `/v1`."
    )
    methods: Annotated[list[Annotated[str, AfterValidator(_method)]], Field(min_length=1)] | None = Field(
        default=None, description="HTTP methods in upper case; without it, every method."
    )
    hosts: Annotated[list[Annotated[str, AfterValidator(_host)]], Field(min_length=1)] | None = Field(
        default=None, description="Host names, without scheme and path; a port is ignored; without it, every host."
    )
