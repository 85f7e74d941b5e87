"""Settings: which source wins, where a value came from, and what is said about a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakloop.config.loader import (
    FILE,
    LoadedSettings,
    effective_settings,
    environment_names,
    load_settings,
    provider_keys,
    settings_from_text,
    settings_json_schema,
    settings_text,
)
from breakloop.errors import SettingsError

CANARY = "canary-5eb1f0"


def load(tmp_path: Path, text: str = "", env: dict[str, str] | None = None, **flags: object) -> LoadedSettings:
    if text:
        (tmp_path / FILE).write_text(text)
    return load_settings(flags, env=env or {}, directory=tmp_path)


def wrong(tmp_path: Path, text: str = "", env: dict[str, str] | None = None, **flags: object) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, text, env, **flags)
    return str(raised.value).splitlines()


def test_defaults(tmp_path: Path) -> None:
    """Without anything, these hold (T-2)."""
    loaded = load(tmp_path)
    settings = loaded.settings
    assert (settings.host, settings.port, settings.admin_port) == ("127.0.0.1", 8787, 8788)
    assert (settings.state, settings.workers, settings.mode) == ("memory://", 1, "all")
    assert settings.header_prefix == "X-Breakloop-"
    assert (settings.loop_guard.window_seconds, settings.loop_guard.max_hits) == (60, 5)
    assert set(loaded.settings.origins.values()) == {"default"}
    assert loaded.file == ""


def test_each_source_beats_the_one_below(tmp_path: Path) -> None:
    """Flags over environment over file over default, and each value knows where it came from (T-1)."""
    text = "# ours\nport: 1\nhost: 10.0.0.1\nproject: file\n"
    loaded = load(tmp_path, text, {"BREAKLOOP_PORT": "2", "BREAKLOOP_HOST": "10.0.0.2"}, port=3, state=None)
    settings = loaded.settings
    assert (settings.port, settings.host, settings.project, settings.state) == (3, "10.0.0.2", "file", "memory://")
    assert loaded.settings.origins["port"] == "flag --port"
    assert loaded.settings.origins["host"] == "environment BREAKLOOP_HOST"
    assert loaded.settings.origins["project"] == "breakloop.yaml:4"
    assert loaded.settings.origins["state"] == "default"
    assert loaded.file == FILE


def test_flag_origin_is_spelled_as_typed(tmp_path: Path) -> None:
    """`admin_port` is `--admin-port` on the command line; flags given several times make a list (T-1)."""
    loaded = load(tmp_path, admin_port=0, upstream=("a=http://x", "b=https://y"))
    assert loaded.settings.origins["admin_port"] == "flag --admin-port"
    assert loaded.settings.upstream == ["a=http://x", "b=https://y"]
    assert load(tmp_path, upstream=()).settings.origins["upstream"] == "default"


def test_blocks_in_the_environment(tmp_path: Path) -> None:
    """A field inside a block has its names joined, by one underscore or two; lists by commas (T-1)."""
    env = {
        "BREAKLOOP_JWT_AUDIENCE": "me",
        "BREAKLOOP_JWT__ISSUER": "them",
        "BREAKLOOP_JWT_LEEWAY_SECONDS": "1.5",
        "BREAKLOOP_LIMITS_BODY_BYTES": "10",
        "BREAKLOOP_MEMORY_MAX_ENTRIES": "1000",
        "BREAKLOOP_TRUSTED_PROXIES": "10.0.0.0/8, ::1,",
        "BREAKLOOP_STRICT": "Yes",
        "BREAKLOOP_LOG_LEVEL": "DEBUG",
        "BREAKLOOP_HOST": "",
    }
    settings = load(tmp_path, "jwt: {audience: file, algorithms: [RS256]}\n", env).settings
    assert (settings.jwt.audience, settings.jwt.issuer, settings.jwt.leeway_seconds) == ("me", "them", 1.5)
    assert settings.jwt.algorithms == ["RS256"]
    assert settings.limits.body_bytes == 10
    assert settings.memory_max_entries == 1000, "a number that has no default"
    assert settings.trusted_proxies == ["10.0.0.0/8", "::1"]
    assert settings.strict is True
    assert settings.log_level == "debug"
    assert settings.host == "127.0.0.1", "an empty variable is no variable"


def test_loop_guard_by_its_own_names(tmp_path: Path) -> None:
    """LOOP_GUARD_* set the built-in block; with our prefix they win (LD-2)."""
    env = {"LOOP_GUARD_WINDOW_SECONDS": "10", "LOOP_GUARD_MAX_HITS": "0", "LOOP_GUARD_COOLDOWN_SECONDS": "7"}
    loaded = load(tmp_path, "loop_guard: {max_hits: 3}\n", env)
    guard = loaded.settings.loop_guard
    assert (guard.window_seconds, guard.max_hits, guard.cooldown_seconds) == (10, 0, 7)
    assert loaded.settings.origins["loop_guard.max_hits"] == "environment LOOP_GUARD_MAX_HITS"
    env["BREAKLOOP_LOOP_GUARD_MAX_HITS"] = "9"
    assert load(tmp_path, "", env).settings.loop_guard.max_hits == 9


def test_unknown_variable_is_a_warning(tmp_path: Path) -> None:
    """A misspelt variable does not stop a start, but is said, with what was meant (T-1)."""
    env = {"BREAKLOOP_PROT": "1", "BREAKLOOP_URL": "x", "BREAKLOOP_ZZZ": "1", "OTHER": "1"}
    assert load(tmp_path, "", env).warnings == (
        "environment BREAKLOOP_PROT is not a setting; did you mean BREAKLOOP_PORT?",
        "environment BREAKLOOP_ZZZ is not a setting",
    )


def test_mistakes_in_the_file_are_located(tmp_path: Path) -> None:
    """Each with file, line, column and what is meant; all at once, in order (T-1)."""
    text = "port: abc\njwt:\n  secert: x\nlimits: 4\ntrusted_proxies: [::1, x]\nlog_level: loud\n"
    assert wrong(tmp_path, text) == [
        "breakloop.yaml:1:7: port: must be a whole number, got 'abc'",
        'breakloop.yaml:3:3: jwt.secert: is not a setting; did you mean "secret"?',
        "breakloop.yaml:4:9: limits: must be a map",
        'breakloop.yaml:5:24: trusted_proxies: "x" is not an address or a network (write 10.0.0.0/8, 10.1.2.3 or unix)',
        "breakloop.yaml:6:12: log_level: must be 'debug', 'info', 'warning' or 'error', got 'loud'",
    ]


def test_file_that_is_no_map(tmp_path: Path) -> None:
    """Broken YAML and a list are located too; an empty file, or only comments, is a file without settings (T-1)."""
    assert wrong(tmp_path, "port: [1\n")[0].startswith("breakloop.yaml:")
    assert wrong(tmp_path, "- a\n") == ["breakloop.yaml:1:1: must be a map (write port: 8787)"]
    assert load(tmp_path, "# nothing\n").settings.port == 8787
    assert load(tmp_path, "port:\n").settings.port == 8787


def test_mistakes_in_environment_and_flags_name_them(tmp_path: Path) -> None:
    """A wrong value is said where it was set (T-1)."""
    assert wrong(tmp_path, "", {"BREAKLOOP_PORT": "x"}) == [
        "environment BREAKLOOP_PORT: must be a whole number, got 'x'"
    ]
    assert wrong(tmp_path, port=70000) == ["flag --port: must be less than or equal to 65535, got 70000"]
    assert wrong(tmp_path, "", {"BREAKLOOP_STRICT": "maybe"}) == [
        "environment BREAKLOOP_STRICT: must be true or false, got 'maybe'"
    ]


def test_a_higher_source_hides_a_mistake_below(tmp_path: Path) -> None:
    """What is not in effect is not judged (T-1)."""
    assert load(tmp_path, "port: abc\n", port=5).settings.port == 5


def test_a_policy_that_is_no_path_stays_what_it_is(tmp_path: Path) -> None:
    """URLs and `redis` do not start where the file lies; a token's file does, and no secret is shown (B-3, T-2)."""
    loaded = load(tmp_path, "policy: https://x/p.yaml\npolicy_token: canary-1\npolicy_token_file: token\n")
    assert loaded.settings.policy == "https://x/p.yaml"
    assert loaded.settings.policy_token_file == str(tmp_path / "token")
    assert "canary-1" not in str(effective_settings(loaded.settings)) + repr(loaded.settings)
    (said,) = wrong(tmp_path, "policy: redis\n")
    assert said.startswith("breakloop.yaml:1:9: policy: is redis, but state is not the URL of a Redis (set state to ")


