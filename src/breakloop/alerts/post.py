"""One POST to a target over HTTP/1.1: to an address that was checked, within a time, and without following anything.
The answer's status is what counts; of its body at most 1 KB is read, and none of it is kept."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final

from breakloop.alerts.means import Means
from breakloop.alerts.ssrf import Place, checked, place
from breakloop.alerts.target import Outcome
from breakloop.errors import AlertError

RETRY_AFTER_MAX_S: Final = 3600.0
_HEAD_MAX: Final = 16 * 1024
_BODY_MAX: Final = 1024
_BODY_S: Final = 1.0  # the answer is known by then: a body that is slow is not waited for
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r\n")
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:([^\r\n]{1,80})\r\n", re.IGNORECASE)
_FIELD: Final = re.compile(r"[ -~]*")


async def post(means: Means, url: str, body: bytes, fields: Mapping[str, str], *, allow_private: bool) -> Outcome:
    """Send a JSON body; return what came of it. Raises nothing but what ends the task."""
    try:
        async with asyncio.timeout(means.timeout_s):
            target = place(url)
            addresses = await means.aside(lambda: checked(target, means.resolve, allow_private=allow_private))
            status, head = await _exchange(means, target, addresses, _request(target, body, fields))
    except AlertError as error:
        return Outcome(delivered=False, error=str(error))
    except TimeoutError:
        return Outcome(delivered=False, error=f"no answer within {means.timeout_s:g} s")
    except ssl.SSLCertVerificationError as error:
        return Outcome(delivered=False, error=f"its certificate is not trusted: {error.verify_message}")
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        return Outcome(delivered=False, error=_words(error))
    return _outcome(status, head, means.clock.now())


def _request(target: Place, body: bytes, fields: Mapping[str, str]) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
    lines += ["User-Agent: breakloop", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    for name, value in fields.items():
        if not _FIELD.fullmatch(value):
            raise AlertError(f"the field {name} cannot be sent")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


async def _exchange(means: Means, target: Place, addresses: list[str], request: bytes) -> tuple[int, bytes]:
    reader, writer = await _connected(means, target, addresses)
    try:
        writer.write(request)
        with suppress(ConnectionError):  # an answer may be there all the same
            await writer.drain()
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            match = _STATUS.match(head)
            if match is None:
                raise ValueError("what it answered is no HTTP")
            status = int(match[1])
            if status >= 200:
                break
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_BODY_S):
                await reader.read(_BODY_MAX)
        return status, head
    finally:
        writer.transport.abort()


async def _connected(
    means: Means, target: Place, addresses: list[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the addresses that takes us. The certificate has to be that of the name."""
    context, name = (means.tls, target.host) if target.scheme == "https" else (None, None)
    for address in addresses[:-1]:
        with suppress(OSError):
            return await asyncio.open_connection(
                address, target.port, ssl=context, server_hostname=name, limit=_HEAD_MAX
            )
    return await asyncio.open_connection(addresses[-1], target.port, ssl=context, server_hostname=name, limit=_HEAD_MAX)


def _outcome(status: int, head: bytes, now: float) -> Outcome:
    if 200 <= status < 300:
        return Outcome(delivered=True, status=status)
    if 300 <= status < 400:
        return Outcome(delivered=False, status=status, error=f"answered {status}, a redirect, which is not followed")
    wait_s = _retry_after_s(head, now) if status in {429, 503} else 0.0
    error = f"answered {status}" + (": it wants nothing any more" if status == 410 else "")
    return Outcome(delivered=False, status=status, error=error, retry_after_s=wait_s, gone=status == 410)


def _retry_after_s(head: bytes, now: float) -> float:
    """Return how long the target wants to be left alone: it says so in seconds, or as a date."""
    match = _RETRY_AFTER.search(head)
    if match is None:
        return 0.0
    text = match[1].decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        ends = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, ends - now), RETRY_AFTER_MAX_S)


def _words(error: BaseException) -> str:
    """Put a failure into words, without the addresses that the system puts there."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection could be made"
    if isinstance(error, ConnectionError | EOFError):
        return "the connection broke off"
    if isinstance(error, asyncio.LimitOverrunError):
        return "its answer begins with too much"
    if isinstance(error, OSError):
        return f"no connection: {error.strerror or 'unreachable'}" if error.errno else "no connection"
    return str(error)
