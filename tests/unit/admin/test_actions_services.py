"""Tests of `AdminServices`: what the parts are asked for is what they have."""

from __future__ import annotations

import inspect

import pytest

from breakloop.admin.auth import OPERATOR, VIEWER
from breakloop.admin.bundles import BundleAdmin
from breakloop.alerts.service import Alerts
from breakloop.history.store import History
from tests.admin_world import FakeBundles, FakeHistory, FakeHooks


@pytest.mark.parametrize(("fake", "real"), [(FakeBundles, BundleAdmin), (FakeHooks, Alerts), (FakeHistory, History)])
def test_fakes_have_the_methods_of_what_they_replace(fake: type, real: type) -> None:
    """A fake that differs from the real class proves nothing."""
    for name, method in inspect.getmembers(fake, inspect.isfunction):
        if not name.startswith("_"):
            wanted = inspect.signature(getattr(real, name)).parameters
            assert list(inspect.signature(method).parameters) == list(wanted), name


def test_roles_and_defaults() -> None:
    assert (VIEWER, OPERATOR) == ("viewer", "operator")
