"""The bundle's models: values, defaults and cross-field checks beyond what the museum shows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from breakloop.policy import descriptor_names, schema
from breakloop.policy.fields import where_it_belongs
from breakloop.policy.hints import findings
from breakloop.policy.schema_json import bundle_json_schema
from breakloop.policy.schema_types import Model, validate
from breakloop.policy.suggest import nearest


def messages(model: type[Model], data: Any) -> list[str]:
    """What is wrong with `data`, without places."""
    return [finding.message for finding in findings(validate(model, data)[1], data, model)]


def spec(**fields: Any) -> schema.Spec:
    return schema.Spec.model_validate({"selector": {}, **fields})


def bucket(**config: Any) -> dict[str, Any]:
    return {"name": "r", "limit_keys": [], "algorithm": "token_bucket", "algorithm_config": config}


def test_defaults_of_a_spec() -> None:
    """B-1: enforce, 429 and allow unless said otherwise."""
    made = spec()
    assert (made.mode, made.deny_status, made.on_store_error) == ("enforce", 429, "allow")
    assert (made.rules, made.loops, made.fallback_limit, made.circuit_breaker) == ([], (), None, None)


def test_one_loop_block_or_a_list() -> None:
    """LD-1, LD-2: `loop_detection` is one block or a list."""
    one = spec(loop_detection={"enabled": True, "window_seconds": 9, "threshold_identical_requests": 3})
    two = spec(loop_detection=[{"similarity": "tail"}, {"similarity": "simhash"}])
    assert [type(block) for block in one.loops] == [schema.ExactLoop]
    assert [type(block) for block in two.loops] == [schema.TailLoop, schema.SimhashLoop]


def test_defaults_of_the_loop_kinds() -> None:
    """LD-1 to LD-4: the documented defaults."""
    exact = schema.ExactLoop(enabled=True, window_seconds=9, threshold_identical_requests=3)
    tail, simhash = schema.TailLoop(similarity="tail"), schema.SimhashLoop(similarity="simhash")
    steps = schema.StepsLoop(similarity="steps")
    assert (exact.action_for("block"), exact.window, exact.concurrent_free, exact.retry_free) == (
        "reject",
        "idle",
        16,
        10,
    )
    assert (tail.tail_messages, tail.max_hits, tail.window_seconds, tail.cooldown_seconds) == (3, 5, 60, 30)
    assert (tail.cooldown_growth, tail.cooldown_max_seconds, tail.action_for("block")) == (2, 900, "reject")
    assert (simhash.window_requests, simhash.threshold_score, simhash.action_for("block")) == (20, 10, "kill")
    assert (simhash.weights.prompt, simhash.weights.response, simhash.weights.tool) == (1, 2, 1.5)
    assert [steps.action_for(s) for s in ("notice", "block", "stop")] == ["warn", "reject", "reject"]


def test_a_single_action_leaves_notices_as_warnings() -> None:
    """LD-5: one `action` is for loops; a mere notice warns."""
    block = schema.StepsLoop(similarity="steps", action="kill")
    assert [block.action_for(s) for s in ("notice", "block", "stop")] == ["warn", "kill", "kill"]


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        ({}, ("warn", "reject", "reject")),
        ({"block": "throttle"}, ("warn", "throttle", "reject")),
        ({"block": "kill"}, ("warn", "kill", "kill")),
        ({"notice": "kill"}, ("kill", "kill", "kill")),
        ({"notice": "steer", "block": "reject", "stop": "kill"}, ("steer", "reject", "kill")),
    ],
)
def test_a_step_that_is_left_out_is_at_least_the_one_before(said: dict[str, str], steps: tuple[str, ...]) -> None:
    """LD-5: ladders rise."""
    ladder = schema.Ladder.model_validate(said)
    assert (ladder.notice, ladder.block, ladder.stop) == steps


@pytest.mark.parametrize("ladder", [5, {"block": 5}, {"notice": ["x"]}])
def test_a_broken_ladder_is_refused_without_a_crash(ladder: Any) -> None:
    assert messages(schema.TailLoop, {"similarity": "tail", "ladder": ladder})


def test_defaults_off_builtin_and_own() -> None:
    """B-6: nothing said is the built-in block, `off` is none."""
    off = schema.Defaults.model_validate({"loop_detection": "off"})
    own = schema.Defaults.model_validate({"loop_detection": {"similarity": "tail"}})
    assert (schema.Defaults().loop_detection, schema.Defaults().loops) == (None, ())
    assert (off.loop_detection, off.loops) == ("off", ())
    assert len(own.loops) == 1


def test_hosts_are_normalised() -> None:
    """C-1: lower case, without port and final dot."""
    made = schema.Selector.model_validate(
        {"hosts": ["API.Example.com:8443", "example.org.", "[::0:1]:80", "my_service"]}
    )
    assert made.hosts == ["api.example.com", "example.org", "[::1]", "my_service"]


@pytest.mark.parametrize(
    "host", ["", "a b", "-x.example", "x..y", "u@example.com", "example.com?x", "[::zz]", "ex\u2028ample"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    assert messages(schema.Selector, {"hosts": [host]})


@pytest.mark.parametrize("path", ["", "v1", "/a/../b", "/a%2fb", "/%7Euser", "/a#b", "/a b", "/caf\u00e9", "/a\\b"])
def test_paths_that_can_never_match_are_refused(path: str) -> None:
    """R-3: selectors see normalised paths only."""
    assert messages(schema.Selector, {"pathExact": path})


def test_header_descriptors_have_one_spelling() -> None:
    """C-2: case, `-` and `_` make no difference."""
    rule = spec(rules=[{**bucket(rps=1, burst=1, cost_source="header:X_Cost"), "limit_keys": ["header:X_Org"]}]).rules[
        0
    ]
    assert rule.limit_keys == ["header:x-org"]
    assert isinstance(rule.config, schema.TokenBucketConfig)
    assert rule.config.cost_source == "header:x-cost"


def test_one_header_in_two_spellings_is_refused_in_match() -> None:
    data = {"selector": {}, "rules": [{**bucket(rps=1, burst=1), "match": {"header:X-A": "1", "header:x_a": "2"}}]}
    assert messages(schema.Spec, data) == ["names one header in two spellings"]


def test_match_takes_numbers_and_booleans_as_their_text() -> None:
    """E-3: equality is on text."""
    rule = spec(rules=[{**bucket(rps=1, burst=1), "match": {"jwt:tier": 2, "query:debug": True}}]).rules[0]
    assert rule.match == {"jwt:tier": "2", "query:debug": "true"}


@pytest.mark.parametrize("kind", [*(f"{k}:{n}" for k, names in descriptor_names.FIXED.items() for n in names)])
def test_every_fixed_descriptor_is_known(kind: str) -> None:
    """C-6."""
    assert descriptor_names.fault(kind) is None


@pytest.mark.parametrize("name", ["jwt:realm_access.roles", "jwt:https://example.com/org", "header:X-A", "query:a[b]"])
def test_open_descriptors(name: str) -> None:
    """C-6: claims are dotted and may be namespaced."""
    assert descriptor_names.fault(name) is None


@pytest.mark.parametrize(
    "name", ["jwt:", "jwt:a..b", "header:a b", "JWT:sub", "ip", "ip:", "agent:name", "", ":x", "query:a=b"]
)
def test_wrong_descriptors(name: str) -> None:
    """C-6."""
    assert descriptor_names.fault(name) is not None


def test_fallback_may_leave_its_name_out() -> None:
    """B-1."""
    nameless = {key: value for key, value in bucket(rps=1, burst=2).items() if key != "name"}
    fallback = spec(fallback_limit=nameless).fallback_limit
    assert fallback is not None
    assert fallback.name == "fallback_limit"


def test_stages_are_sorted() -> None:
    """L-2: accepted in any order."""
    config = schema.CostBasedConfig.model_validate(
        {
            "budget": 9,
            "period": "1h",
            "staged_actions": [
                {"threshold_percent": 100, "action": "reject"},
                {"threshold_percent": 50, "action": "warn"},
                {"threshold_percent": 80, "action": "throttle", "delay_ms": 5},
            ],
        }
    )
    assert [stage.threshold_percent for stage in config.stages] == [50, 80, 100]


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"tokens_per_minute": 100}, []),
        ({"tokens_per_minute": 100, "max_completion_tokens": 50}, []),  # the default of 1000 is cut down silently
        ({"tokens_per_minute": 100, "max_tokens_per_request": 101}, ["max_tokens_per_request"]),
        ({"tokens_per_minute": 100, "burst_tokens": 200, "max_tokens_per_request": 200}, []),
        ({"tokens_per_minute": 100, "tokens_per_day": 50, "max_tokens_per_request": 60}, ["max_tokens_per_request"]),
        (
            {"tokens_per_minute": 100, "max_tokens_per_request": 20, "max_completion_tokens": 30},
            ["max_completion_tokens"],
        ),
        (
            {"tokens_per_minute": 100, "max_tokens_per_request": 20, "default_max_completion": 30},
            ["default_max_completion"],
        ),
    ],
)
def test_llm_limits_that_can_never_work(config: dict[str, int], wrong: list[str]) -> None:
    """L-3, B-2: cross-field values."""
    found = findings(validate(schema.LlmTokensConfig, config)[1], config, schema.LlmTokensConfig)
    assert [finding.path[-1] for finding in found] == wrong


def test_llm_burst_defaults_to_the_rate() -> None:
    """L-3."""
    assert schema.LlmTokensConfig(tokens_per_minute=70).burst == 70
    assert schema.LlmTokensConfig(tokens_per_minute=70, burst_tokens=90).burst == 90


@pytest.mark.parametrize(
    ("said", "minutes"),
    [("08:00-18:30", (480, 1110)), ("22:00-06:00", (1320, 360)), ([8, 18], (480, 1080)), ([0, 24], (0, 1440))],
)
def test_allowed_hours(said: Any, minutes: tuple[int, int]) -> None:
    """B-1: as text or as two hours, over midnight too."""
    assert schema.Agent.model_validate({"allowed_hours": said}).hours == minutes


@pytest.mark.parametrize(
    "said", ["8-18", "08:00-25:00", "24:00-08:00", [8], [8, 8], [24, 8], [8, 18.5], [True, 5], 8, ""]
)
def test_wrong_hours(said: Any) -> None:
    assert messages(schema.Agent, {"allowed_hours": said})


def test_no_hours_is_no_limit() -> None:
    assert schema.Agent().hours is None


@pytest.mark.parametrize("zone", ["", "/etc/passwd", "../UTC", "Europe", "Europe/Nowhere", "\0"])
def test_wrong_time_zones(zone: str) -> None:
    assert messages(schema.Agent, {"timezone": zone})


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T18:00:00Z", datetime(2026, 1, 31, 18, tzinfo=UTC)),
        ("2026-01-31 18:00:00Z", datetime(2026, 1, 31, 18, tzinfo=UTC)),
        ("2026-01-31T18:00:00.5+02:00", datetime(2026, 1, 31, 16, 0, 0, 500000, tzinfo=UTC)),
    ],
)
def test_timestamps(text: str, moment: datetime) -> None:
    """B-1: ISO-8601 with a zone."""
    assert schema.KillSwitch(scope_key="jwt:sub", scope_value="x", expires_at=text).expires_at == moment  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["2026-1-1T00:00:00Z", "2026-01-01", "2026-01-01T24:61:00Z", "2026-01-01T00:00:00+99:00", "now", ""]
)
def test_wrong_timestamps(text: str) -> None:
    """B-2: malformed, impossible and incomplete ones."""
    assert messages(schema.Override, {"enabled": False, "expires_at": text})


@pytest.mark.parametrize("route", ["*", "v1", "/a*b", "/v1?x", "/a//b*"])
def test_wrong_routes(route: str) -> None:
    """K-2: exact, or a prefix ending in `*`."""
    assert messages(schema.KillSwitch, {"scope_key": "jwt:sub", "scope_value": "x", "route": route})


def test_an_override_needs_reason_and_end_only_when_enabled() -> None:
    """K-1."""
    assert messages(schema.Override, {"enabled": False}) == []
    assert messages(schema.Override, {"enabled": True}) == ["is required when enabled", "is required when enabled"]


def test_an_override_that_has_expired_is_no_error() -> None:
    """B-5."""
    past = {"enabled": True, "reason": "x", "expires_at": "2001-01-01T00:00:00Z"}
    assert messages(schema.Override, past) == []


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (schema.Policy, {"id": 5, "spec": []}, ["must be text, got 5", "must be a map, got a list"]),
        (schema.Policy, {"id": "x" * 70, "spec": "y" * 70}, [f'must be a map, got the text "{"y" * 60}..."']),
        (
            schema.KillSwitch,
            {"scope_key": None, "scope_value": {}},
            ["must be text, got nothing", "must be text, got a map"],
        ),
        (
            schema.TokenBucketConfig,
            {"rps": True, "burst": "1_0"},
            ["must be a number, got true", 'must be a number, got the text "1_0"'],
        ),
        (schema.TokenBucketConfig, {"rps": 0, "burst": 1}, ["must be more than 0, got 0"]),
        (schema.Spec, {"selector": {}, "rules": [{"algorithm": 5}]}, ["must be text, got 5"]),
        (
            schema.Spec,
            {"selector": {}, "loop_detection": {"similarity": ["x"]}},
            ['must be one of "exact", "tail", "simhash", "steps", got a list'],
        ),
        (schema.Spec, {"selector": {}, "loop_detection": {"similarity": None}}, ["is required"]),
        (schema.RateLimit, {"requests_per_minute": 1, "brust": 2}, ['unknown field "brust"; did you mean "burst"?']),
        (schema.Stage, {"threshold_percent": 100.5, "action": "warn"}, ["must be at most 100, got 100.5"]),
    ],
)
def test_what_is_said_about_wrong_values(model: type[Model], data: Any, said: list[str]) -> None:
    """B-2: plain words for each kind of mistake."""
    assert messages(model, data) == said


def test_unknown_fields_are_told_where_they_belong() -> None:
    """B-2: one block in, one block out, another kind, or a misspelling."""
    rule = ("policies", 0, "spec", "rules", 0, "token_bucket")
    assert where_it_belongs(schema.Bundle, ("policies", 0), "mode") == '; it belongs in "spec"'
    assert where_it_belongs(schema.Bundle, rule, "mode") == '; it belongs in "spec"'
    assert where_it_belongs(schema.Bundle, rule, "burst") == '; it belongs in "algorithm_config"'
    assert (
        where_it_belongs(schema.Bundle, (*rule, "algorithm_config"), "budget")
        == '; it belongs to algorithm "cost_based"'
    )
    assert where_it_belongs(schema.Bundle, (), "polices") == '; did you mean "policies"?'
    assert where_it_belongs(schema.Bundle, (), "xyz") == ""
    assert where_it_belongs(schema.Bundle, ("bundle_version",), "xyz") == ""


def test_nearest_word() -> None:
    assert nearest("pathprefix", ["path_exact", "pathPrefix"]) == "pathPrefix"
    assert nearest("kill_switch", ["kill_switch_override", "kill_switches"]) == "kill_switches"
    assert nearest("zebra", ["burst"]) is None
    assert nearest("zebra", []) is None


def test_json_schema_describes_every_field() -> None:
    """T-1: the schema ships, and reference pages are made from its descriptions."""
    made = bundle_json_schema()
    assert made["$schema"].startswith("https://json-schema.org/")
    for name, block in {"Bundle": made, **made["$defs"]}.items():
        assert block["additionalProperties"] is False, name
        for field, about in block["properties"].items():
            assert len(about.get("description", "")) > 10, (name, field)


def test_json_schema_knows_both_spellings_and_short_forms() -> None:
    made = bundle_json_schema()["$defs"]
    assert {"rps", "tokens_per_second"} <= set(made["TokenBucketConfig"]["properties"])
    assert made["TokenBucketConfig"]["required"] == ["burst"]
    assert "pathPrefix" in made["Selector"]["properties"]
    assert len(made["Spec"]["properties"]["loop_detection"]["anyOf"]) == 3
    assert "name" not in made["TokenBucketRuleFallback"]["required"]
    assert "name" in made["TokenBucketRule"]["required"]
    assert {"type": "string"} in made["Allow"]["properties"]["tools"]["items"]["anyOf"]
