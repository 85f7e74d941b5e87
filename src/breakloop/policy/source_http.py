"""A bundle behind an HTTP(S) URL (SPEC B-3): polled, and sent only when it changed (ETag, Last-Modified). Its signature
is the header field `X-Breakloop-Signature`, or lies at the URL with `.sig` behind its path."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NoReturn
from urllib.parse import urlsplit

from breakloop.errors import BundleError, Problem, UnreadableError
from breakloop.policy.fetched import Document, Fetched, Stamp
from breakloop.policy.http_get import Answer, FetchError, HttpGet
from breakloop.policy.pace import Pace
from breakloop.policy.positions import MAX_BYTES
from breakloop.policy.source_file import SIGNATURE_MAX_BYTES, SIGNATURE_SUFFIX

SIGNATURE_FIELD: Final = "x-breakloop-signature"
_ACCEPT: Final = "application/yaml, application/json;q=0.9, */*;q=0.5"
_MEANINGS: Final = {
    401: "set policy_token, or a new one",
    403: "this policy_token may not read it",
    404: "is the path right?",
}


class HttpSource:
    """One URL. Used by one thread at a time."""

    __slots__ = ("_get", "_pace", "_signed", "_url", "name")

    whole = True  # what was cut off is noticed

    def __init__(self, url: str, get: HttpGet, pace: Pace, *, signed: bool = False) -> None:
        self._url = url
        self._get = get
        self._pace = pace
        self._signed = signed
        self.name = urlsplit(url)._replace(query="", fragment="").geturl()  # a query may hold a credential

    @property
    def key(self) -> str:
        """The URL."""
        return self._url

    def wait_s(self, failures: int) -> float:
        """As its pace says."""
        return self._pace.wait_s(failures)

    def fetch(self, known: Stamp | None) -> Fetched | None:
        """Ask for the bundle, unless it is still the one with this stamp: ETag, Last-Modified, digest."""
        answer = self._ask(self._url, _conditions(known), MAX_BYTES)
        if answer.status == 304 and known is not None:
            return None
        if answer.status != 200:
            self._refuse(f"the server answered {answer.status}", _MEANINGS.get(answer.status, ""))
        coding = answer.headers.get("content-encoding", "identity").strip().lower()
        if coding not in {"", "identity"}:
            self._refuse("the server packed the answer, though it was asked not to", "switch that off for this path")
        digest = sha256(answer.body).hexdigest()
        if known is not None and known[-1] == digest:
            return None
        stamp = (answer.headers.get("etag", ""), answer.headers.get("last-modified", ""), digest)
        document = Document(self.name, answer.body, _kind(answer.headers.get("content-type", "")))
        return Fetched((document,), stamp, self._signature(answer) if self._signed else "")

    def _signature(self, answer: Answer) -> str:
        """Return the signature that came with an answer, or lies beside it; empty if there is none."""
        given = answer.headers.get(SIGNATURE_FIELD, "").strip()
        if given:
            return given.replace(",", " ")
        at = urlsplit(self._url)
        beside = self._ask(at._replace(path=at.path + SIGNATURE_SUFFIX).geturl(), {}, SIGNATURE_MAX_BYTES)
        if beside.status == 200:
            return beside.body.decode("ascii", "replace")
        if beside.status not in {404, 410}:
            self._refuse(f"the server answered {beside.status} for its signature", _MEANINGS.get(beside.status, ""))
        return ""

    def _ask(self, url: str, headers: dict[str, str], max_bytes: int) -> Answer:
        try:
            return self._get.get(url, {"Accept": _ACCEPT, **headers}, max_bytes)
        except FetchError as error:
            raise self._problem(f"cannot be fetched: {error}", error.hint) from None

    def _refuse(self, why: str, hint: str) -> NoReturn:
        raise self._problem(f"cannot be fetched: {why}", hint)

    def _problem(self, message: str, hint: str) -> BundleError:
        return UnreadableError([Problem(self.name, 1, 1, "", message, hint)])


def _conditions(known: Stamp | None) -> dict[str, str]:
    if known is None:
        return {}
    etag, modified, _digest = known
    return {name: str(value) for name, value in (("If-None-Match", etag), ("If-Modified-Since", modified)) if value}


def _kind(content_type: str) -> str:
    """JSON and YAML by their content types; other types say nothing, and the path and the text are asked."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"application/json", "text/json"} or kind.endswith("+json"):
        return "json"
    return "yaml" if kind.rpartition("/")[2] in {"yaml", "x-yaml", "vnd.yaml"} or kind.endswith("+yaml") else ""
