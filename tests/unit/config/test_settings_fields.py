"""Every setting: defaults, and what is decided about several of them together."""

from __future__ import annotations

import resource
from dataclasses import fields

import pytest
from pydantic import ValidationError

from breakloop.app.build import limits
from breakloop.config import settings as said
from breakloop.config.settings import Settings
from breakloop.gateway.http_request import RequestLimits


@pytest.fixture(autouse=True)
def _as_many_files_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are bounded by the open files of this machine, too."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_limits_are_those_of_the_data_plane() -> None:
    """The defaults here and there are the same (Y-2)."""
    assert limits(Settings()) == RequestLimits()


@pytest.mark.parametrize("name", said.Limits.model_fields)
def test_each_limit_that_is_set_reaches_the_data_plane(name: str) -> None:
    """And no other one changes with it (Y-2)."""
    own = {field: getattr(Settings().limits, field) for field in said.Limits.model_fields}
    made = limits(Settings.model_validate({"limits": {name: own[name] + 7}}))
    plain = RequestLimits()
    changed = {
        one.name: getattr(made, one.name)
        for one in fields(RequestLimits)
        if getattr(made, one.name) != getattr(plain, one.name)
    }
    assert changed == {name.replace("_seconds", "_s"): own[name] + 7}


def test_the_proxy_is_open_to_nobody_else_and_adds_nothing() -> None:
    """Without settings, no keys are held, no callers are asked, and no Via is sent (D-1, D-2, Y-6)."""
    settings = Settings()
    assert (settings.mode, settings.upstream, settings.upstream_keys, settings.callers) == ("all", [], [], [])
    assert (settings.via, settings.tls.cert_file, settings.upstream_ca_file) == (False, "", "")


def test_times_of_the_proxy() -> None:
    """Connecting, waiting for an answer, keeping a connection (D-1)."""
    proxy = Settings().proxy
    assert (proxy.connect_seconds, proxy.answer_seconds, proxy.idle_seconds) == (10, 600, 0)
    for name in ("connect_seconds", "answer_seconds"):
        with pytest.raises(ValidationError):
            Settings.model_validate({"proxy": {name: 0}})
    with pytest.raises(ValidationError):
        Settings.model_validate({"proxy": {"idle_seconds": -1}})


@pytest.mark.parametrize(("given", "missing"), [("cert_file", "key_file"), ("key_file", "cert_file")])
def test_tls_needs_both_files(given: str, missing: str) -> None:
    """Half a configuration would silently be none (Y-6)."""
    with pytest.raises(ValidationError, match=f"{missing} is missing"):
        Settings.model_validate({"tls": {given: "x.pem"}})
    assert Settings.model_validate({"tls": {given: "x.pem", missing: "y.pem"}}).tls.cert_file
