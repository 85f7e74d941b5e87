"""A decision service without a network: the real door, with a clock that moves when told."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.app.build import loop_guard
from breakloop.cli.test import OFFLINE_SECRET, OfflineService, load_policy, server_secret
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.detect.counting import CountingDetector
from breakloop.errors import BundleError, SettingsError
from breakloop.policy.load import load_text
from breakloop.replay.cases import CaseRequest
from breakloop.store.data_dir import DataDir

POLICY = b"""bundle_version: 1
policies:
  - id: p
    spec:
      selector: {pathPrefix: /a/, hosts: [a.example.com]}
      rules:
        - name: r
          limit_keys: [header:x-team]
          on_missing: reject
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 1, burst: 1}
"""


def offline(**settings: object) -> OfflineService:
    return OfflineService(load_text(POLICY, "p.yaml"), Settings.model_validate(settings), FakeClock())


def ask(service: OfflineService, *headers: tuple[str, str], path: str = "/a/b", host: str = "A.example.com:443") -> int:
    return service.send(CaseRequest("POST", path, host, headers)).reply.status


def test_the_door_answers_and_the_engine_remembers() -> None:
    """Status, headers and the record of the same decision (E-7)."""
    service = offline()
    first = service.send(CaseRequest("POST", "/a/b", "a.example.com", (("X-Team", "red"),)))
    assert first.record is not None
    assert first.record.verdict.allowed
    assert dict(first.headers)["RateLimit-Remaining"] == "0"
    denied = service.send(CaseRequest("POST", "/a/b", "a.example.com", (("x_team", "red"),)))
    assert (denied.reply.status, denied.actual()["status"]) == (429, 429)
    assert dict(denied.headers)["X-Breakloop-Reason"] == "token_bucket_exceeded"


def test_time_moves_when_told() -> None:
    """A bucket refills by the clock it was given."""
    service = offline()
    assert [ask(service, ("X-Team", "red")) for _ in range(2)] == [200, 429]
    service.clock.advance(1)
    assert ask(service, ("X-Team", "red")) == 200


def test_host_and_headers_arrive_as_a_gateway_sends_them() -> None:
    """The host is normalised, names are canonical, the first of repeated fields counts (C-1, C-2)."""
    service = offline()
    assert ask(service, ("X_TEAM", "red"), ("x-team", "blue")) == 200
    assert ask(service, ("X-Team", "blue")) == 200
    assert ask(service, ("X-Team", "red")) == 429
    assert ask(service, host="other.example.com") == 200
    assert ask(service) == 429  # missing descriptor


def test_what_cannot_be_judged_has_no_record() -> None:
    """400, with the reason in the answer (R-3)."""
    exchange = offline().send(CaseRequest("GET", "/a%2fb"))
    assert exchange.record is None
    actual = exchange.actual()
    assert (actual["reason"], actual["status"]) == ("bad_request", 400)
    assert "encoded slash" in actual["message"]


def test_a_record_is_of_this_request_only() -> None:
    """A refused request does not show the decision before it."""
    service = offline()
    assert service.send(CaseRequest("GET", "/a")).record is not None
    assert service.send(CaseRequest("GET", "/a%2fb")).record is None


def test_settings_reach_the_parts() -> None:
    """Prefix, loop guard and project hold here as they do when serving (T-1)."""
    service = offline(header_prefix="X-Stop-", loop_guard={"max_hits": 2}, project="mine")
    assert "X-Stop-Request-Id" in dict(service.send(CaseRequest("GET", "/")).headers)
    assert loop_guard(Settings.model_validate({"loop_guard": {"max_hits": 2}})).max_hits == 2
    compiled = service.engine.bundle
    assert compiled is not None
    assert isinstance(compiled.default_loops[1], CountingDetector)
    assert compiled.default_loops[1].spec.limit == 2
    assert service.engine.record is not None
    assert service.descriptors.project(service.engine.record.call) == "mine"


def test_keys_behind_a_url_are_not_asked_for() -> None:
    """With keys at hand tokens are verified; a URL alone is not fetched, and tokens are only read (C-3)."""
    assert offline(jwt={"secret": "x" * 40}).descriptors.tokens.verifies
    assert not offline(jwt={"jwks_url": "https://keys.example.com/"}).descriptors.tokens.verifies


def test_fingerprints_depend_on_the_secret_alone() -> None:
    """The same secret gives the same caller digest, another one another."""

    def caller(secret: bytes) -> str:
        service = OfflineService(None, Settings(), FakeClock(), secret)
        record = service.send(CaseRequest("GET", "/", headers=(("X-API-Key", "k"),))).record
        assert record is not None
        return service.descriptors.caller(record.call)

    assert caller(OFFLINE_SECRET) == caller(OFFLINE_SECRET)
    assert caller(OFFLINE_SECRET) != caller(b"other")


def test_load_policy(tmp_path: Path) -> None:
    """No path means the built-in protection alone (B-6)."""
    assert load_policy("", 0.0) is None
    file = tmp_path / "p.yaml"
    file.write_bytes(POLICY)
    loaded = load_policy(str(file), 0.0)
    assert loaded is not None
    assert loaded.bundle.policies[0].id == "p"


@pytest.mark.parametrize("value", ["caf\u00e9", "caf\udce9"])
def test_header_bytes_survive(value: str) -> None:
    """Text goes out as UTF-8; bytes of a raw request that are not go out as they came."""
    record = offline().send(CaseRequest("GET", "/", headers=(("X-Team", value),))).record
    assert record is not None
    assert record.call.headers["x-team"] == value.encode("utf-8", "surrogateescape")


def test_the_secret_is_that_of_the_server(tmp_path: Path) -> None:
    """Digests that `explain` shows can be put into a kill switch or an allow list (LD-1)."""

    def secret(**settings: str) -> bytes:
        return server_secret(Settings.model_validate({"data_dir": str(tmp_path / "data"), **settings}))

    assert secret() == OFFLINE_SECRET
    assert not (tmp_path / "data").exists()
    kept = DataDir(tmp_path / "data").secret("", "")
    assert secret() == kept != OFFLINE_SECRET
    given = DataDir(tmp_path / "data").secret("as given", "")
    assert secret(secret="as given") == secret(secret="as given", data_dir=str(tmp_path / "none")) == given
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("as given\n")
    assert secret(secret_file=str(tmp_path / "file")) == given


@pytest.mark.parametrize("path", ["https://x/p.yaml?key=canary", "redis"])
def test_a_bundle_that_is_elsewhere_is_not_fetched(path: str) -> None:
    """These commands use no network, and say what to give instead (B-3)."""
    with pytest.raises(BundleError, match="is not a local file; tests use no network") as caught:
        load_policy(path, 0.0)
    assert "canary" not in str(caught.value)


MONEY = b"""bundle_version: 1
policies:
  - id: p
    spec:
      selector: {pathPrefix: /}
      rules:
        - name: r
          limit_keys: []
          algorithm: cost_based
          algorithm_config:
            {budget: 0.01, period: 1d, cost_key: "usage:usd", staged_actions: [{threshold_percent: 100, action: reject}]}
"""


def test_money_costs_what_the_settings_say() -> None:
    """`test` and `explain` judge by the same prices as the server (L-5, E-7)."""
    body = b'{"model": "mine", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000}'
    asked = CaseRequest("POST", "/v1/chat/completions", "x", (("content-type", "application/json"),), body)
    for usd, status in ((9, 200), (11, 429)):
        prices = {"models": {"mine": {"input_usd_per_million": 0, "output_usd_per_million": usd}}}
        service = OfflineService(load_text(MONEY, "p.yaml"), Settings.model_validate({"prices": prices}), FakeClock())
        assert service.send(asked).reply.status == status


def test_a_price_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="gone"):
        offline(prices={"file": str(tmp_path / "gone.json")})
