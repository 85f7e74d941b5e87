"""Operations on the policy bundle: show, validate, apply, roll back. A body is a bundle in YAML or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from breakloop.admin.api.operations import Operation, OperationRequest, PlainText
from breakloop.admin.api.responses import plain

Current = dict[str, Any]


class ForceQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether a lower version is accepted."""

    force: Annotated[bool, msgspec.Meta(description="Accept a lower version.")] = False


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which version."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class PolicyBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which policy."""

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class PoliciesResponse(msgspec.Struct):
    """The active policies, in words."""

    policies: list[dict[str, Any]]


class ValidationResult(msgspec.Struct):
    """Whether a bundle could be applied, and what is wrong with it."""

    ok: bool
    problems: list[dict[str, Any]]


class BundleDiff(msgspec.Struct):
    """A unified diff against the active bundle; empty if they are equal."""

    diff: str


class BundleVersions(msgspec.Struct):
    """Bundles that were active before, the newest first."""

    history: list[dict[str, Any]]


async def bundle(request: OperationRequest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = await request.services.in_thread(request.services.bundles.current)
    return found


async def policies(request: OperationRequest) -> PoliciesResponse:
    return PoliciesResponse(plain(await request.services.in_thread(request.services.bundles.policies)))


async def validate(request: OperationRequest) -> ValidationResult:
    found = await request.services.in_thread(lambda: request.services.bundles.validate(request.body))
    return ValidationResult(not found, plain(list(found)))


async def diff(request: OperationRequest) -> BundleDiff:
    return BundleDiff(await request.services.in_thread(lambda: request.services.bundles.diff(request.body)))


async def apply(request: OperationRequest) -> Mapping[str, Any]:
    return await request.actions.apply(request.body, force=request.query.force)


async def rollback(request: OperationRequest) -> Mapping[str, Any]:
    return await request.actions.rollback(request.body.version)


async def history(request: OperationRequest) -> BundleVersions:
    return BundleVersions(plain(await request.services.in_thread(request.services.bundles.earlier)))


async def promote(request: OperationRequest) -> Mapping[str, Any]:
    return await request.actions.promote(request.body.policy)


OPERATIONS = (
    Operation("GET", "/bundle", "getBundle", "Show the bundle in force", bundle, Current),
    Operation("GET", "/bundle/policies", "listPolicies", "List its policies, in words", policies, PoliciesResponse),
    Operation(
        "GET", "/bundle/history", "listBundles", "List the bundles that were in force before", history, BundleVersions
    ),
    Operation(
        "POST", "/bundle/validate", "validateBundle", "Check a bundle", validate, ValidationResult, body=PlainText
    ),
    Operation(
        "POST", "/bundle/diff", "diffBundle", "Compare a bundle with the one in force", diff, BundleDiff, body=PlainText
    ),
    Operation(
        "POST",
        "/bundle/apply",
        "applyBundle",
        "Apply a bundle",
        apply,
        Current,
        ForceQuery,
        PlainText,
        acts=True,
    ),
    Operation(
        "POST",
        "/bundle/rollback",
        "rollbackBundle",
        "Roll back to an earlier bundle",
        rollback,
        Current,
        body=RollbackBody,
        acts=True,
    ),
    Operation(
        "POST",
        "/bundle/promote",
        "promotePolicy",
        "Change a policy from shadow to enforce mode",
        promote,
        Current,
        body=PolicyBody,
        acts=True,
    ),
)
