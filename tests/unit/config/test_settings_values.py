"""What a setting may be: values that this version cannot serve are refused with what to do instead."""

from __future__ import annotations

from hashlib import sha256

import pytest
from pydantic import ValidationError

from breakloop.config.settings import Settings
from tests.each import each

HASH = sha256(b"key").hexdigest()


def refused(**values: object) -> str:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate(values)
    (error,) = raised.value.errors()
    return f"{error['msg']} | {error['ctx'].get('hint', '')}"


@each(
    "values, said",
    [
        ({"envoy_grpc_port": 9, "mode": "proxy"}, "needs the decision service, but mode is proxy"),
        ({"workers": 2}, "2 processes cannot share the state of memory://"),
        ({"state": "postgres://x"}, "is not a store"),
        ({"state": "redis://:pa/ss@x"}, "write @ / ? # of a user or password as %40 %2F %3F %23"),
        ({"workers": 3}, "set state to the URL of a Redis"),
        ({"admin_tokens": ["grace:viewer"]}, "must be NAME:ROLE:SHA256 with the role viewer or operator"),
        ({"admin_tokens": [f"grace:admin:{HASH}"]}, "must be NAME:ROLE:SHA256 with the role viewer or operator"),
        ({"admin_tokens": [f"a:viewer:{sha256().hexdigest()}"]}, "is the SHA-256 of an empty string"),
        ({"admin_tokens": [f"a:viewer:{HASH}", f"b:operator:{HASH}"]}, "has the same token as another entry"),
        ({"policy": "ftp://x/bundle"}, "is not a URL of a bundle"),
        ({"policy": "https:///bundle"}, "is not a URL of a bundle"),
        ({"policy": "https://x/a b"}, "is not a URL of a bundle"),
        ({"policy": "https://x:99999/"}, "is not a URL"),
        ({"policy": "https://user:sk-123@x/"}, "contains credentials | remove them from the URL and set policy_token"),
        ({"policy": "redis"}, "is redis, but state is not the URL of a Redis | set state to the URL"),
        ({"trusted_proxies": ["x"]}, '"x" is not an address or a network'),
        ({"upstream": ["openai"]}, "is not NAME=URL"),
        ({"upstream": ["openai=ftp://x"]}, "the URL does not begin with http:// or https://"),
        ({"upstream": ["v1=https://x"]}, '"v1" is reserved for other paths'),
        ({"upstream": ["a=https://x", "a=https://y"]}, 'duplicate name "a"'),
        ({"upstream_keys": ["openai=sk-123"]}, "must be NAME=env:VARIABLE or NAME=file:/PATH"),
        ({"upstream_keys": ["openai=env:"]}, "must be NAME=env:VARIABLE"),
        ({"upstream_keys": ["openai=env:A B"]}, "must be NAME=env:VARIABLE"),
        ({"upstream_keys": ["openai=file:secret"]}, "must be NAME=env:VARIABLE"),
        ({"upstream_keys": ["openai=env:A", "openai=env:B"]}, 'duplicate name "openai"'),
        ({"upstream_keys": ["mine=env:A"]}, "unknown upstream | known: anthropic, gemini, openai"),
        ({"callers": ["alice"]}, "must be NAME=SHA256"),
        ({"callers": ["alice=my-key"]}, "must be NAME=SHA256"),
        ({"callers": [f"={HASH}"]}, "must be NAME=SHA256"),
        ({"callers": [f"alice={sha256(b'').hexdigest()}"]}, "is the SHA-256 of an empty string"),
        ({"callers": [f"alice={HASH}", f"bob={HASH.upper()}"]}, "has the same key as another entry"),
        ({"header_prefix": "X Y-"}, "is not a prefix of header names"),
        ({"header_prefix": "X-Own"}, "is not a prefix of header names"),
        ({"header_prefix": "X-"}, "is also the prefix of x-agent-id, which would not be forwarded"),
        ({"header_prefix": "Content-"}, "is also the prefix of content-type"),
        ({"project_descriptor": "colour:red"}, "colour"),
    ],
)
def test_refused_with_a_way_out(values: dict[str, object], said: str) -> None:
    """A clear sentence and a hint, not a stack trace later; what may be a key is not repeated (T-2, S-5, Y-6)."""
    text = refused(**values)
    assert said in text
    assert not text.endswith("| ")
    assert "sk-123" not in text
    assert "my-key" not in text


def test_accepted() -> None:
    """What is allowed (T-2)."""
    settings = Settings.model_validate(
        {
            "mode": "proxy",
            "upstream": ["my-llm=https://llm.example/v1", "openai=http://[::1]:9000"],
            "upstream_keys": ["my-llm=env:KEY", "openai=file:/run/secrets/a b", "gemini=env:_G1"],
            "callers": [f"alice@example.com={HASH}", f"alice@example.com={sha256(b'new').hexdigest()}"],
            "header_prefix": "X-Own-",
            "project_descriptor": "header:x-project",
            "trusted_proxies": ["unix", "10.1.2.3"],
            "policy": "bundle.yaml",
        }
    )
    for policy in ("https://x/bundle", "http://127.0.0.1:8080/p.yaml?key=1", "https://[::1]/p", "./redis", "p/q.yaml"):
        assert Settings.model_validate({"policy": policy}).policy == policy
    assert settings.project_descriptor == "header:x-project"
    assert settings.mode == "proxy"


def test_admin_tokens_have_a_name_and_a_role() -> None:
    """Hashed, so that the settings give nobody in (X-1, Y-3)."""
    entry = f"grace@example.com:viewer:{HASH}"
    assert Settings.model_validate({"admin_tokens": [entry]}).admin_tokens == [entry]


@pytest.mark.parametrize(
    ("given", "trusts"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1", "mode": "decision"}, False),  # which has no proxy
        ({"host": "0.0.0.0"}, True),
        ({"host": "10.1.2.3"}, True),
        ({"trusted_proxies": ["127.0.0.0/8"]}, True),
    ],
)
def test_the_proxy_trusts_loopback_peers_unless_they_are_its_clients(given: dict[str, object], trusts: bool) -> None:
    """On a loopback address every client is one; whoever has a reverse proxy there configures it (C-4)."""
    assert Settings.model_validate(given).proxy_trusts is trusts
