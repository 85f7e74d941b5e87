"""Tokens: what is believed of them, and what is not."""

from __future__ import annotations

import base64
import hmac
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from breakloop.clock import FakeClock
from breakloop.errors import SettingsError
from breakloop.policy.jwt import JwtKeys, JwtReader, claim_text
from tests.each import each

SECRET = "a shared secret of more than 64 bytes, as HS512 asks for it to be kept strong"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


def signed(claims: dict[str, object], key: Any = SECRET, algorithm: str = "HS256", **header: object) -> bytes:
    return bearer(pyjwt.encode(claims, key, algorithm, headers=header))


def by_hand(header: object, claims: object, signature: bytes = b"") -> bytes:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return b"Bearer " + b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def jwk(public: Any, kid: str | None = None, **more: str) -> dict[str, object]:
    algorithm: Any = {rsa.RSAPublicKey: RSAAlgorithm, ec.EllipticCurvePublicKey: ECAlgorithm}.get(
        next((kind for kind in (rsa.RSAPublicKey, ec.EllipticCurvePublicKey) if isinstance(public, kind)), object),
        OKPAlgorithm,
    )
    found: dict[str, object] = json.loads(algorithm.to_jwk(public))
    found.pop("key_ops", None)
    return found | ({"kid": kid} if kid else {}) | more


@pytest.fixture
def key_file(tmp_path: Path) -> Callable[..., str]:
    def write(*keys: Mapping[str, object]) -> str:
        path = tmp_path / "jwks.json"
        path.write_text(json.dumps({"keys": keys}))
        return str(path)

    return write


def with_file(file: str, clock: FakeClock, **more: Any) -> JwtReader:
    tokens = JwtReader(JwtKeys(jwks_file=file, **more), clock)
    assert wants(tokens) is True
    assert tokens.refresh() == ""
    assert wants(tokens) is False
    return tokens


def wants(tokens: JwtReader) -> bool:
    return tokens.wants_refresh


def test_without_keys_claims_are_read_and_not_believed(clock: FakeClock) -> None:
    """Without keys the payload is decoded whoever signed it and however old it is (C-3)."""
    tokens = JwtReader(None, clock)
    assert not tokens.verifies
    assert tokens.claims(by_hand({"alg": "none"}, {"sub": "u", "exp": 1})) == {"sub": "u", "exp": 1}


BROKEN = {
    "two parts": b"Bearer e30.e30",
    "four parts": b"Bearer e30.e30.e30.e30",
    "no scheme": by_hand({"alg": "HS256"}, {"sub": "u"})[7:],
    "basic": b"Basic " + by_hand({"alg": "HS256"}, {"sub": "u"})[7:],
    "bad base64": b"Bearer !!.??.--",
    "foreign characters": b"Bearer e30.eyJzdWIiOiJ1In0!!!!.e30",
    "bad length": b"Bearer a.a.a",
    "bad JSON": b"Bearer e30.e3x9.e30",
    "payload is a list": by_hand({"alg": "HS256"}, [1]),
    "payload is text": by_hand({"alg": "HS256"}, "x"),
    "empty parts": b"Bearer ..",
    "nothing": b"",
    "not UTF-8": b"Bearer e30." + base64.urlsafe_b64encode(b'{"sub": "\xff"}').rstrip(b"=") + b".e30",
    "100 KB": by_hand({"alg": "HS256"}, {"sub": "u" * 100_000}),
    "deep": b"Bearer e30." + base64.urlsafe_b64encode(b"[" * 9_000).rstrip(b"=") + b".e30",
    "long number": b"Bearer e30." + base64.urlsafe_b64encode(b'{"n":' + b"9" * 5_000 + b"}").rstrip(b"=") + b".e30",
}


@pytest.mark.parametrize("authorization", BROKEN.values(), ids=BROKEN)
def test_a_broken_token_has_no_claims(authorization: bytes, clock: FakeClock) -> None:
    """Never an exception, verified or not (C-3)."""
    assert JwtReader(None, clock).claims(authorization) == {}
    assert JwtReader(JwtKeys(secret=SECRET), clock).claims(authorization) == {}


