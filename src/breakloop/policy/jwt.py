"""Reads the claims of `Authorization: Bearer` tokens.

Without keys, tokens are decoded but not trusted. With keys, only a verified and unexpired token has claims. A token
that is invalid in any way has no claims. The runtime calls `refresh` to fetch keys off the request path. PyJWT, of the
extra `server`, is imported if there are keys.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from breakloop.clock import Clock
from breakloop.errors import SettingsError
from breakloop.policy.cache import TwoGenerationCache

if TYPE_CHECKING:
    from jwt.algorithms import Algorithm

NO_CLAIMS: Final[Mapping[str, object]] = MappingProxyType({})
_HMAC: Final = frozenset(("HS256", "HS384", "HS512"))
_RSA: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_TOKEN_MAX_BYTES: Final = 16 * 1024
_CACHED_MAX: Final = 4096
_CACHED_MAX_BYTES: Final = 8 * 1024 * 1024
_JWKS_MAX_BYTES: Final = 1024 * 1024
_FETCH_TIMEOUT_S: Final = 10.0
_ASK_AGAIN_S: Final = 30.0
_ALWAYS: Final = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class JwtKeys:
    """How tokens are verified. If `algorithms` is empty, those that fit each key are allowed; `none` never is."""

    secret: str = ""
    jwks_file: str = ""
    jwks_url: str = ""
    audience: str = ""
    issuer: str = ""
    leeway_s: float = 0.0
    algorithms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str | None
    algorithms: frozenset[str]
    key: Any


@dataclass(frozen=True, slots=True)
class _Parts:
    header: Mapping[str, object]
    claims: Mapping[str, object]
    signed: bytes
    signature: bytes


# Claims, and the start and end of their validity.
_Entry = tuple[Mapping[str, object], float, float]
_NOTHING: Final[_Entry] = (NO_CLAIMS, *_ALWAYS)


class _KeySet:
    """Keys and the results of verifying by them, replaced at once: no cached result outlives its keys."""

    __slots__ = ("judged", "keys", "source")

    def __init__(self, keys: tuple[_Key, ...], source: str) -> None:
        self.keys = keys
        self.source = source
        self.judged: TwoGenerationCache[bytes, _Entry] = TwoGenerationCache(_CACHED_MAX, _CACHED_MAX_BYTES)


class JwtReader:
    """Reads tokens and caches recent ones."""

    __slots__ = ("_algorithms", "_asked_at", "_clock", "_keys", "_secret", "key_set", "verifies", "wants_refresh")

    def __init__(self, keys: JwtKeys | None, clock: Clock) -> None:
        self.verifies = keys is not None
        self._clock = clock
        self._keys = keys or JwtKeys()
        self._algorithms: Mapping[str, Algorithm] = {}
        if keys is not None:
            from jwt.algorithms import get_default_algorithms  # noqa: PLC0415 - an extra

            self._algorithms = get_default_algorithms()
        self._secret = _secret_key(self._keys.secret)
        self.key_set = _KeySet(self._secret, "")  # a different object after the keys have changed
        self.wants_refresh = bool(self._keys.jwks_file or self._keys.jwks_url)
        self._asked_at = -math.inf

    def claims(self, authorization: bytes) -> Mapping[str, object]:
        """Return the claims of an Authorization value, or an empty mapping if none are valid now."""
        key_set = self.key_set
        entry = key_set.judged.get(authorization)
        if entry is None:
            entry = self._judge(authorization, key_set)
        if not self.verifies:
            return entry[0]
        return entry[0] if entry[1] <= self._clock.now() < entry[2] else NO_CLAIMS

    def holds(self, authorization: bytes | None) -> tuple[object, float, float]:
        """Return the key set, and the time span in which the claims of an Authorization value do not change."""
        key_set = self.key_set
        if not self.verifies or authorization is None:
            return key_set, *_ALWAYS
        _, begins, ends = key_set.judged.get(authorization) or self._judge(authorization, key_set)
        now = self._clock.now()
        if now < begins:
            return key_set, -math.inf, begins  # not yet valid: without claims until then
        return (key_set, begins, ends) if now < ends else (key_set, ends, math.inf)

    def refresh(self) -> str:
        """Read `jwks_file` and `jwks_url` again, in the calling thread. Returns why the old keys were kept, or ""."""
        self.wants_refresh = False
        texts: list[str] = []
        try:
            if self._keys.jwks_file:
                texts.append(Path(self._keys.jwks_file).read_text("utf-8"))
            if self._keys.jwks_url:
                texts.append(_fetch(self._keys.jwks_url))
            source = "\n".join(texts)
            if source != self.key_set.source:
                found = tuple(key for text in texts for key in _read_jwks(text))
                self.key_set = _KeySet(self._secret + found, source)
        except (OSError, ValueError, RecursionError) as error:  # URLError and HTTPError are OSErrors
            return f"{type(error).__name__}: {error}"
        return ""

    def _judge(self, authorization: bytes, key_set: _KeySet) -> _Entry:
        parts = _split(authorization, payload_only=not self.verifies)
        if parts is None:
            return _NOTHING  # cheaper to compute again than to cache
        if not self.verifies:
            entry: _Entry = (parts.claims, *_ALWAYS)
        else:
            candidates = self._candidates(parts.header, key_set)
            if not candidates:
                return _NOTHING
            entry = self._verify(parts, candidates)
        key_set.judged.put(authorization, entry)
        return entry

    def _candidates(self, header: Mapping[str, object], key_set: _KeySet) -> list[_Key]:
        name, kid = header.get("alg"), header.get("kid")
        if not isinstance(name, str) or name not in self._algorithms or "crit" in header:
            return []
        if self._keys.algorithms and name not in self._keys.algorithms:
            return []
        # A key is used only with algorithms of its own type, so a public key is never used as an HMAC secret.
        fitting = [key for key in key_set.keys if name in key.algorithms]
        if kid is None:
            return fitting
        named = [key for key in fitting if key.kid is None or key.kid == kid]
        now = self._clock.steady()
        if not named and (self._keys.jwks_file or self._keys.jwks_url) and now - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = now
            self.wants_refresh = True
        return named

    def _verify(self, parts: _Parts, candidates: list[_Key]) -> _Entry:
        algorithm = self._algorithms[str(parts.header["alg"])]
        times = _times(parts.claims, self._keys.leeway_s)
        if times is None or not self._meant_for_us(parts.claims):
            return _NOTHING
        for key in candidates:
            try:
                if algorithm.verify(parts.signed, key.key, parts.signature):
                    return (parts.claims, *times)
            except (ValueError, TypeError):  # a signature whose format does not fit the key
                continue
        return _NOTHING

    def _meant_for_us(self, claims: Mapping[str, object]) -> bool:
        if self._keys.issuer and claims.get("iss") != self._keys.issuer:
            return False
        if not self._keys.audience:
            return True
        audience = claims.get("aud")
        return self._keys.audience in audience if isinstance(audience, list) else audience == self._keys.audience


def claim_text(claims: Mapping[str, object], name: str) -> str | None:
    """Return a claim as text, by its name or by a dotted path. Lists, objects and null count as missing."""
    value: object = claims.get(name)
    if value is None and "." in name:
        value = claims
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict | MappingProxyType) else None
    if isinstance(value, str):
        return value or None
    return json.dumps(value) if isinstance(value, int | float) else None


def _secret_key(secret: str) -> tuple[_Key, ...]:
    if not secret:
        return ()
    if "-----BEGIN " in secret:
        raise SettingsError("jwt.secret: a PEM key is not a shared secret (put public keys into a jwks_file)")
    return (_Key(None, _HMAC, secret.encode()),)


def _split(authorization: bytes, *, payload_only: bool) -> _Parts | None:
    """Split a token. If nothing is verified, only the payload must be valid: a gateway in front may have verified the
    token and replaced its signature.
    """
    if authorization.count(b".") != 2 or len(authorization) > _TOKEN_MAX_BYTES:
        return None
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    signed, _, signature = token.strip().rpartition(b".")
    head, _, payload = signed.partition(b".")
    try:
        claims = json.loads(_unbase64(payload))
        if not isinstance(claims, dict):
            return None
        if payload_only:
            return _Parts({}, claims, signed, b"")
        header = json.loads(_unbase64(head))
        return _Parts(header, claims, signed, _unbase64(signature)) if isinstance(header, dict) else None
    except (ValueError, RecursionError):
        return None


def _unbase64(text: bytes) -> bytes:
    return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _times(claims: Mapping[str, object], leeway_s: float) -> tuple[float, float] | None:
    not_before, expires = _moment(claims.get("nbf", -math.inf)), _moment(claims.get("exp", math.inf))
    if math.isnan(not_before) or math.isnan(expires):
        return None
    return not_before - leeway_s, expires + leeway_s


def _moment(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond any date
        return math.nan


def _fetch(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise ValueError("jwks_url is not an http or https URL")
    from urllib.request import Request, urlopen  # noqa: PLC0415 - with it, a start takes longer; few have a `jwks_url`

    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310 (the scheme was checked)
    with urlopen(request, timeout=_FETCH_TIMEOUT_S) as answer:  # noqa: S310
        raw: bytes = answer.read(_JWKS_MAX_BYTES + 1)
    if len(raw) > _JWKS_MAX_BYTES:
        raise ValueError("the key set is larger than 1 MB")
    return raw.decode("utf-8")


def _read_jwks(text: str) -> list[_Key]:
    value = json.loads(text)
    items = value.get("keys") if isinstance(value, dict) else None
    found = [key for item in items if (key := _read_jwk(item)) is not None] if isinstance(items, list) else []
    if not found:
        raise ValueError("no usable signature key in the key set")
    return found


def _read_jwk(item: object) -> _Key | None:
    """Read one key. Keys for encryption and keys of unknown types are skipped (RFC 7517 section 5)."""
    from jwt import PyJWK  # noqa: PLC0415 - an extra
    from jwt.exceptions import PyJWTError  # noqa: PLC0415 - an extra

    if not isinstance(item, dict) or item.get("use", "sig") != "sig":
        return None
    try:
        key = PyJWK(item)
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if "alg" in item:
        names = frozenset((key.algorithm_name,))
    else:
        names = {"RSA": _RSA, "oct": _HMAC}.get(str(item.get("kty")), frozenset((key.algorithm_name,)))
    kid = item.get("kid")
    return _Key(kid if isinstance(kid, str) else None, names, key.key)
