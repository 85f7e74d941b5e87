"""Authentication of the admin port: bearer tokens, dashboard sessions and signed links.

Tokens have a name and a role and are stored as SHA-256 digests only. The operator's own token is generated on first
start, shown once, and stored hashed in the data directory; the setting `admin_token` replaces it.

A session is a signed cookie that names its token, for twelve hours. Scripts cannot read it and other sites cannot
send it. Requests with a cookie that change something also need a CSRF token. Nothing is stored but the sessions that
were closed, in the data directory, so that a restart does not open them again.

After several wrong tokens the attempts of a peer are checked one after the other, a few per second. A valid token that
is too long to be guessed is exempt, since a peer may be several people behind one address; a shorter one is not, since
a fast response would reveal it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from html import escape
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from breakloop.admin.errors import ApiError
from breakloop.clock import Clock
from breakloop.model.verdict import ANSWERS
from breakloop.observe.log import log
from breakloop.policy.client import is_loopback
from breakloop.store.data_dir import write_once, write_whole

VIEWER, OPERATOR = ROLES = ("viewer", "operator")
OWN_NAME: Final = "operator"  # name of the generated token, or of the one in admin_token
FILE: Final = "admin-token.sha256"
_PREFIX: Final = "bl_"


@dataclass(frozen=True, slots=True)
class AdminToken:
    """An admin token; `digest` is its SHA-256."""

    name: str
    role: str
    digest: bytes


class AdminTokens:
    def __init__(self, known: Sequence[AdminToken]) -> None:
        self._known = tuple(known)

    def find(self, presented: str) -> AdminToken | None:
        """Return the token that was presented, in constant time."""
        digest = sha256(presented.encode("utf-8", "surrogatepass")).digest()
        found = None
        for token in self._known:
            if compare_digest(token.digest, digest):
                found = token
        return found

    def named(self, name: str, mark: str) -> AdminToken | None:
        """Return the token of a session, if it was not replaced since."""
        return next((one for one in self._known if one.name == name and compare_digest(mark_of(one), mark)), None)


def mark_of(token: AdminToken) -> str:
    """Return a short digest that distinguishes a token from its successor with the same name."""
    return sha256(b"breakloop session of\0" + token.digest).hexdigest()[:16]


def parse_token(entry: str) -> AdminToken:
    """Parse `name:role:sha256`, the form of the setting `admin_tokens`. Raises `ValueError`."""
    name, role, digest = entry.rsplit(":", 2)
    if not name or role not in ROLES:
        raise ValueError(entry)
    made = AdminToken(name, role, bytes.fromhex(digest))
    if len(made.digest) != sha256().digest_size:
        raise ValueError(entry)
    return made


def open_tokens(data_dir: Path | None, given: str, more: Sequence[str] = ()) -> tuple[AdminTokens, str]:
    """Return the valid tokens, and the operator's own token in plain text if it was generated now.

    `given` is the setting `admin_token`, `more` the setting `admin_tokens`.
    """
    others = [parse_token(entry) for entry in more]
    if given:
        return AdminTokens([_own(sha256(given.encode()).digest()), *others]), ""
    made = _PREFIX + secrets.token_urlsafe(32)
    digest = sha256(made.encode()).digest()
    kept = digest if data_dir is None else _kept(data_dir / FILE, digest)
    return AdminTokens([_own(kept), *others]), made if kept == digest else ""


def _own(digest: bytes) -> AdminToken:
    return AdminToken(OWN_NAME, OPERATOR, digest)


def _kept(file: Path, digest: bytes) -> bytes:
    """Return the stored digest, which is the given one if there was none. Of two processes that start, one wins."""
    with suppress(OSError):  # it cannot be stored: the token is valid for this run
        write_once(file, digest.hex(), lambda file: _read(file) is not None)
    return _read(file) or digest


def _read(file: Path) -> bytes | None:
    try:
        found = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
    return found if len(found) == sha256().digest_size else None


COOKIE: Final = "breakloop_session"
CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf"  # a form field
LASTS_S: Final = 12 * 3600
_CLOSED_MAX: Final = 10_000
_CLOSED_FILE: Final = "closed-sessions"
_MAC: Final = 32


@dataclass(frozen=True, slots=True)
class DashboardSession:
    token: AdminToken
    csrf: str


class DashboardSessions:
    """Creates, finds and closes sessions. `data_dir` keeps those that were closed."""

    def __init__(self, secret: bytes, tokens: AdminTokens, clock: Clock, data_dir: Path | None = None) -> None:
        self._key = hmac.digest(secret, b"breakloop admin session", "sha256")
        self._tokens = tokens
        self._clock = clock
        self._file = None if data_dir is None else data_dir / _CLOSED_FILE
        self._closed = self._read_closed()

    def open(self, token: AdminToken) -> str:
        """Return the cookie of a new session."""
        expires = int(self._clock.now()) + LASTS_S
        said = f"{secrets.token_urlsafe(12)}.{expires}.{mark_of(token)}.{token.name}".encode()
        return urlsafe_b64encode(self._mac(said) + said).decode("ascii")

    def find(self, cookie: str) -> DashboardSession | None:
        """Return the session of a cookie, while it is open and its token is valid."""
        said = self._verified(cookie)
        if said is None:
            return None
        one, expires, mark, name = said.decode().split(".", 3)
        token = self._tokens.named(name, mark)
        if token is None or int(expires) <= self._clock.now() or one in self._closed:
            return None
        return DashboardSession(token, self._mac(b"csrf\0" + said).hex())

    def close(self, cookie: str) -> None:
        """Close a session before it expires. Writes a file, so call it in a thread."""
        said = self._verified(cookie)
        if said is None:
            return
        one, expires, _ = said.decode().split(".", 2)
        now = self._clock.now()
        if len(self._closed) >= _CLOSED_MAX:
            self._closed = {name: until for name, until in self._closed.items() if until > now}
        self._closed[one] = float(expires)
        if self._file is not None:
            with suppress(OSError):  # closed until the process ends
                lines = [f"{name} {until:.0f}\n" for name, until in self._closed.items()]
                write_whole(self._file, "".join(lines).encode(), mode=0o600)

    def _read_closed(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._file is not None:
            with suppress(OSError, ValueError):  # there is none yet
                for line in self._file.read_text(encoding="ascii").splitlines():
                    name, _, until = line.partition(" ")
                    if float(until) > self._clock.now():
                        found[name] = float(until)
        return found

    def _verified(self, cookie: str) -> bytes | None:
        """Return the content of a cookie if its signature is valid."""
        try:
            raw = urlsafe_b64decode(cookie.encode("ascii"))
        except ValueError:
            return None
        mac, said = raw[:_MAC], raw[_MAC:]
        return said if hmac.compare_digest(mac, self._mac(said)) else None

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, "sha256")


ANSWER: Final = "/answer/"  # the path of links that answer for a paused run
_TOKEN_MAX: Final = 200


class AnswerLink(NamedTuple):
    """What a link that answers for a paused run says."""

    pause: str
    answer: str
    expires: int


class AnswerLinks:
    """Makes and reads the links that answer for paused runs. Each names the pause, the answer and its end, and is
    signed with a key that is derived from the secret of the installation.
    """

    def __init__(self, secret: bytes, clock: Clock, url: str = "") -> None:
        self._key = hmac.digest(secret, b"breakloop answer link", "sha256")
        self._clock = clock
        self._url = url  # of the dashboard

    def fields(self, pause: str, due: float) -> dict[str, str]:
        """Return a link for each answer, by the name of its field in the payload of an alert."""
        return {f"answer_{answer}_url": f"{self._url}{ANSWER}{self.token(pause, answer, due)}" for answer in ANSWERS}

    def token(self, pause: str, answer: str, due: float) -> str:
        said = f"{pause}.{answer}.{int(due)}"
        return f"{said}.{self._mac(said)}"

    def read(self, token: str) -> AnswerLink | None:
        """Return what a token says; None if it is forged."""
        said, _, mac = token.rpartition(".")
        given = mac.encode("utf-8", "surrogatepass")
        if len(token) > _TOKEN_MAX or not hmac.compare_digest(given, self._mac(said).encode()):
            return None
        pause, answer, expires = said.split(".")
        return AnswerLink(pause, answer, int(expires))

    def is_over(self, link: AnswerLink) -> bool:
        return link.expires <= self._clock.now()

    def _mac(self, said: str) -> str:
        mac = hmac.digest(self._key, said.encode("utf-8", "surrogatepass"), "sha256")
        return urlsafe_b64encode(mac).rstrip(b"=").decode("ascii")


FREE: Final = 20  # wrong attempts without a delay
FORGOTTEN_S: Final = 60.0  # after the last wrong attempt
APART_S: Final = 0.2
LONGEST_S: Final = 5.0  # longer waits are rejected
_PEERS_MAX: Final = 10_000
STRONG_CHARS: Final = 32  # of a token; those that breakloop generates have 46
_LOGGED: Final = frozenset(10**power for power in range(9))  # numbers of wrong tokens at which a peer is logged


@dataclass(slots=True)
class _Peer:
    wrong: int = 0
    last_at: float = 0.0
    free_at: float = 0.0  # when the next attempt is checked


class LoginThrottle:
    """Delays attempts of peers that sent wrong tokens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def wait_s(self, peer: str) -> float | None:
        """Return how long to delay this attempt; None: too many are waiting."""
        known, now = self._peers.get(peer), self._clock.steady()
        if known is None or known.wrong < FREE or now - known.last_at >= FORGOTTEN_S:
            return 0.0
        wait = max(known.free_at - now, 0.0)
        if wait > LONGEST_S:
            return None
        known.free_at = now + wait + APART_S
        return wait

    def wrong(self, peer: str) -> None:
        now = self._clock.steady()
        known = self._peers.get(peer)
        if known is None or now - known.last_at >= FORGOTTEN_S:
            known = self._peers[peer] = _Peer()
        known.wrong += 1
        known.last_at = now
        if known.wrong in _LOGGED:
            log(logging.WARNING, "admin.denied", {"peer": peer, "wrong_tokens": known.wrong})
        self._peers.move_to_end(peer)
        if len(self._peers) > _PEERS_MAX:
            self._peers.popitem(last=False)


