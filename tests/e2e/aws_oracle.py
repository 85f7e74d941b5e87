"""botocore's own signatures, for test_clients.py, in the environment `clients`: reads requests as JSON, and prints the
`Authorization` of each."""

from __future__ import annotations

import json
import sys
from typing import Any


def authorization(asked: dict[str, Any]) -> str:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(asked["method"], asked["url"], asked["headers"], asked["body"].encode("latin-1"))
    request.context["timestamp"] = asked["headers"]["x-amz-date"]
    signer: Any = SigV4Auth(Credentials(*asked["key"]), "bedrock", asked["region"])
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    scope = signer.scope(request)
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"


if __name__ == "__main__":
    print(json.dumps([authorization(asked) for asked in json.load(sys.stdin)]))  # noqa: T201 - the test reads it
