"""A request from a file (SPEC T-2): raw HTTP as an editor holds it, or JSON `{method, path, headers, body}`.
Forgiving about line ends, which editors change; what a server refuses is the gateway's to say."""

from __future__ import annotations

import re
from typing import NoReturn

from breakloop.errors import BundleError, Problem
from breakloop.policy.places import in_order
from breakloop.policy.positions import read_document
from breakloop.replay.case_schema import CaseRequest, check_request, request_from

_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +(\S+)(?: +HTTP/[0-9.]+)?")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)")


def read_request(text: bytes, name: str) -> CaseRequest:
    """Return the request, or raise `BundleError` with located problems."""
    if text.lstrip()[:1] == b"{":
        return _from_json(text, name)
    head, body = _split(text.lstrip(b"\r\n"))
    lines = head.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    if not head:
        _refuse(name, 1, "is empty", "give a raw HTTP request, or JSON with method, path, headers and body")
    method, target = _request_line(lines[0], name)
    headers = [_field(line, number, name) for number, line in enumerate(lines[1:], 2)]
    host, target = _host(headers, target)
    return CaseRequest(method, target, host, tuple(headers), _body(headers, body, name))


def _from_json(text: bytes, name: str) -> CaseRequest:
    data, places = read_document(text, name)
    found = list(check_request(data, ()))
    if found:
        raise BundleError(in_order(finding.located(places) for finding in found))
    request = request_from(data)
    if "host" not in data:
        host = dict(reversed([(key.lower(), value) for key, value in request.headers])).get("host", request.host)
        return CaseRequest(request.method, request.path, host, request.headers, request.body, request.peer)
    return request


def _split(text: bytes) -> tuple[bytes, bytes]:
    found = re.search(rb"\r?\n\r?\n", text)
    return (text, b"") if found is None else (text[: found.start()], text[found.end() :])


def _request_line(line: str, name: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        _refuse(name, 1, f'"{line[:80]}" is not a request line', "write GET /path HTTP/1.1")
    method, target = found[1], found[2]
    if not (target.startswith("/") or re.match(r"https?://", target, re.IGNORECASE)):
        _refuse(name, 1, f'"{target[:80]}" is not a path', "it begins with /")
    return method, target


def _field(line: str, number: int, name: str) -> tuple[str, str]:
    found = _FIELD.fullmatch(line)
    if found is None:
        _refuse(name, number, f'"{line[:80]}" is not a header field', "write Name: value; an empty line ends them")
    return found[1], found[2].rstrip()


def _host(headers: list[tuple[str, str]], target: str) -> tuple[str, str]:
    named = next((value for key, value in headers if key.lower() == "host"), "localhost")
    if target.startswith("/"):
        return named, target
    authority, slash, rest = target.partition("://")[2].partition("/")
    return authority, slash + rest or "/"


def _body(headers: list[tuple[str, str]], body: bytes, name: str) -> bytes:
    fields = {key.lower(): value for key, value in headers}
    if "chunked" in fields.get("transfer-encoding", "").lower():
        _refuse(name, 1, "has a chunked body", "write the body plainly and leave Transfer-Encoding out")
    length = fields.get("content-length", "")
    if length.isdigit() and int(length) <= len(body):
        return body[: int(length)]
    return body.removesuffix(b"\n").removesuffix(b"\r")  # editors end a file with a line end


def _refuse(name: str, line: int, message: str, hint: str) -> NoReturn:
    raise BundleError([Problem(name, line, 1, "", message, hint)])