_REPORTED_EVERY_S: Final = 3600.0
_REPORTED_PEERS: Final = 10
_COUNTED_PEERS: Final = 1000


class DeniedAttempts:
    """Counts requests that were denied for their token, for the metrics and for the audit log. The log gets the first
    ones at once and then one entry an hour, so that an attacker cannot displace the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported_at: float | None = None
        self._by_peer: Counter[str] = Counter()  # since the last report
        self.total = 0

    def add(self, peer: str) -> None:
        self.total += 1
        known = peer in self._by_peer or len(self._by_peer) < _COUNTED_PEERS
        self._by_peer[peer if known else "other"] += 1

    def report(self, *, everything: bool = False) -> tuple[str, dict[str, object]] | None:
        """Return target and detail of an entry for the audit log, if one is due; with `everything`, at the end."""
        now = self._clock.now()
        last = self._reported_at
        waits = last is not None and 0 <= now - last < _REPORTED_EVERY_S and not everything
        if not self._by_peer or waits:
            return None
        counts, self._by_peer, self._reported_at = self._by_peer, Counter(), now
        most = counts.most_common(_REPORTED_PEERS)
        peers = ", ".join(f"{peer} ({count})" for peer, count in most)
        target = most[0][0] if len(counts) == 1 else f"{len(counts)} addresses"
        return target, {"attempts": counts.total(), "addresses": peers}


SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 200
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


@dataclass(frozen=True, slots=True)
class AdminIdentity:
    """The identity behind a request. `csrf` is the CSRF token of a session; empty for a bearer token."""

    name: str
    role: str
    csrf: str = ""

    @property
    def may_act(self) -> bool:
        return self.role == OPERATOR


class Auth:
    """Identifies requests, and begins and ends dashboard sessions."""

    def __init__(
        self,
        tokens: AdminTokens,
        secret: bytes,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        data_dir: Path | None = None,
    ) -> None:
        self.sessions = DashboardSessions(secret, tokens, clock, data_dir)
        self.links = AnswerLinks(secret, clock)
        self._tokens = tokens
        self.denied = DeniedAttempts(clock)
        self._slow = LoginThrottle(clock)
        self._sleep = sleep

    async def identify(self, request: Request) -> AdminIdentity:
        """Return the identity. Raises `ApiError` 401 without a valid token, 403 for a request that may be forged."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, presented = header.partition(" ")
            token = await self._check(presented.strip() if scheme.lower() == "bearer" else "", peer(request))
            if token is None:
                raise unauthenticated("the token is not valid")
            return AdminIdentity(token.name, token.role)
        session = self.sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            raise unauthenticated("a token is needed: Authorization: Bearer TOKEN, or log in at /login")
        if request.method not in SAFE_METHODS:
            check_own_site(request)
            await _check_csrf(request, session.csrf)
        return AdminIdentity(session.token.name, session.token.role, session.csrf)

    async def _check(self, presented: str, who: str) -> AdminToken | None:
        """Return a valid token, or None. Delays a peer that sent many wrong ones. Raises `ApiError` 429."""
        token = self._tokens.find(presented) if len(presented) >= STRONG_CHARS else None
        if token is not None:
            return token
        await self.slow_down(who, "too many wrong tokens from your address")
        token = self._tokens.find(presented)
        if token is None:
            self.note_wrong(who)
        return token

    async def slow_down(self, who: str, message: str) -> None:
        """Delay an attempt of a peer that made many wrong ones. Raises `ApiError` 429 if too many wait."""
        wait_s = self._slow.wait_s(who)
        if wait_s is None:
            self.denied.add(who)
            raise ApiError(429, message, headers={"Retry-After": str(math.ceil(LONGEST_S))})
        if wait_s:
            await self._sleep(wait_s)

    def note_wrong(self, who: str) -> None:
        """Count a wrong attempt of a peer."""
        self._slow.wrong(who)
        self.denied.add(who)

    async def sign_in(self, request: Request, token: str, response: Response) -> bool:
        """Set the cookie of a new session; return False for an unknown token. Raises `ApiError` 429."""
        found = await self._check(token, peer(request))
        if found is None:
            return False
        _set(response, request, self.sessions.open(found), LASTS_S)
        return True

    def sign_out(self, request: Request, response: Response) -> None:
        """Close the session and delete its cookie. Call it in a thread."""
        self.sessions.close(request.cookies.get(COOKIE, ""))
        _set(response, request, "", 0)


