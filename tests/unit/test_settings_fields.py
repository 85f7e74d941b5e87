"""What a setting may be: values that this version cannot serve are refused with what to do instead."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from breakloop.gateway.bounds import Limits
from breakloop.runtime import limits
from breakloop.settings_fields import Settings


def refused(**values: object) -> str:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate(values)
    (error,) = raised.value.errors()
    return f"{error['msg']} | {error['ctx'].get('hint', '')}"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"workers": 2}, "2 processes cannot share the state of memory://"),
        ({"state": "redis://x"}, "only memory:// is in this version"),
        ({"mode": "proxy"}, "the reverse proxy is not in this version"),
        ({"policy": "https://x/bundle"}, "reading a bundle from a URL is not in this version"),
        ({"upstream": ["openai"]}, "is not NAME=URL"),
        ({"upstream": ["openai=ftp://x"]}, "is not NAME=URL"),
        ({"header_prefix": "X Y-"}, "cannot begin a header name"),
        ({"header_prefix": "X-Own"}, "cannot begin a header name"),
        ({"project_descriptor": "colour:red"}, "colour"),
    ],
)
def test_refused_with_a_way_out(values: dict[str, object], said: str) -> None:
    """T-2, S-5: a clear sentence and a hint, not a stack trace later."""
    text = refused(**values)
    assert said in text
    assert not text.endswith("| ")


def test_accepted() -> None:
    """T-2: what is allowed."""
    settings = Settings.model_validate(
        {
            "mode": "decision",
            "upstream": ["my-llm=https://llm.example/v1"],
            "header_prefix": "X-Own-",
            "project_descriptor": "header:x-project",
            "trusted_proxies": ["unix", "10.1.2.3"],
            "policy": "bundle.yaml",
        }
    )
    assert settings.project_descriptor == "header:x-project"


def test_limits_are_those_of_the_data_plane() -> None:
    """Y-2: the defaults here and there are the same."""
    assert limits(Settings()) == Limits()