def test_a_token_has_at_most_16_kib(clock: FakeClock) -> None:
    """Longer ones are not decoded (Y-2)."""
    token = b".eyJzdWIiOiJ1In0."
    for size, claims in ((16_384, {"sub": "u"}), (16_385, {})):
        assert JwtReader(None, clock).claims(b"Bearer " + b"x" * (size - len(token) - 7) + token) == claims


@pytest.mark.parametrize("token", [b"x.eyJzdWIiOiJ1In0.x", b"W10.eyJzdWIiOiJ1In0.!", b".eyJzdWIiOiJ1In0."])
def test_without_keys_only_the_payload_has_to_be_right(token: bytes, clock: FakeClock) -> None:
    """Whoever checked the token in front may have left anything as its signature; with keys that is no token (C-3)."""
    assert JwtReader(None, clock).claims(b"Bearer " + token) == {"sub": "u"}
    assert JwtReader(JwtKeys(secret=SECRET), clock).claims(b"Bearer " + token) == {}


def test_a_shared_secret(clock: FakeClock) -> None:
    """Only a token signed with the secret has claims (C-3)."""
    tokens = JwtReader(JwtKeys(secret=SECRET), clock)
    for algorithm in ("HS256", "HS384", "HS512"):
        assert tokens.claims(signed({"sub": "u"}, algorithm=algorithm)) == {"sub": "u"}
    assert tokens.claims(signed({"sub": "u"}, "another secret that is long enough for HS256")) == {}
    assert tokens.claims(by_hand({"alg": "none"}, {"sub": "u"})) == {}
    assert tokens.claims(by_hand({"alg": "None"}, {"sub": "u"})) == {}
    assert tokens.claims(by_hand({}, {"sub": "u"})) == {}
    assert tokens.claims(by_hand({"alg": ["HS256"]}, {"sub": "u"})) == {}


def test_a_changed_payload_is_refused(clock: FakeClock) -> None:
    head, _, signature = signed({"sub": "u"}).split(b".")
    forged = base64.urlsafe_b64encode(b'{"sub":"admin"}').rstrip(b"=")
    assert JwtReader(JwtKeys(secret=SECRET), clock).claims(b".".join((head, forged, signature))) == {}


def test_short_secrets_work_without_a_warning(clock: FakeClock) -> None:
    header, claims = b'{"alg":"HS256"}', b'{"sub":"u"}'
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, claims))
    signature = pyjwt.get_algorithm_by_name("HS256").sign(text, b"short")
    token = b"Bearer " + text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    assert JwtReader(JwtKeys(secret="short"), clock).claims(token) == {"sub": "u"}


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA_KEY, "RS256"), (RSA_KEY, "PS512"), (EC_KEY, "ES256"), (ED_KEY, "EdDSA")],
    ids=["RS256", "PS512", "ES256", "EdDSA"],
)
def test_key_sets(key: Any, algorithm: str, clock: FakeClock, key_file: Callable[..., str]) -> None:
    """Keys of a `jwks_file`, by kid or by trying those that fit (C-3)."""
    other = rsa.generate_private_key(65537, 2048)
    tokens = with_file(key_file(jwk(other.public_key(), "other"), jwk(key.public_key(), "mine")), clock)
    assert tokens.claims(signed({"sub": "u"}, key, algorithm, kid="mine")) == {"sub": "u"}
    assert tokens.claims(signed({"sub": "u"}, key, algorithm)) == {"sub": "u"}
    assert tokens.claims(signed({"sub": "u"}, key, algorithm, kid="other")) == {}
    assert tokens.claims(signed({"sub": "u"})) == {}


