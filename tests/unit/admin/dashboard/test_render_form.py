"""Forms: small, URL-encoded, and leading nowhere else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from breakloop.admin.dashboard.render import own_path, read_form
from breakloop.admin.errors import ApiError


def read(body: bytes, kind: str = "application/x-www-form-urlencoded; charset=utf-8") -> dict[str, str]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", kind.encode())]}
    return asyncio.run(read_form(Request(scope, receive)))


def test_fields() -> None:
    assert read(b"a=1&b=&a=%C3%A9+x") == {"a": "é x", "b": ""}
    assert read(b"") == {}


@pytest.mark.parametrize(("body", "status"), [(b"a=%ff", 400), (b"a=%00", 400), (b"&".join([b"a=1"] * 200), 400), (b"\xff", 400)])  # fmt: skip
def test_what_is_no_form(body: bytes, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        read(body)
    assert caught.value.status == status


def test_other_kinds() -> None:
    with pytest.raises(ApiError, match="URL-encoded"):
        read(b"{}", "application/json")


@pytest.mark.parametrize("path", ["", "x", "//evil", "/\\evil", "https://evil", "javascript:x", "/a\nb", "/a b"])
def test_paths_of_others(path: str) -> None:
    assert own_path(path) == "/"
    assert own_path(path, "/agents") == "/agents"


def test_own_paths() -> None:
    assert own_path("/agents?find=a%20b#x") == "/agents?find=a%20b#x"
