"""The echo, and the list of models in each dialect."""

from __future__ import annotations

import hashlib

from breakloop.testing.providers import models
from breakloop.testing.providers.base import echo
from tests.unit.testing.talking import seen, whole


def test_the_echo_tells_what_came() -> None:
    told = whole(echo(seen("/a/b?c=d", [1], method="PUT", x_y="z")))
    assert told == {
        "method": "PUT",
        "path": "/a/b",
        "query": "c=d",
        "headers": [["Host", "x"], ["x-y", "z"]],
        "body_bytes": 3,
        "body_sha256": hashlib.sha256(b"[1]").hexdigest(),
    }


def test_models_in_the_words_of_whoever_asks() -> None:
    """The header `anthropic-version`, a path of v1beta, else OpenAI."""
    plain = whole(models(seen("/v1/models", method="GET")))
    assert plain["object"] == "list"
    assert plain["data"][0] == {"id": "stand-in", "object": "model", "created": 1_800_000_000, "owned_by": "stand-in"}
    claude = whole(models(seen("/v1/models", method="GET", anthropic_version="2023-06-01")))
    assert (claude["has_more"], claude["first_id"], claude["last_id"]) == (False, "stand-in", "stand-in-mini")
    assert claude["data"][0] == {
        "type": "model",
        "id": "stand-in",
        "display_name": "stand-in",
        "lifecycle": "active",
        "created_at": "2027-01-15T08:00:00Z",
    }
    google = whole(models(seen("/v1beta/models", method="GET")))
    assert [model["name"] for model in google["models"]] == ["models/stand-in", "models/stand-in-mini"]


def test_one_model_by_its_name() -> None:
    assert whole(models(seen("/v1/models/abc", method="GET")))["id"] == "abc"
    assert whole(models(seen("/v1/models/abc", method="GET", anthropic_version="x")))["display_name"] == "abc"
    assert whole(models(seen("/v1/models/abc", method="GET", x_goog_api_key="k")))["name"] == "models/abc"