def unauthenticated(message: str) -> ApiError:
    return ApiError(401, message, headers={"WWW-Authenticate": 'Bearer realm="breakloop"'})


def identity(request: Request) -> AdminIdentity:
    found = request.state.user
    assert isinstance(found, AdminIdentity)  # noqa: S101 - set by AuthMiddleware
    return found


def peer(request: Request) -> str:
    return request.client.host if request.client else ""


def here(request: Request) -> str:
    """Return path and query of a page, to return to."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def is_local(request: Request) -> bool:
    """Return whether the request comes from this machine, and not through a proxy on it."""
    return not any(name in request.headers for name in _FORWARDED) and is_loopback(peer(request))


def check_own_site(request: Request) -> None:
    """Raise `ApiError` for a request of another site's page, by the fields that browsers send."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    own = {None, f"http://{host}", f"https://{host}"}  # TLS may end at a proxy in front
    if (site is not None and site not in _OWN_SITES) or origin not in own:
        raise ApiError(403, "the request comes from another site", code="cross_site")


async def _check_csrf(request: Request, wanted: str) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not given and is_form(request):
        given = form_field(await request.body(), CSRF_FIELD)
    if not compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
        raise ApiError(403, f"the {CSRF_HEADER} header, or the field {CSRF_FIELD}, is missing or wrong", code="csrf")


