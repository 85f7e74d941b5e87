"""Tests of `admin.openapi`: the document says what the table says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from breakloop import __version__
from breakloop.admin.api import OPERATIONS
from breakloop.admin.api.operations import document
from tests.admin_client import client
from tests.admin_world import full


@pytest.fixture(scope="module")
def described() -> Any:
    return document(OPERATIONS)


def test_it_is_what_the_server_gives_out(described: Any) -> None:
    """It is what the server gives out (X-1)."""
    answer = client(full()).get("/api/v1/openapi.json")
    assert answer.json() == json.loads(json.dumps(described))
    assert (described["openapi"], described["info"]["version"]) == ("3.1.0", __version__)


def test_every_operation_is_there_and_nothing_else(described: Any) -> None:
    found = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in described["paths"].items()
        for method in methods
    }
    assert found == {(one.method, one.path) for one in OPERATIONS}


def test_every_reference_leads_somewhere(described: Any) -> None:
    text = json.dumps(described)
    for kind, name in set(re.findall(r'"#/components/(\w+)/(\w+)"', text)):
        assert name in described["components"][kind]
    assert "$defs" not in text


def test_an_operation_says_who_may_and_what_may_come_of_it(described: Any) -> None:
    kill = described["paths"]["/api/v1/agents/{id}/kill"]["post"]
    assert kill["x-role"] == "operator"
    assert set(kill["responses"]) == {"200", "400", "401", "403", "404", "413", "415", "421", "429", "500", "503"}
    assert [(one["name"], one["in"]) for one in kill["parameters"]] == [("id", "path"), ("project", "query")]
    assert kill["requestBody"]["required"] is True
    schema = described["components"]["schemas"]["KillBody"]
    assert (schema["required"], schema["additionalProperties"]) == (["reason"], False)
    assert described["paths"]["/api/v1/agents"]["get"]["x-role"] == "viewer"


def test_events_can_be_followed(described: Any) -> None:
    answer = described["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]
    assert set(answer) == {"application/json", "text/event-stream"}


def test_an_agents_settings_are_the_bundles_own_and_may_be_null(described: Any) -> None:
    """An agent's settings are the bundle's own, and may be null (G-1, B-1)."""
    changes = described["components"]["schemas"]["AgentChanges"]
    assert changes["additionalProperties"] is False
    assert {"budget_usd_per_day", "allowed_hours", "max_steps_per_run", "rate_limit"} <= set(changes["properties"])
    assert all({"type": "null"} in said["anyOf"] for said in changes["properties"].values())


def test_a_parameter_is_described_and_never_null(described: Any) -> None:
    parameters = {one["name"]: one for one in described["paths"]["/api/v1/events"]["get"]["parameters"]}
    assert parameters["since"]["schema"] == {"type": "number", "minimum": 0, "maximum": 1e11}
    assert parameters["since"]["description"] == "Seconds since 1970."
    assert parameters["name"]["schema"]["type"] == "array"
    assert described["paths"]["/api/v1/counters"]["get"]["parameters"][0]["required"] is True


def test_errors_have_one_shape(described: Any) -> None:
    shape = described["components"]["schemas"]["ErrorBody"]
    assert shape["required"] == ["code", "message"]
    assert set(shape["properties"]) == {"code", "message", "field", "problems"}
