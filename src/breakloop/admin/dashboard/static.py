"""Files of the dashboard: style, scripts, vendored libraries. Each is asked for with a digest of its bytes, so that a
browser may keep it for ever."""

from __future__ import annotations

from hashlib import sha256
from os import PathLike, stat_result
from typing import Final

from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOR_EVER: Final = "public, max-age=31536000, immutable"


class Files(StaticFiles):
    """Static files that a browser keeps."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return a file, or that it has not changed."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = FOR_EVER
        return response


def mounted(directory: str | PathLike[str]) -> Mount:
    """Return the route of the files."""
    return Mount("/static", Files(directory=directory), name="static")


def digest(data: bytes) -> str:
    """Return what tells one version of a file from another."""
    return sha256(data).hexdigest()[:12]