def is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


def form_field(body: bytes, name: str) -> str:
    """Return one field of a form, or an empty text."""
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS_MAX)
    except ValueError:
        return ""
    return found.get(name, [""])[0]


def _set(response: Response, request: Request, value: str, lasts_s: int) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, value, max_age=lasts_s, path="/", secure=secure, httponly=True, samesite="strict")


OPEN: Final = frozenset({"/livez", "/login"})
STATIC: Final = "/static/"
METRICS: Final = "/metrics"

_LED: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sign in - breakloop</title>'
    '<meta http-equiv="refresh" content="0; url={form}"></head><body><a href="{form}">Sign in</a></body></html>'
)


class AuthMiddleware:
    """Sets the identity of every request, except for public paths."""

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if is_open(request):
            await self._open(request, scope, receive, send)
            return
        if request.method not in SAFE_METHODS and is_form(request):
            receive = _again(await request.body(), receive)  # the body is read here and by the page
        try:
            request.state.user = await self._auth.identify(request)
        except ApiError as fault:
            await _refusal(request, fault)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _open(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        if request.method not in SAFE_METHODS:
            check_own_site(request)
        await self._app(scope, receive, send)


def _refusal(request: Request, fault: ApiError) -> Response:
    """Browsers are redirected to the login form, with the same status that other clients get."""
    browser = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
    if fault.status != 401 or "authorization" in request.headers:
        return fault.response()
    if "hx-request" in request.headers:  # a part of a page: the whole page must go to the login form
        fault.headers["HX-Redirect"] = "/login"
        return fault.response()
    if not browser or request.method not in SAFE_METHODS:
        return fault.response()
    wanted = here(request)
    form = escape("/login" + ("" if wanted == "/" else f"?{urlencode({'next': wanted})}"))
    return HTMLResponse(_LED.format(form=form), 401, fault.headers)


def is_open(request: Request) -> bool:
    path = request.url.path
    return path in OPEN or path.startswith((STATIC, ANSWER)) or (path == METRICS and is_local(request))


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body."""
    handed = False

    async def replayed() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
