"""Tests of `admin.services`: what the parts are asked for is what they have."""

from __future__ import annotations

import inspect

import pytest

from breakloop.admin.bundles import BundleAdmin
from breakloop.admin.services import OPERATOR, VIEWER, BundleService, WebhookService
from tests.admin_world import FakeBundles, FakeHooks, full


@pytest.mark.parametrize(
    ("asked", "made"), [(BundleService, BundleAdmin), (BundleService, FakeBundles), (WebhookService, FakeHooks)]
)
def test_stand_ins_and_real_parts_have_the_same_methods(asked: type, made: type) -> None:
    """A stand-in that differs from what it stands for proves nothing."""
    for name, method in inspect.getmembers(asked, inspect.isfunction):
        if not name.startswith("_"):
            wanted = inspect.signature(method).parameters
            assert list(inspect.signature(getattr(made, name)).parameters) == list(wanted), name


def test_roles_and_defaults() -> None:
    assert (VIEWER, OPERATOR) == ("viewer", "operator")
    assert full().services.agent_changed is None
