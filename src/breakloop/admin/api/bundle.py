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


async def bundle(asked: OperationRequest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = await asked.services.in_thread(asked.services.bundles.current)
    return found


async def policies(asked: OperationRequest) -> PoliciesResponse:
    return PoliciesResponse(plain(await asked.services.in_thread(asked.services.bundles.policies)))


async def validate(asked: OperationRequest) -> ValidationResult:
    found = await asked.services.in_thread(lambda: asked.services.bundles.validate(asked.body))
    return ValidationResult(not found, plain(list(found)))


async def diff(asked: OperationRequest) -> BundleDiff:
    return BundleDiff(await asked.services.in_thread(lambda: asked.services.bundles.diff(asked.body)))


async def apply(asked: OperationRequest) -> Mapping[str, Any]:
    return await asked.actions.apply(asked.body, force=asked.query.force)


async def rollback(asked: OperationRequest) -> Mapping[str, Any]:
    return await asked.actions.rollback(asked.body.version)


async def history(asked: OperationRequest) -> BundleVersions:
    return BundleVersions(plain(await asked.services.in_thread(asked.services.bundles.earlier)))


async def promote(asked: OperationRequest) -> Mapping[str, Any]:
    return await asked.actions.promote(asked.body.policy)


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
