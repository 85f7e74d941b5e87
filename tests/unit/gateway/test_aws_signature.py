"""Requests to AWS that are signed with held keys. tests/e2e/test_clients.py compares signatures with botocore's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakloop.gateway.aws_signature import AwsKey, AwsRequest, aws_key, region_of, signature_lines
from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes
from breakloop.model.upstream import upstreams
from tests.each import each
from tests.unit.gateway.test_forwarding import request

HOST = "bedrock-runtime.eu-west-1.amazonaws.com"
CLIENT = (
    b"AWS4-HMAC-SHA256 Credential=AKIACLIENT/20260101/eu-west-1/bedrock/aws4_request, SignedHeaders=host, Signature=0"
)
PATH = b"/model/anthropic.claude%3A0/converse"


class Clock:
    def now(self) -> float:
        return 1_700_000_000.0


def rewritten(key: bytes, *, url: str = f"https://{HOST}", headers: tuple[bytes, ...] = ()) -> bytes:
    given = upstreams([f"bedrock={url}"])
    came = request(b"Authorization: " + CLIENT, *headers)
    came.body = b"{}"
    found = UpstreamRoutes(given, ["bedrock"]).find(PATH, came.headers)
    assert found.refusal == ""
    rewriter = HeadRewriter("X-Breakloop-", "hop", keys={"bedrock": key}, clock=Clock())  # type: ignore[arg-type]  # that is all it uses
    return rewriter.rewrite(came, found, b"", 2)


@each(
    "held, expected",
    [
        (b"AKIA1:secret/+", AwsKey("AKIA1", "secret/+")),
        (b"ASIA1:secret:token==", AwsKey("ASIA1", "secret", "token==")),
        (b"ABSKabc", None),
        (b"bedrock-api-key-abc:x", None),
    ],
)
def test_which_keys_sign(held: bytes, expected: AwsKey | None) -> None:
    """Two or three parts; an API key is sent as it is (D-2)."""
    assert aws_key(held) == expected


@each(
    "host, authorization, region",
    [
        (HOST, b"", "eu-west-1"),
        ("vpce-1.bedrock-runtime.us-gov-east-1.vpce.amazonaws.com", b"", "us-gov-east-1"),
        ("127.0.0.1", CLIENT, "eu-west-1"),
        ("127.0.0.1", b"", "us-east-1"),
    ],
)
def test_the_region(host: str, authorization: bytes, region: str) -> None:
    assert region_of(host, authorization) == region


def test_the_signature_of_the_client_is_replaced() -> None:
    """Nothing of the client's credentials is left, and the host that is signed is the upstream's (D-2, Y-1)."""
    head = rewritten(b"AKIAOURS:secret:tok", headers=(b"X-Amz-Date: 20260101T000000Z", b"X-Amz-Security-Token: theirs"))
    assert b"AKIACLIENT" not in head
    assert b"theirs" not in head
    assert head.count(b"Authorization:") == 1
    assert f"host: {HOST}\r\n".encode() in head
    assert b"x-amz-date: 20231114T221320Z\r\nx-amz-security-token: tok\r\n" in head
    assert b"Credential=AKIAOURS/20231114/eu-west-1/bedrock/aws4_request" in head
    assert b"SignedHeaders=host;x-amz-date;x-amz-security-token, " in head


def test_an_api_key_for_bedrock_is_sent_as_it_is() -> None:
    """It is bound to no host (D-2)."""
    head = rewritten(b"ABSKours")
    assert b"Authorization: Bearer ABSKours\r\n" in head
    assert b"AWS4" not in head


def test_a_signature_for_another_host_is_refused() -> None:
    """AWS would reject it; a request that is signed for AWS itself passes (D-2)."""
    routes = UpstreamRoutes(upstreams([f"bedrock=https://{HOST}"]))
    refused = routes.find(PATH, {"authorization": CLIENT, "host": b"127.0.0.1:8787"})
    assert "signed for the gateway" in refused.refusal
    assert routes.find(PATH, {"authorization": CLIENT, "host": HOST.encode()}).refusal == ""
    assert routes.find(PATH, {"authorization": b"Bearer ABSKx", "host": b"127.0.0.1:8787"}).refusal == ""


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.sampled_from(["content-type", "x-amz-meta", "accept"]), st.text(max_size=9)), max_size=4),
)
def test_any_request_can_be_signed(target: bytes, fields: list[tuple[str, str]]) -> None:
    """Nothing raises, and the lines are lines (C-9)."""
    latin = [(name, value.encode("ascii", "ignore").decode()) for name, value in fields]
    signed = AwsRequest("POST", b"/" + target, [("host", HOST), *latin], b"")
    lines = signature_lines(AwsKey("A", "s"), "eu-west-1", signed, 0.0)
    assert lines.count(b"\r\n") == 2
