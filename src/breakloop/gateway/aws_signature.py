"""Signs requests to AWS with held keys (Signature Version 4). The client's own signature is for the host that it knows,
which is the gateway, and for a body that may have been changed.

A held key is `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, and for temporary credentials a third part, the session token. The
region is part of the upstream's host, or else that of the client's signature.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import quote

_SERVICE: Final = "bedrock"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_REGION: Final = re.compile(r"\.([a-z]{2,4}(?:-[a-z]+)+-\d)\.")
_SCOPE: Final = re.compile(rb"Credential=[^/,\s]{1,256}/\d{8}/([a-z0-9-]{1,32})/")
_DEFAULT_REGION: Final = "us-east-1"
_SIGNED: Final = ("content-type", "host")
_OWN: Final = "x-amz-"
REPLACED: Final = frozenset(("x-amz-content-sha256", "x-amz-date", "x-amz-security-token"))


class AwsKey(NamedTuple):
    access_key_id: str
    secret: str
    token: str = ""


def aws_key(held: bytes) -> AwsKey | None:
    """Return a held key if it is one that signs; None for an API key, which is sent as it is."""
    parts = held.decode("latin-1").split(":", 2)
    return AwsKey(*parts) if len(parts) > 1 and parts[0].isalnum() else None


def region_of(host: str, authorization: bytes = b"") -> str:
    """Return the region that a request is for. `authorization` is the client's."""
    in_host = _REGION.search(f".{host}.")
    if in_host is not None:
        return in_host[1]
    stated = _SCOPE.search(authorization)
    return _DEFAULT_REGION if stated is None else stated[1].decode()


class AwsRequest(NamedTuple):
    """What is signed."""

    method: str
    target: bytes  # path and query, as sent
    fields: Iterable[tuple[str, str]]  # names in lower case
    body: bytes


def signature_lines(key: AwsKey, region: str, request: AwsRequest, now: float) -> bytes:
    """Return the header lines that sign a request. `fields` must include `host`."""
    at = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": at} | ({"x-amz-security-token": key.token} if key.token else {})
    signed = {name: value for name, value in request.fields if name in _SIGNED or name.startswith(_OWN)} | added
    names = ";".join(sorted(signed))
    path, _, query = request.target.decode("latin-1").partition("?")
    canonical = "\n".join((
        request.method,
        quote(path, safe="/~"),  # once more, as AWS does
        "&".join(sorted(one if "=" in one else f"{one}=" for one in query.split("&") if one)),
        *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
        "",
        names,
        sha256(request.body).hexdigest(),
    ))  # fmt: skip
    scope = f"{at[:8]}/{region}/{_SERVICE}/aws4_request"
    secret = f"AWS4{key.secret}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = "\n".join((_ALGORITHM, at, scope, sha256(canonical.encode("latin-1")).hexdigest()))
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = f"Credential={key.access_key_id}/{scope}"
    lines = [f"{name}: {value}\r\n" for name, value in added.items()]
    lines.append(f"Authorization: {_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}\r\n")
    return "".join(lines).encode("latin-1")
