"""Operations on the policy bundle (show, validate, apply, roll back) and on the process (status, settings, counters).
A body is a bundle in YAML or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from breakloop.admin.api.operations import OperationRequest, Operations, PlainText, Rows

OPERATIONS = Operations()
PROCESS_OPERATIONS = Operations()
Current = Mapping[str, Any]


class ForceQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether a lower version is accepted."""

    force: Annotated[bool, msgspec.Meta(description="Accept a lower version.")] = False


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which version."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class PolicyBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which policy."""

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class CounterQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which counters."""

    key: Annotated[
        str, msgspec.Meta(min_length=1, max_length=2048, description="Prefix of their keys, such as `tb:default:`.")
    ]


class PoliciesResponse(msgspec.Struct):
    """The active policies, in words."""

    policies: Rows


class ValidationResult(msgspec.Struct):
    """Whether a bundle could be applied, and what is wrong with it."""

    ok: bool
    problems: Rows


class BundleDiff(msgspec.Struct):
    """A unified diff against the active bundle; empty if they are equal."""

    diff: str


class BundleVersions(msgspec.Struct):
    """Bundles that were active before, the newest first."""

    history: Rows


class SettingView(msgspec.Struct):
    """A setting; secrets are masked."""

    name: str
    value: str
    origin: str


class SettingsResponse(msgspec.Struct):
    """All settings and where they come from."""

    settings: list[SettingView]


class CountersResponse(msgspec.Struct):
    """Counters whose keys begin with a prefix."""

    counters: Rows


@OPERATIONS("GET", "/bundle", "getBundle")
async def bundle(request: OperationRequest) -> Current:
    """Show the bundle in force."""
    found: Current = await request.services.in_thread(request.services.bundles.current)
    return found


@OPERATIONS("GET", "/bundle/policies", "listPolicies")
async def policies(request: OperationRequest) -> PoliciesResponse:
    """List its policies, in words."""
    return PoliciesResponse(await request.services.in_thread(request.services.bundles.policies))


@OPERATIONS("GET", "/bundle/history", "listBundles")
async def history(request: OperationRequest) -> BundleVersions:
    """List the bundles that were in force before."""
    return BundleVersions(await request.services.in_thread(request.services.bundles.earlier))


@OPERATIONS("POST", "/bundle/validate", "validateBundle", body=PlainText)
async def validate(request: OperationRequest) -> ValidationResult:
    """Check a bundle."""
    found = await request.services.in_thread(lambda: request.services.bundles.validate(request.body))
    return ValidationResult(not found, found)


@OPERATIONS("POST", "/bundle/diff", "diffBundle", body=PlainText)
async def diff(request: OperationRequest) -> BundleDiff:
    """Compare a bundle with the one in force."""
    return BundleDiff(await request.services.in_thread(lambda: request.services.bundles.diff(request.body)))


@OPERATIONS("POST", "/bundle/apply", "applyBundle", query=ForceQuery, body=PlainText, acts=True)
async def apply(request: OperationRequest) -> Current:
    """Apply a bundle."""
    return await request.actions.apply(request.body, force=request.query.force)


@OPERATIONS("POST", "/bundle/rollback", "rollbackBundle", body=RollbackBody, acts=True)
async def rollback(request: OperationRequest) -> Current:
    """Roll back to an earlier bundle."""
    return await request.actions.rollback(request.body.version)


@OPERATIONS("POST", "/bundle/promote", "promotePolicy", body=PolicyBody, acts=True)
async def promote(request: OperationRequest) -> Current:
    """Change a policy from shadow to enforce mode."""
    return await request.actions.promote(request.body.policy)


@PROCESS_OPERATIONS("GET", "/status", "getStatus")
async def status(request: OperationRequest) -> Mapping[str, Any]:
    """How this instance is."""
    who = request.identity
    return {**request.services.status(), "you": {"name": who.name, "role": who.role}}


@PROCESS_OPERATIONS("GET", "/settings", "listSettings")
async def settings(request: OperationRequest) -> SettingsResponse:
    """List settings and where each came from."""
    return SettingsResponse([SettingView(*one) for one in request.services.settings()])


@PROCESS_OPERATIONS("GET", "/counters", "listCounters", query=CounterQuery)
async def counters(request: OperationRequest) -> CountersResponse:
    """Show what is counted under a key."""
    return CountersResponse(await request.services.counters(request.query.key))
