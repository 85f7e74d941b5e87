"""Opening a connection to one Redis server: TCP, TLS, user and password, database, name; and whether it is of use.

What is said when it fails holds addresses and reasons, never a password. Which server, and when to try again, is
decided by `redis_keeper` and its callers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from breakloop.errors import StateError
from breakloop.state.redis_link import SILENCE_S, Answer, Link, RedisError
from breakloop.state.redis_url import Address, RedisUrl, tls_context

OPEN_S: Final = 2.0  # for all of it
_NAME: Final = b"breakloop"


class WantsPasswordError(StateError):
    """A server that lets nobody in without a password, and was given none."""


@dataclass(frozen=True, slots=True, repr=False)
class Door:
    """How connections are opened; the same for every server of a URL."""

    loop: asyncio.AbstractEventLoop
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""
    db: int = 0
    writes: bool = True  # a read-only replica is of no use
    open_s: float = OPEN_S
    silence_s: float = SILENCE_S


def door_for(url: RedisUrl, loop: asyncio.AbstractEventLoop) -> Door:
    """Read what a URL says. Raises `SettingsError` for files that cannot be used."""
    writes = url.kind != "cluster"  # there, a replica says MOVED
    return Door(loop, tls_context(url), url.user, url.password, url.db, writes)


async def open_link(door: Door, address: Address) -> Link:
    """Connect and greet. Raises `StateError`, which says what went wrong with which address."""
    link: Link | None = None
    try:
        async with asyncio.timeout(door.open_s):
            _, link = await door.loop.create_connection(
                lambda: Link(door.loop, door.silence_s),
                address.host,
                address.port,
                ssl=door.tls,
                server_hostname=address.host if door.tls else None,
            )
            await _greet(door, link)
    except TimeoutError:
        problem = StateError(f"{address} did not answer within {door.open_s:g} s")
    except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
        problem = StateError(f"{address} {_why(error)}")
    except StateError as error:
        problem = type(error)(f"{address} {error}")
    except BaseException:
        if link is not None:
            link.end("nobody waits for it any more")
        raise
    else:
        return link
    if link is not None:
        link.end(str(problem))
    raise problem from None


async def _greet(door: Door, link: Link) -> None:
    """All in one round trip. Raises `StateError`."""
    login: list[Answer] = []
    db: list[Answer] = []
    role: list[Answer] = []
    if door.password:
        user = (door.user.encode(),) if door.user else ()
        link.send((b"AUTH", *user, door.password.encode()), login.append)
    if door.db:
        link.send((b"SELECT", str(door.db).encode()), db.append)
    link.send((b"CLIENT", b"SETNAME", _NAME), _whatever)
    if door.writes:
        link.send((b"ROLE",), role.append)
    pong = await link.call(b"PING")
    if isinstance(pong, StateError) and not isinstance(pong, RedisError):
        raise StateError(f"closed the connection ({pong})")
    if login and isinstance(login[0], RedisError):
        raise StateError("refused the user or password")
    _judge(pong)
    if db and isinstance(db[0], RedisError):
        raise StateError(f"has no database {door.db}")
    if role and isinstance(role[0], list) and role[0][:1] == [b"slave"]:
        raise StateError("is a read-only replica")


def _judge(pong: Answer) -> None:
    if not isinstance(pong, RedisError) or pong.code == "NOPERM":
        return
    if pong.code == "NOAUTH":
        raise WantsPasswordError("wants a password")
    raise StateError("is still loading its data" if pong.code == "LOADING" else f"answered {pong.code}")


def _whatever(_answer: Answer) -> None:
    """A server that does not take our name is still of use."""


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "does not speak TLS as we do"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "has a name that is not known"
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    return "could not be reached"
