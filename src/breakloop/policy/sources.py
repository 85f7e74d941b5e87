"""Where a bundle comes from: a file or a directory, an HTTP(S) URL, or a bundle pushed to Redis.

A source only returns bytes. `policy.watch` verifies them, validates them and puts them in force. A URL is polled with
conditional requests (ETag, Last-Modified). Its signature is the header field `X-Breakloop-Signature`, or a file at the
same path with `.sig` appended. Requests have limits on time, size and redirects; they block their thread, never the
event loop. A pushed bundle reaches every instance within a second (`store.redis.bundle`).

Remote sources are polled at a steady interval while they respond and with exponential backoff while they do not, with
jitter so that instances do not poll at the same time.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol
from urllib.parse import SplitResult, urljoin, urlsplit

from breakloop._version import __version__
from breakloop.clock import Clock
from breakloop.errors import BundleError, Problem, StateError, UnreadableError
from breakloop.policy.documents import MAX_BYTES
from breakloop.policy.load import (
    SIGNATURE_MAX_BYTES,
    SIGNATURE_SUFFIX,
    BundleBytes,
    BundleDocument,
    LoadedBundle,
    Stamp,
    read_path,
    signature_path,
)
from breakloop.store.redis.bundle import BUNDLE_KEY, NoPushedBundleError, PushedBundle, RedisBundle

POLL_S: Final = 0.5  # how often a file is checked
_STALL_S: Final = 10.0  # to connect, and between two chunks of a response
_WHOLE_S: Final = 60.0
_PIECE_BYTES: Final = 64 * 1024
_REDIRECTS_MAX: Final = 3
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class BundleOrigin(Protocol):
    """Where a bundle comes from. Used by one thread at a time, but never by that of the event loop."""

    name: str  # for display, without credentials
    key: str  # the identity of the source, used in the name of its last good copy
    whole: bool  # it never returns a partly written bundle, so a problem can be reported at once

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        """Return what it holds, or None if it still has this stamp. Raises `BundleError` or `OSError`."""
        ...

    def wait_s(self, failures: int) -> float:
        """Return how long to wait before the next check, after this number of consecutive failures."""
        ...


class FileOrigin:
    """A path. Links are followed, because Kubernetes updates a ConfigMap by replacing a link."""

    whole = False  # a file may be read while it is being saved

    def __init__(self, path: Path, *, signed: bool = False) -> None:
        self._path = path
        self._signed = signed
        self.name = str(path)
        self.key = str(path.absolute())

    def wait_s(self, failures: int) -> float:  # noqa: ARG002 - the protocol's
        """Return half a second, regardless of failures: a check costs only a few system calls."""
        return POLL_S

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        stamp = _stamp(self._path)
        if self._signed:
            stamp = (stamp, _file_stamp(signature_path(self._path)))
        if stamp == known:
            return None
        if self._path.is_fifo():  # reading it could block forever
            problem = Problem(self.name, 1, 1, "", "is a pipe", "use a file or a directory")
            raise BundleError([problem])
        return read_path(self._path, signed=self._signed, stamp=stamp)


def _stamp(path: Path) -> Stamp:
    """Return the stamp of a path without reading its content."""
    try:
        if not path.is_dir():
            return _file_stamp(path)
        names = sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
    except OSError as error:
        return ("", error.errno)
    return tuple((name, _file_stamp(path / name)) for name in names)


def _file_stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError as error:
        return ("", error.errno)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class FetchError(Exception):
    """Why there is no usable response, without any credentials in the message, and a hint on how to fix it."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class HttpResponse(NamedTuple):
    """The final response. `headers` are keyed by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpGet:
    """Sends GET requests to one server. The token is not sent to any other server."""

    def __init__(self, clock: Clock, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._token = token
        self._tls = tls

    def get(self, url: str, headers: Mapping[str, str], max_bytes: int) -> HttpResponse:
        """Return the response after at most three redirects. Raises `FetchError`, also for a body over `max_bytes`."""
        ends_at = self._clock.steady() + _WHOLE_S
        first = at = urlsplit(url)
        for _ in range(_REDIRECTS_MAX + 1):
            sent = {"User-Agent": f"breakloop/{__version__}", "Accept-Encoding": "identity", **headers}
            if self._token and _origin(at) == _origin(first):
                sent["Authorization"] = f"Bearer {self._token}"
            answer = self._once(at, sent, max_bytes, ends_at)
            if answer.status not in _REDIRECTS:
                return answer
            at = _redirected(at, answer.headers.get("location", ""))
        raise FetchError(f"redirects more than {_REDIRECTS_MAX} times", "give the final URL")

    def _once(self, at: SplitResult, headers: Mapping[str, str], max_bytes: int, ends_at: float) -> HttpResponse:
        try:
            connection = self._connection(at)
            try:
                connection.request("GET", (at.path or "/") + (f"?{at.query}" if at.query else ""), headers=headers)
                with connection.getresponse() as answer:
                    return self._read(answer, max_bytes, ends_at)
            finally:
                connection.close()
        except ssl.SSLCertVerificationError as error:
            hint = "set policy_ca_file if it uses a private CA"
            raise FetchError(f"its certificate is not trusted: {error.verify_message}", hint) from None
        except TimeoutError:
            raise FetchError(f"no response within {_STALL_S:g} s") from None
        except OSError as error:
            raise FetchError(error.strerror or type(error).__name__) from None
        except (http.client.HTTPException, ValueError) as error:  # not HTTP, cut off, or a URL that cannot be sent
            raise FetchError(f"invalid response: {type(error).__name__}") from None

    def _connection(self, at: SplitResult) -> http.client.HTTPConnection:
        host = at.hostname or ""
        if at.scheme == "https":
            return http.client.HTTPSConnection(host, at.port, timeout=_STALL_S, context=self._tls)
        return http.client.HTTPConnection(host, at.port, timeout=_STALL_S)

    def _read(self, answer: http.client.HTTPResponse, max_bytes: int, ends_at: float) -> HttpResponse:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != 200:
            return HttpResponse(answer.status, headers, b"")
        if answer.length is None and not answer.chunked:
            raise FetchError("the response has no length, so a cut-off would go unnoticed")
        if (answer.length or 0) > max_bytes:
            raise FetchError(f"the response has {answer.length} bytes, more than the {max_bytes} allowed")
        missing = answer.length
        body = bytearray()
        while piece := answer.read1(_PIECE_BYTES):
            body += piece
            if len(body) > max_bytes:
                raise FetchError(f"the response has more than the {max_bytes} bytes allowed")
            if self._clock.steady() > ends_at:
                raise FetchError(f"the response was not complete after {_WHOLE_S:g} s")
        if missing is not None and len(body) < missing:
            raise FetchError("the response was cut off")
        return HttpResponse(answer.status, headers, bytes(body))


def _redirected(at: SplitResult, location: str) -> SplitResult:
    """Return the target of a redirect. A redirect from HTTPS to HTTP is rejected."""
    try:
        to = urlsplit(urljoin(at.geturl(), location))
        usable = bool(location and to.hostname and to.port != 0)
    except ValueError:
        raise FetchError("redirects to an invalid URL") from None
    if not usable or to.scheme not in {"http", "https"} or not to.geturl().isascii():
        raise FetchError("redirects to an invalid URL")
    if at.scheme == "https" and to.scheme == "http":
        raise FetchError("redirects from https to http", "give a URL that does not redirect to http")
    return to


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port


_SPREAD: Final = 0.1  # jitter: the largest fraction by which a poll may come early


@dataclass(frozen=True, slots=True)
class PollBackoff:
    """Polls at least every `every_s` seconds. After failures the interval doubles each time, up to `most_s`."""

    every_s: float
    most_s: float
    chance: Callable[[], float]  # 0 to 1

    def wait_s(self, failures: int) -> float:
        if failures == 0:
            return self.every_s * (1 - _SPREAD * self.chance())
        longest = min(self.every_s * 2.0 ** min(failures, 30), max(self.most_s, self.every_s))
        return longest * (1 - 0.5 * self.chance())


SIGNATURE_FIELD: Final = "x-breakloop-signature"
_ACCEPT: Final = "application/yaml, application/json;q=0.9, */*;q=0.5"
_MEANINGS: Final = {
    401: "set policy_token, or replace it",
    403: "policy_token is not allowed to read it",
    404: "is the path right?",
}


class HttpOrigin:
    """A bundle at a URL. Used by one thread at a time."""

    whole = True  # a truncated response is detected

    def __init__(self, url: str, get: HttpGet, pace: PollBackoff, *, signed: bool = False) -> None:
        self.key = self._url = url
        self._get = get
        self.wait_s = pace.wait_s
        self._signed = signed
        self.name = urlsplit(url)._replace(query="", fragment="").geturl()  # a query may contain a credential

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        """Fetch the bundle, unless it still has this stamp (ETag, Last-Modified, digest)."""
        answer = self._ask(self._url, _conditions(known), MAX_BYTES)
        if answer.status == 304 and known is not None:
            return None
        if answer.status != 200:
            self._refuse(f"the server returned {answer.status}", _MEANINGS.get(answer.status, ""))
        coding = answer.headers.get("content-encoding", "identity").strip().lower()
        if coding not in {"", "identity"}:
            message = "the server compressed the response although the request did not accept it"
            self._refuse(message, "disable compression for this path")
        digest = sha256(answer.body).hexdigest()
        if known is not None and known[-1] == digest:
            return None
        stamp = (answer.headers.get("etag", ""), answer.headers.get("last-modified", ""), digest)
        document = BundleDocument(self.name, answer.body, _kind(answer.headers.get("content-type", "")))
        return BundleBytes((document,), stamp, self._signature(answer) if self._signed else "")

    def _signature(self, answer: HttpResponse) -> str:
        """Return the signature sent with a response or stored beside the bundle; empty if there is none."""
        given = answer.headers.get(SIGNATURE_FIELD, "").strip()
        if given:
            return given.replace(",", " ")
        at = urlsplit(self._url)
        beside = self._ask(at._replace(path=at.path + SIGNATURE_SUFFIX).geturl(), {}, SIGNATURE_MAX_BYTES)
        if beside.status == 200:
            return beside.body.decode("ascii", "replace")
        if beside.status not in {404, 410}:
            self._refuse(f"the server returned {beside.status} for its signature", _MEANINGS.get(beside.status, ""))
        return ""

    def _ask(self, url: str, headers: dict[str, str], max_bytes: int) -> HttpResponse:
        try:
            return self._get.get(url, {"Accept": _ACCEPT, **headers}, max_bytes)
        except FetchError as error:
            self._refuse(str(error), error.hint)

    def _refuse(self, why: str, hint: str) -> NoReturn:
        raise _unreadable(self.name, f"cannot be fetched: {why}", hint) from None


def _unreadable(name: str, message: str, hint: str = "") -> UnreadableError:
    return UnreadableError([Problem(name, 1, 1, "", message, hint)])


def _conditions(known: Stamp | None) -> dict[str, str]:
    if known is None:
        return {}
    etag, modified, _digest = known
    return {name: str(value) for name, value in (("If-None-Match", etag), ("If-Modified-Since", modified)) if value}


def _kind(content_type: str) -> str:
    """Return "json" or "yaml" by content type. Other types are ambiguous; then the path and the text decide."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"application/json", "text/json"} or kind.endswith("+json"):
        return "json"
    return "yaml" if kind.rpartition("/")[2] in {"yaml", "x-yaml", "vnd.yaml"} or kind.endswith("+yaml") else ""