def test_a_public_key_is_no_hmac_secret(clock: FakeClock, key_file: Callable[..., str]) -> None:
    """A token signed with the public key as if it were a secret is refused (C-3)."""
    public = RSA_KEY.public_key()
    tokens = with_file(key_file(jwk(public, "k")), clock)
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    for material in (pem, der, json.dumps(jwk(public, "k")).encode()):
        text = by_hand({"alg": "HS256", "kid": "k"}, {"sub": "admin"})[7:].rpartition(b".")[0]
        digest = hmac.new(material, text, "sha256").digest()
        forged = b"Bearer " + text + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")
        assert tokens.claims(forged) == {}
    with pytest.raises(SettingsError, match=r"jwt\.secret"):
        JwtReader(JwtKeys(secret=pem.decode()), clock)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_signature_of_the_wrong_form_is_refused(
    algorithm: str, clock: FakeClock, key_file: Callable[..., str]
) -> None:
    """Too short, too long, empty (C-3)."""
    tokens = with_file(key_file(*[jwk(key.public_key()) for key in (RSA_KEY, EC_KEY, ED_KEY)]), clock)
    for size in (0, 1, 63, 64, 65, 256, 2000):
        assert tokens.claims(by_hand({"alg": algorithm}, {"sub": "u"}, b"\xff" * size)) == {}


