"""What a setting may be: values that this version cannot serve are refused with what to do instead."""

from __future__ import annotations

from hashlib import sha256

import pytest
from pydantic import ValidationError

from breakloop.config.settings import Settings

HASH = sha256(b"key").hexdigest()


def refused(**values: object) -> str:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate(values)
    (error,) = raised.value.errors()
    return f"{error['msg']} | {error['ctx'].get('hint', '')}"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"envoy_grpc_port": 9, "mode": "proxy"}, "is the decision service's, and mode is proxy"),
        ({"workers": 2}, "2 processes cannot share the state of memory://"),
        ({"state": "postgres://x"}, "is no place for state"),
        ({"state": "redis://:pa/ss@x"}, "write @ / ? # of a user or password as %40 %2F %3F %23"),
        ({"workers": 3}, "set state to the URL of a Redis"),
        ({"admin_tokens": ["grace:viewer"]}, "is not NAME:ROLE:SHA256 with the role viewer or operator"),
        ({"admin_tokens": [f"grace:admin:{HASH}"]}, "is not NAME:ROLE:SHA256 with the role viewer or operator"),
        ({"admin_tokens": [f"a:viewer:{sha256().hexdigest()}"]}, "is the SHA-256 of nothing"),
        ({"admin_tokens": [f"a:viewer:{HASH}", f"b:operator:{HASH}"]}, "has a token that another has"),
        ({"policy": "ftp://x/bundle"}, "is no URL that a bundle can be fetched from"),
        ({"policy": "https:///bundle"}, "is no URL that a bundle can be fetched from"),
        ({"policy": "https://x/a b"}, "is no URL that a bundle can be fetched from"),
        ({"policy": "https://x:99999/"}, "is no URL"),
        ({"policy": "https://user:sk-123@x/"}, "has a credential in it | take it out of the URL and set policy_token"),
        ({"policy": "redis"}, "is to come from Redis, and state names none | set state to the URL"),
        ({"trusted_proxies": ["x"]}, '"x" is neither an address nor a network'),
        ({"upstream": ["openai"]}, "is not NAME=URL"),
        ({"upstream": ["openai=ftp://x"]}, "the URL does not begin with http:// or https://"),
        ({"upstream": ["v1=https://x"]}, '"v1" begins paths that mean something else'),
        ({"upstream": ["a=https://x", "a=https://y"]}, '"a" is named twice'),
        ({"upstream_keys": ["openai=sk-123"]}, "is not NAME=env:VARIABLE or NAME=file:/PATH"),
        ({"upstream_keys": ["openai=env:"]}, "is not NAME=env:VARIABLE"),
        ({"upstream_keys": ["openai=env:A B"]}, "is not NAME=env:VARIABLE"),
        ({"upstream_keys": ["openai=file:secret"]}, "is not NAME=env:VARIABLE"),
        ({"upstream_keys": ["openai=env:A", "openai=env:B"]}, '"openai" is named twice'),
        ({"upstream_keys": ["mine=env:A"]}, "names no upstream | known are anthropic, gemini, openai"),
        ({"callers": ["alice"]}, "is not NAME=SHA256"),
        ({"callers": ["alice=my-key"]}, "is not NAME=SHA256"),
        ({"callers": [f"={HASH}"]}, "is not NAME=SHA256"),
        ({"callers": [f"alice={sha256(b'').hexdigest()}"]}, "is the SHA-256 of nothing"),
        ({"callers": [f"alice={HASH}", f"bob={HASH.upper()}"]}, "has a key that another has"),
        ({"header_prefix": "X Y-"}, "cannot begin a header name"),
        ({"header_prefix": "X-Own"}, "cannot begin a header name"),
        ({"header_prefix": "X-"}, "begins x-agent-id too, which would then be taken for ours"),
        ({"header_prefix": "Content-"}, "begins content-type too"),
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