def test_config_names_the_file(tmp_path: Path) -> None:
    """`--config`, or BREAKLOOP_CONFIG; a named file has to be there; its paths start where it lies (T-2)."""
    other = tmp_path / "etc" / "own.yaml"
    other.parent.mkdir()
    other.write_text("policy: bundle.yaml\nsecret_file: /run/secret\n")
    loaded = load(tmp_path, config="etc/own.yaml")
    assert loaded.settings.policy == str(tmp_path / "etc" / "bundle.yaml")
    assert loaded.settings.secret_file == "/run/secret"
    assert loaded.settings.origins["policy"] == "etc/own.yaml:1"
    assert load(tmp_path, "", {"BREAKLOOP_CONFIG": str(other)}).settings.policy.endswith("etc/bundle.yaml")
    assert wrong(tmp_path, config="nothing.yaml") == ["nothing.yaml: no such file"]
    assert wrong(tmp_path, config="etc") == ["etc: cannot be read: Is a directory"]
    other.write_bytes(b"\xff\xfe\xff")
    assert wrong(tmp_path, config="etc/own.yaml") == ["etc/own.yaml: cannot be read: not UTF-8 text"]


@pytest.mark.parametrize(
    ("env", "path", "origin"),
    [
        ({"STATE_DIRECTORY": "/var/lib/bl:/x", "HOME": "/h"}, "/var/lib/bl", "environment STATE_DIRECTORY"),
        ({"XDG_DATA_HOME": "/d", "HOME": "/h"}, "/d/breakloop", "default"),
        ({"HOME": "/h"}, "/h/.local/share/breakloop", "default"),
        ({"HOME": "/h", "BREAKLOOP_DATA_DIR": "/own"}, "/own", "environment BREAKLOOP_DATA_DIR"),
    ],
)
def test_data_directory(tmp_path: Path, env: dict[str, str], path: str, origin: str) -> None:
    """A service gets its manager's directory, a person the usual one."""
    loaded = load(tmp_path, "", env)
    assert (loaded.settings.data_dir, loaded.settings.origins["data_dir"]) == (path, origin)


