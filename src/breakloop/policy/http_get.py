"""One GET over HTTP(S) with bounds (SPEC B-3): time, size, redirects. Blocks its thread, never the event loop. What is
asked for and what the answer means is `source_http`'s."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from breakloop._version import __version__
from breakloop.clock import Clock

_STALL_S: Final = 10.0  # to connect, and between two pieces of an answer
_WHOLE_S: Final = 60.0
_PIECE_BYTES: Final = 64 * 1024
_REDIRECTS_MAX: Final = 3
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class FetchError(Exception):
    """Why there is no usable answer, in words without any credential, and what to do about it."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back in the end. `headers` are by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpGet:
    """Asks one server, with a token that no other server gets to see."""

    __slots__ = ("_clock", "_tls", "_token")

    def __init__(self, clock: Clock, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._token = token
        self._tls = tls

    def get(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Answer:
        """Return the answer behind at most three redirects; raises `FetchError`. A body may have `max_bytes`."""
        ends_at = self._clock.now() + _WHOLE_S
        first = at = urlsplit(url)
        for _ in range(_REDIRECTS_MAX + 1):
            sent = {"User-Agent": f"breakloop/{__version__}", "Accept-Encoding": "identity", **headers}
            if self._token and _origin(at) == _origin(first):
                sent["Authorization"] = f"Bearer {self._token}"
            answer = self._once(at, sent, max_bytes, ends_at)
            if answer.status not in _REDIRECTS:
                return answer
            at = _redirected(at, answer.headers.get("location", ""))
        raise FetchError(f"redirects more than {_REDIRECTS_MAX} times", "give the URL where it ends")

    def _once(self, at: SplitResult, headers: Mapping[str, str], max_bytes: int, ends_at: float) -> Answer:
        try:
            connection = self._connection(at)
            try:
                connection.request("GET", (at.path or "/") + (f"?{at.query}" if at.query else ""), headers=headers)
                with connection.getresponse() as answer:
                    return self._read(answer, max_bytes, ends_at)
            finally:
                connection.close()
        except ssl.SSLCertVerificationError as error:
            hint = "set policy_ca_file if its authority is a private one"
            raise FetchError(f"its certificate is not trusted: {error.verify_message}", hint) from None
        except TimeoutError:
            raise FetchError(f"no answer within {_STALL_S:g} s") from None
        except OSError as error:
            raise FetchError(error.strerror or type(error).__name__) from None
        except (http.client.HTTPException, ValueError) as error:  # not HTTP, cut off, a URL that cannot be sent
            raise FetchError(f"no answer that can be used: {type(error).__name__}") from None

    def _connection(self, at: SplitResult) -> http.client.HTTPConnection:
        host = at.hostname or ""
        if at.scheme == "https":
            return http.client.HTTPSConnection(host, at.port, timeout=_STALL_S, context=self._tls)
        return http.client.HTTPConnection(host, at.port, timeout=_STALL_S)

    def _read(self, answer: http.client.HTTPResponse, max_bytes: int, ends_at: float) -> Answer:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != 200:
            return Answer(answer.status, headers, b"")
        if answer.length is None and not answer.chunked:
            raise FetchError("the answer does not tell its length, so that it could be cut off unnoticed")
        if (answer.length or 0) > max_bytes:
            raise FetchError(f"the answer has {answer.length} bytes, more than the {max_bytes} allowed")
        missing = answer.length
        body = bytearray()
        while piece := answer.read1(_PIECE_BYTES):
            body += piece
            if len(body) > max_bytes:
                raise FetchError(f"the answer has more than the {max_bytes} bytes allowed")
            if self._clock.now() > ends_at:
                raise FetchError(f"the answer is not complete after {_WHOLE_S:g} s")
        if missing is not None and len(body) < missing:
            raise FetchError("the answer was cut off")
        return Answer(answer.status, headers, bytes(body))


def _redirected(at: SplitResult, location: str) -> SplitResult:
    """Return where a redirect leads; never out of TLS."""
    try:
        to = urlsplit(urljoin(at.geturl(), location))
        usable = bool(location and to.hostname and to.port != 0)
    except ValueError:
        raise FetchError("redirects to no usable URL") from None
    if not usable or to.scheme not in {"http", "https"} or not to.geturl().isascii():
        raise FetchError("redirects to no usable URL")
    if at.scheme == "https" and to.scheme == "http":
        raise FetchError("redirects from https to http", "give a URL that stays with https")
    return to


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port