@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_a_key_that_does_not_fit_a_signature_hides_no_other(
    error: type[Exception], clock: FakeClock, key_file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the library of signatures raises for it (C-3)."""
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    tokens = with_file(key_file(jwk(other), jwk(EC_KEY.public_key())), clock)
    verify = ECAlgorithm.verify

    def strict(self: ECAlgorithm, text: bytes, key: Any, signature: bytes) -> bool:
        if key.public_numbers() == other.public_numbers():
            raise error
        return verify(self, text, key, signature)

    monkeypatch.setattr(ECAlgorithm, "verify", strict)
    assert tokens.claims(signed({"sub": "u"}, EC_KEY, "ES256")) == {"sub": "u"}


def test_a_key_may_name_its_algorithm_and_the_settings_may_narrow_it(
    clock: FakeClock, key_file: Callable[..., str]
) -> None:
    tokens = with_file(key_file(jwk(RSA_KEY.public_key(), alg="RS512")), clock)
    assert tokens.claims(signed({"sub": "u"}, RSA_KEY, "RS256")) == {}
    assert tokens.claims(signed({"sub": "u"}, RSA_KEY, "RS512")) == {"sub": "u"}
    narrow = with_file(key_file(jwk(RSA_KEY.public_key())), clock, algorithms=("PS256",))
    assert narrow.claims(signed({"sub": "u"}, RSA_KEY, "RS256")) == {}
    assert narrow.claims(signed({"sub": "u"}, RSA_KEY, "PS256")) == {"sub": "u"}


def test_encryption_keys_and_unknown_keys_are_passed_over(clock: FakeClock, key_file: Callable[..., str]) -> None:
    damaged: tuple[Mapping[str, object], ...]
    damaged = ({}, {"kty": "oct"}, {"kty": "oct", "k": "\ud800"}, {"kty": "oct", "k": "AAAA", "alg": ["HS256"]})
    others = ({"kty": "new"}, jwk(RSA_KEY.public_key(), use="enc"))
    file = key_file(*damaged, *others, jwk(EC_KEY.public_key(), use="sig"))
    tokens = with_file(file, clock)
    assert tokens.claims(signed({"sub": "u"}, EC_KEY, "ES256")) == {"sub": "u"}
    assert tokens.claims(signed({"sub": "u"}, RSA_KEY, "RS256")) == {}


def test_critical_extensions_are_not_understood_and_so_refused(clock: FakeClock) -> None:
    tokens = JwtReader(JwtKeys(secret=SECRET), clock)
    text = by_hand({"alg": "HS256", "crit": ["x"], "x": 1}, {"sub": "u"})[7:].rpartition(b".")[0]
    signature = pyjwt.get_algorithm_by_name("HS256").sign(text, SECRET.encode())
    assert tokens.claims(b"Bearer " + text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")) == {}


def test_times_are_checked_on_every_use(clock: FakeClock) -> None:
    """A token that was good is refused from the second it expires, from the cache too (C-3)."""
    now = clock.now()
    tokens = JwtReader(JwtKeys(secret=SECRET), clock)
    token = signed({"sub": "u", "exp": now + 10, "nbf": now + 5})
    assert tokens.claims(token) == {}
    assert tokens.holds(token)[1:] == (-math.inf, now + 5)
    clock.advance(5)
    assert tokens.holds(token)[1:] == (now + 5, now + 10)
    assert tokens.claims(token)["sub"] == "u"
    clock.advance(4.9)
    assert tokens.claims(token)["sub"] == "u"
    clock.advance(0.1)
    assert tokens.claims(token) == {}
    assert tokens.holds(token)[1:] == (now + 10, math.inf)


def test_a_request_without_a_token_has_no_claims_for_good(clock: FakeClock) -> None:
    """What is remembered of its sender does not end (Q-1)."""
    assert JwtReader(JwtKeys(secret=SECRET), clock).holds(None)[1:] == (-math.inf, math.inf)


def test_leeway(clock: FakeClock) -> None:
    tokens = JwtReader(JwtKeys(secret=SECRET, leeway_s=30), clock)
    assert tokens.claims(signed({"sub": "u", "exp": clock.now() - 29}))["sub"] == "u"
    assert tokens.claims(signed({"sub": "u", "exp": clock.now() - 31})) == {}
    assert tokens.claims(signed({"sub": "u", "nbf": clock.now() + 29}))["sub"] == "u"


@pytest.mark.parametrize("expires", ["soon", None, True, [1], 10**400, float("nan")])
def test_a_time_that_is_none_is_refused(expires: object, clock: FakeClock) -> None:
    tokens = JwtReader(JwtKeys(secret=SECRET), clock)
    text = by_hand({"alg": "HS256"}, {"sub": "u", "exp": expires})[7:].rpartition(b".")[0]
    signature = pyjwt.get_algorithm_by_name("HS256").sign(text, SECRET.encode())
    assert tokens.claims(b"Bearer " + text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")) == {}


def test_audience_and_issuer(clock: FakeClock) -> None:
    tokens = JwtReader(JwtKeys(secret=SECRET, audience="us", issuer="them"), clock)
    assert tokens.claims(signed({"aud": "us", "iss": "them"}))
    assert tokens.claims(signed({"aud": ["x", "us"], "iss": "them"}))
    for claims in ({"aud": "us"}, {"iss": "them"}, {"aud": "use", "iss": "them"}, {"aud": ["x"], "iss": "them"}):
        assert tokens.claims(signed(dict(claims))) == {}


def test_an_unknown_kid_asks_for_new_keys_at_most_every_30_s(clock: FakeClock, key_file: Callable[..., str]) -> None:
    """Key rotation is found by the kid, and a stranger cannot make us fetch all day (C-3)."""
    file = key_file(jwk(EC_KEY.public_key(), "old"))
    tokens = with_file(file, clock)
    new = signed({"sub": "u"}, RSA_KEY, "RS256", kid="new")
    assert tokens.claims(new) == {}
    assert wants(tokens) is True
    assert tokens.refresh() == ""
    assert tokens.claims(new) == {}
    clock.advance(29.75)
    assert tokens.claims(new) == {}
    assert wants(tokens) is False
    clock.advance(0.25)
    key_file(jwk(RSA_KEY.public_key(), "new"))
    assert tokens.claims(new) == {}
    assert wants(tokens) is True
    assert tokens.refresh() == ""
    assert tokens.claims(new) == {"sub": "u"}


def test_withdrawn_keys_take_their_tokens_with_them(clock: FakeClock, key_file: Callable[..., str]) -> None:
    """What was verified with a key is forgotten with it (C-3)."""
    tokens = with_file(key_file(jwk(EC_KEY.public_key(), "old")), clock)
    token = signed({"sub": "u"}, EC_KEY, "ES256", kid="old")
    assert tokens.claims(token) == {"sub": "u"}
    key_file(jwk(RSA_KEY.public_key(), "new"))
    tokens.refresh()
    assert tokens.claims(token) == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"keys": []}', '{"keys": 1}', '{"keys": [{"kty": "x"}]}', "[" * 100_000, None]
)
def test_a_failed_refresh_keeps_the_old_keys(text: str | None, clock: FakeClock, key_file: Callable[..., str]) -> None:
    """An identity provider that is down, or talks nonsense, is not an outage (C-3)."""
    file = key_file(jwk(EC_KEY.public_key()))
    tokens = with_file(file, clock)
    if text is None:
        Path(file).unlink()
    else:
        Path(file).write_text(text)
    assert tokens.refresh() != ""
    assert tokens.claims(signed({"sub": "u"}, EC_KEY, "ES256")) == {"sub": "u"}


def test_keys_from_a_url(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """`jwks_url` is fetched by refresh, with a limit on size and time (C-3)."""
    keys = json.dumps({"keys": [jwk(EC_KEY.public_key(), "a")]}).encode()
    answers = [keys, keys.ljust(1 << 20), keys.ljust((1 << 20) + 1)]
    asked: list[tuple[str, float]] = []

    def urlopen(request: Any, timeout: float) -> io.BytesIO:
        asked.append((request.full_url, timeout))
        return io.BytesIO(answers.pop(0))

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    tokens = JwtReader(JwtKeys(jwks_url="https://id.example.com/keys"), clock)
    token = signed({"sub": "u"}, EC_KEY, "ES256", kid="a")
    assert tokens.claims(token) == {}
    assert asked == []
    assert tokens.refresh() == ""
    assert tokens.claims(token) == {"sub": "u"}
    assert asked == [("https://id.example.com/keys", 10.0)]
    assert tokens.refresh() == ""
    assert "1 MB" in tokens.refresh()
    assert tokens.claims(token) == {"sub": "u"}


def test_only_http_urls_are_fetched(clock: FakeClock, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk(EC_KEY.public_key())]}))
    tokens = JwtReader(JwtKeys(jwks_url=file.as_uri()), clock)
    assert "http" in tokens.refresh()


def test_a_verified_token_is_verified_once(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good and bad signatures are remembered, so a loop pays for one check (Q-1)."""
    tokens = JwtReader(JwtKeys(secret=SECRET), clock)
    good, bad = signed({"sub": "u"}), signed({"sub": "u"}, "another secret that is long enough for HS256")
    assert (tokens.claims(good), tokens.claims(bad)) == ({"sub": "u"}, {})
    monkeypatch.setattr(JwtReader, "_verify", None)
    assert (tokens.claims(bytes(bytearray(good))), tokens.claims(bytes(bytearray(bad)))) == ({"sub": "u"}, {})


@each(
    "name, expected",
    [
        ("sub", "u"),
        ("level", "3"),
        ("admin", "true"),
        ("ratio", "0.5"),
        ("org.tier", "gold"),
        ("org.deep.er", "x"),
        ("https://example.com/team", "red"),
        ("a.b", "literal"),
        ("org", None),
        ("roles", None),
        ("none", None),
        ("empty", None),
        ("absent", None),
        ("org.absent.more", None),
        ("sub.more", None),
        ("roles.0", None),
    ],
)
def test_claims_by_dotted_name(name: str, expected: str | None) -> None:
    """Nested claims by dotted name, a literal name first; lists and objects are no values (C-3)."""
    claims: dict[str, object] = {
        "sub": "u",
        "level": 3,
        "admin": True,
        "ratio": 0.5,
        "org": {"tier": "gold", "deep": {"er": "x"}},
        "https://example.com/team": "red",
        "a.b": "literal",
        "a": {"b": "nested"},
        "roles": ["x"],
        "none": None,
        "empty": "",
    }
    assert claim_text(claims, name) == expected