class RedisOrigin:
    whole = True  # a push is atomic

    def __init__(self, shelf: RedisBundle, pace: PollBackoff) -> None:
        self._shelf = shelf
        self.wait_s = pace.wait_s
        self.name = self.key = f"{shelf.name}#{BUNDLE_KEY}"

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        try:
            found = self._shelf.fetch(known)
        except NoPushedBundleError:
            raise _unreadable(self.name, "no bundle was pushed yet", "breakloop bundle push FILE") from None
        except StateError as error:
            raise _unreadable(self.name, f"cannot be read: {error}") from None
        if found is None:
            return None
        if sha256(found.data).hexdigest() != found.digest:
            hint = "it was damaged or tampered with: push it again"
            raise BundleError([Problem(self.name, 1, 1, "", "does not match its digest", hint)])
        return BundleBytes((BundleDocument(self.name, found.data),), found.stamp, found.signature, forced=found.forced)


def to_push(fetched: BundleBytes, loaded: LoadedBundle, *, by: str, force: bool) -> PushedBundle:
    """Return a loaded, and therefore valid, bundle of a single file in the form that is pushed."""
    (document,) = fetched.documents
    digest = sha256(document.data).hexdigest()
    signature = " ".join(fetched.signature.split())
    return PushedBundle(loaded.bundle.bundle_version, digest, document.data, signature, forced=force, pushed_by=by)
