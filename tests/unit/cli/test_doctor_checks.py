"""What `doctor` finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakloop.cli.doctor import examine
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.policy.load import load_bundle
from breakloop.policy.watch import LastGood
from tests.bundle_server import bundle_server

RULE = "{name: r, limit_keys: ['jwt:sub'], algorithm: token_bucket, algorithm_config: {tokens_per_second: 1, burst: 2}}"
OFF = "loop_detection: {enabled: false, window_seconds: 60, threshold_identical_requests: 3}"


class Doctor:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "b.yaml"
        self.data = folder / "data"

    def says(self, level: str, bundle: str = "", /, **values: object) -> str:
        if bundle:
            self.bundle.write_text(f"bundle_version: 1\n{bundle}\n")
            values["policy"] = str(self.bundle)
        settings = Settings.model_validate({"data_dir": str(self.data), "admin_port": 0, **values})
        findings = examine(settings, FakeClock()).findings
        return "\n".join(f"{one.about}: {one.message}" for one in findings if one.level == level)


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def policies(*specs: str) -> str:
    inner = ", ".join(
        f"{{id: p{n}, spec: {{selector: {{pathPrefix: /p{n}/}}, {spec}}}}}" for n, spec in enumerate(specs)
    )
    return f"policies: [{inner}]"


def test_sound_settings_have_nothing_to_say(doctor: Doctor) -> None:
    """No false alarms (T-1)."""
    assert doctor.says("problem", policies("rules: []")) == ""
    assert doctor.says("warning", policies("rules: []")) == ""
    assert not doctor.data.exists(), "doctor only looks"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "policy: none is set"),
        ({"host": "0.0.0.0"}, "host: 0.0.0.0 is reachable from other machines"),
        ({"host": "gateway.example"}, "host: gateway.example is reachable"),
        ({"trusted_proxies": ["0.0.0.0/0"]}, "trusted_proxies: 0.0.0.0/0 trusts X-Forwarded-For from any address"),
        ({"trusted_proxies": ["unix", "::/0"]}, "trusted_proxies: ::/0 trusts X-Forwarded-For from any address"),
        ({"loop_guard": {"max_hits": 0}}, "loop_guard.max_hits: 0 switches"),
        ({"secret": "short"}, "secret: is shorter than 16 characters"),
        ({"debug_secret": "short"}, "debug_secret: is shorter than 16 characters"),
        ({"jwt": {"jwks_url": "http://keys.invalid"}}, "jwt.jwks_url: is fetched without TLS"),
        ({"project_descriptor": "jwt:team"}, "jwt: tokens are not verified, and jwt:team is used"),
    ],
)
def test_unsafe_settings(doctor: Doctor, values: dict[str, object], said: str) -> None:
    """Each unsafe value is warned of (T-1)."""
    assert said in doctor.says("warning", "", **values)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_is_safe(doctor: Doctor, host: str) -> None:
    """What only this machine reaches needs no warning (T-1)."""
    assert "host" not in doctor.says("warning", host=host)


def test_unverified_tokens_in_use(doctor: Doctor) -> None:
    """Rules, fallbacks and kill switches that count by claims nobody verifies; with keys all is well (C-3)."""
    assert "jwt:sub is used" in doctor.says("warning", policies(f"rules: [{RULE}]"))
    assert "jwt:sub is used" in doctor.says("warning", policies(f"fallback_limit: {RULE}"))
    switch = "policies: []\nkill_switches: [{scope_key: 'jwt:sub', scope_value: eve}]"
    assert "jwt:sub is used" in doctor.says("warning", switch)
    assert "jwt" not in doctor.says("warning", policies(f"rules: [{RULE}]"), jwt={"secret": "s" * 32})


def test_routes_without_loop_detection(doctor: Doctor) -> None:
    """A disabled block of a policy's own, or none at all and the default off; not a shadow policy's (B-6)."""
    text = doctor.says("warning", policies(OFF, "rules: []", f"mode: shadow, {OFF}"))
    assert [line for line in text.splitlines() if "loop_detection" in line] == [
        "loop_detection: none on /p0/* (policy p0)"
    ]
    text = doctor.says("warning", policies("rules: []") + "\ndefaults: {loop_detection: off}")
    assert "loop_detection: LLM calls that no policy's own loop_detection covers are not watched" in text
    assert "none on /p0/* (policy p0)" in text
    many = policies(*[OFF] * 25)
    assert "and 5 more routes without it" in doctor.says("warning", many)


def test_routes_name_method_and_host(doctor: Doctor) -> None:
    """Enough to find the route (B-6)."""
    selector = "{pathExact: /x, methods: [POST], hosts: [a.example]}"
    text = doctor.says("warning", f"policies: [{{id: p, spec: {{selector: {selector}, {OFF}}}}}]")
    assert "none on POST a.example/x (policy p)" in text


def test_bundle_that_does_not_load(doctor: Doctor) -> None:
    """Every problem, located; a missing path as well (T-1)."""
    assert "policy: " in doctor.says("problem", "policies: 5")
    assert "cannot be read" in doctor.says("problem", policy=str(doctor.folder / "none.yaml"))


def test_bundle_that_is_elsewhere(doctor: Doctor) -> None:
    """It is fetched once, as the server would; a way without TLS, and keys that are none, are said (B-3, B-4, T-1)."""
    with bundle_server() as server:
        server.put("/p", "bundle_version: 7\npolicies: []\n")
        said = doctor.says("warning", policy=server.url + "/p", policy_token="canary-token")
        assert "policy: is not signed and fetched without TLS" in said
        assert "policy_token: is sent without TLS" in said
        assert "canary-token" not in said
        secret = {"policy_hmac_secret": "a shared secret of some length"}
        assert "is not signed" in doctor.says("problem", policy=server.url + "/p", **secret)
        assert "returned 404" in doctor.says("problem", policy=server.url + "/none")
        wrong = doctor.says("problem", policy=server.url + "/p", policy_public_key_file=str(doctor.folder / "none"))
        assert "policy: policy_public_key_file: " in wrong
    assert "Connection refused" in doctor.says("problem", policy=server.url + "/p")


def test_bundle_that_has_expired(doctor: Doctor) -> None:
    """It is enforced, and said (B-5)."""
    assert "the bundle expired at 2020" in doctor.says("warning", "policies: []\nexpires_at: 2020-01-01T00:00:00Z")


def test_readable_secrets(doctor: Doctor) -> None:
    """A secret that others can read; one that cannot be read at all is a problem (T-1)."""
    doctor.data.mkdir()
    kept = doctor.data / "secret"
    kept.write_text("x" * 64)
    kept.chmod(0o644)
    assert "secret: " in doctor.says("warning")
    assert f"chmod 600 {kept}" in doctor.says("warning")
    kept.chmod(0o600)
    assert "chmod" not in doctor.says("warning")
    assert "secret_file: " in doctor.says("problem", secret_file=str(doctor.folder / "none"))


def test_a_full_disk(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said while nothing can be saved, and before (S-1)."""
    assert "the disk has" not in doctor.says("warning")
    room = os.statvfs("/")
    full = os.statvfs_result((room.f_bsize, 1024, 1000, 3000, 3000, *tuple(room)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    assert "the disk has 3 MB left; when it is full, counters, orders and history are not saved" in doctor.says(
        "warning"
    )


def test_data_directory(doctor: Doctor) -> None:
    """One that cannot be written to, and what is kept in it (B-3)."""
    blocked = doctor.folder / "file"
    blocked.write_text("")
    assert "data_dir: " in doctor.says("warning", data_dir=str(blocked / "below"))
    doctor.says("note", policies("rules: []"))
    kept = LastGood(doctor.data, doctor.bundle)
    kept.write(load_bundle(doctor.bundle))
    assert "contains the last valid bundle, version 1" in doctor.says("note", policies("rules: []"))
    kept.path.write_text("{}")
    assert "the last good copy cannot be used" in doctor.says("warning", policies("rules: []"))
    doctor.data.chmod(0o777)
    (doctor.data / "state.db").symlink_to(doctor.folder / "elsewhere")
    said = doctor.says("warning")
    assert f"data_dir: {doctor.data} is writable for every user of this machine" in said
    assert f"data_dir: {doctor.data}/state.db is a symbolic link" in said


def test_an_admin_plane_for_everybody(doctor: Doctor) -> None:
    """It has a token, and no TLS of its own (Y-3)."""
    everywhere = {"admin_host": "0.0.0.0", "admin_port": 8788}
    assert "admin_host: the admin port serves plain HTTP on 0.0.0.0" in doctor.says("warning", **everywhere)
    assert "admin_host" not in doctor.says("warning", **{**everywhere, "admin_port": 0})
    assert doctor.says("note", upstream=["a=http://x"]) == doctor.says("note")


def test_files_that_cannot_be_used(doctor: Doctor) -> None:
    """Keys and address files are tried (T-1)."""
    assert "jwt: keys cannot be read" in doctor.says("problem", jwt={"jwks_file": str(doctor.folder / "none")})
    assert "geo_file" in doctor.says("problem", geo_file=str(doctor.folder / "none"))


def test_price_files(doctor: Doctor) -> None:
    """One that cannot be read is a problem, entries that are left out are warnings, a few of them (L-5, T-1)."""
    file = doctor.folder / "prices.json"
    prices = {"prices": {"file": str(file)}}
    assert doctor.says("problem", **prices) == f"prices.file: {file}: cannot be read: No such file or directory"
    entries = ", ".join(f'"m{number}": {{"input_cost_per_token": -1}}' for number in range(12))
    file.write_text(f"{{{entries}}}")
    said = doctor.says("warning", **prices)
    assert f"prices.file: {file}:1:2: m0.input_cost_per_token: must not be negative, got -1" in said
    assert "and 2 more entries with problems" in said
    file.write_text('{"m": {"input_cost_per_token": 1e-06}}')
    assert "prices" not in doctor.says("warning", **prices) + doctor.says("problem", **prices)


@pytest.mark.parametrize(
    "bundle",
    [
        "policies: []\ndefaults: {loop_detection: {similarity: tail, action: pause}}",
        "policies: []\nagents: {a: {max_steps_per_run: 9, pause_at_percent: 50}}",
        policies(
            "rules: [{name: r, limit_keys: [], algorithm: cost_based, algorithm_config: {budget: 9, period: 1d, "
            "staged_actions: [{threshold_percent: 50, action: pause}, {threshold_percent: 100, action: reject}]}}]"
        ),
    ],
    ids=["loops", "agents", "budgets"],
)
def test_somebody_has_to_be_asked(doctor: Doctor, bundle: str) -> None:
    """Who pauses runs needs an admin port, and mostly an alert rule (K-6)."""
    assert "without an admin port nobody can answer" in doctor.says("warning", bundle)
    assert "nobody can answer" not in doctor.says("warning", bundle, admin_port=8788)
    assert "only the dashboard asks" in doctor.says("note", bundle, admin_port=8788)
    told = {
        "alert_targets": {"t": {"type": "slack", "url": "env:X"}},
        "alerts": [{"name": "n", "type": "pause", "targets": ["t"]}],
    }
    assert "only the dashboard" not in doctor.says("note", bundle, admin_port=8788, **told)
    assert "pause" not in doctor.says("warning", "policies: []\npause: {then: land}")