def test_the_collectors_own_variable(tmp_path: Path) -> None:
    """OpenTelemetry's name works, and ours comes before it (G-5, T-1)."""
    theirs = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    loaded = load(tmp_path, "", theirs)
    assert loaded.settings.otel_endpoint == "http://127.0.0.1:4318"
    assert loaded.settings.origins["otel_endpoint"] == "environment OTEL_EXPORTER_OTLP_ENDPOINT"
    assert load(tmp_path).settings.otel_endpoint == ""
    assert load(tmp_path, "otel_endpoint: http://own\n", theirs).settings.otel_endpoint == "http://own"


def test_data_directory_without_a_home(tmp_path: Path) -> None:
    """Somebody without a home keeps it here."""
    assert load(tmp_path).settings.data_dir == str(tmp_path / ".breakloop")


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """Not in a repr, not in what doctor lists, not in a message about a wrong value (Y-1)."""
    env = dict.fromkeys(("BREAKLOOP_SECRET", "BREAKLOOP_DEBUG_SECRET", "BREAKLOOP_ADMIN_TOKEN"), CANARY)
    loaded = load(tmp_path, f"jwt: {{secret: {CANARY}, jwks_url: 'https://{CANARY}:{CANARY}@keys.example'}}\n", env)
    assert loaded.settings.secret.get_secret_value() == CANARY
    shown = {row.name: row.value for row in effective_settings(loaded.settings)}
    assert CANARY not in str(shown)
    assert (shown["secret"], shown["jwt.jwks_url"]) == ("********", "https://***@keys.example")
    assert CANARY not in repr(loaded.settings).replace(f"https://{CANARY}:{CANARY}@", "")
    for text in (f"secret: [{CANARY}]", f"jwt: {CANARY}", f"jwt: {{secret: {{a: {CANARY}}}}}", f"secrets: {CANARY}"):
        assert CANARY not in "".join(wrong(tmp_path, text + "\n"))


@pytest.mark.parametrize(
    "text",
    [
        f"upstream_keys: {CANARY}",
        f"upstream_keys: {{openai: {CANARY}}}",
        f"upstream_keys: [openai={CANARY}]",
        f"upstream_keys: [{{openai: {CANARY}}}]",
        f"upstream: [openai=https://{CANARY}@x]",
        f"upstream: https://{CANARY}@x",
        f"callers: [alice={CANARY}]",
        f"callers: [{{alice: {CANARY}}}]",
        f"callers: {{alice: {CANARY}}}",
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(tmp_path: Path, text: str) -> None:
    """Somebody pastes the key itself; the message goes to a log (Y-1, Y-6)."""
    assert CANARY not in "".join(wrong(tmp_path, text + "\n"))


def test_provider_keys_are_read_and_not_shown(tmp_path: Path) -> None:
    """Settings name where a key is; its value is only in what is asked for (Y-6)."""
    text = "upstream: [x=http://x]\nupstream_keys: [openai=env:OPENAI_API_KEY, x=env:X]\n"
    env = {"OPENAI_API_KEY": CANARY, "X": "k"}
    loaded = load(tmp_path, text, env)
    assert provider_keys(loaded.settings, env) == {"openai": CANARY.encode(), "x": b"k"}
    assert CANARY not in str(effective_settings(loaded.settings)) + repr(loaded)
    shown = {row.name: row.value for row in effective_settings(loaded.settings)}
    assert shown["upstream_keys"] == "openai=env:OPENAI_API_KEY, x=env:X"
    with pytest.raises(SettingsError, match="X is not set"):
        provider_keys(loaded.settings, {"OPENAI_API_KEY": CANARY})


def test_a_key_without_its_upstream_is_located(tmp_path: Path) -> None:
    """A key that would never be sent (Y-6, T-1)."""
    assert wrong(tmp_path, "upstream_keys: [openai=env:A,\n mine=env:B]\n") == [
        "breakloop.yaml:2:2: upstream_keys: unknown upstream (known: anthropic, gemini, openai)"
    ]


def test_effective_lists_every_setting(tmp_path: Path) -> None:
    """`doctor` can show each value and its origin, plainly (T-1)."""
    loaded = load(tmp_path, "trusted_proxies: []\nstrict: true\n", {"BREAKLOOP_JWT_LEEWAY_SECONDS": "2"})
    rows = {row.name: (row.value, row.origin) for row in effective_settings(loaded.settings)}
    assert rows.keys() == loaded.settings.origins.keys()
    assert rows["trusted_proxies"] == ("-", "breakloop.yaml:1")
    assert rows["strict"] == ("true", "breakloop.yaml:2")
    assert rows["jwt.leeway_seconds"] == ("2", "environment BREAKLOOP_JWT_LEEWAY_SECONDS")


def test_json_schema_describes_every_field() -> None:
    """The schema ships: strict, and every field has a description (T-1)."""
    schema = settings_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"]["port"]["default"] == 8787
    blocks = [schema, *schema["$defs"].values()]
    missing = [name for block in blocks for name, field in block["properties"].items() if not field.get("description")]
    assert missing == []
    json.dumps(schema)


def test_the_variables_that_are_documented_are_read(tmp_path: Path) -> None:
    """Every documented name sets its setting; of two, the first one wins (T-1)."""
    names = environment_names()
    assert names["jwt.secret"] == ["BREAKLOOP_JWT_SECRET"]
    assert names["loop_guard.max_hits"] == ["BREAKLOOP_LOOP_GUARD_MAX_HITS", "LOOP_GUARD_MAX_HITS"]
    assert list(names) == [one.name for one in effective_settings(load(tmp_path).settings)]
    found = load(tmp_path, env={"BREAKLOOP_LOOP_GUARD_MAX_HITS": "7", "LOOP_GUARD_MAX_HITS": "8"})
    assert found.settings.loop_guard.max_hits == 7
    everything = load(tmp_path, env={variables[0]: "" for variables in names.values()})
    assert everything.warnings == ()


def test_settings_travel_to_other_processes(tmp_path: Path) -> None:
    """As they are, with secrets, exact amounts and what was not set; only the number of workers is one (S-5)."""
    text = "prices: {models: {m: {input_usd_per_million: 0.1, output_usd_per_million: 2.50}}}\ntls: {}\nvia: true\n"
    loaded = load(tmp_path, text, env={"BREAKLOOP_JWT_SECRET": CANARY}, workers=4, state="redis://127.0.0.1/0")
    found = settings_from_text(settings_text(loaded.settings))
    assert found == loaded.settings.model_copy(update={"workers": 1})
    assert found.jwt.secret.get_secret_value() == CANARY
    assert found.model_fields_set == loaded.settings.model_fields_set
    assert found.origins["via"] == "breakloop.yaml:3"
    assert settings_from_text(settings_text(loaded.settings, "theirs")).secret.get_secret_value() == "theirs"
