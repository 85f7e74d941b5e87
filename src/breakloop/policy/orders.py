"""Orders: changes that an operator makes at run time in addition to the bundle.

They are validated like the bundle and merged into it, so that evaluating a request costs no more than with the
bundle alone. Storing and sharing orders is done by `breakloop.engine.operator`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from breakloop.errors import OrderError
from breakloop.policy.compile import SECRET_DESCRIPTORS
from breakloop.policy.compiled import CompiledBundle, CompiledKillSwitch
from breakloop.policy.diagnostics import findings
from breakloop.policy.documents import path_text, readable
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.types import Block, validate

GLOBAL_SHADOW, KILL_SWITCH_OVERRIDE = "global_shadow", "kill_switch_override"
OVERRIDES: Final = (GLOBAL_SHADOW, KILL_SWITCH_OVERRIDE)
REASON_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Orders:
    switches: tuple[CompiledKillSwitch, ...] = ()
    shadow_until: float = 0.0
    kill_override_until: float = 0.0
    snoozed: tuple[tuple[str, float], ...] = ()  # fingerprints, and until when
    agents: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # settings of single agents

    def over(self, bundle: CompiledBundle) -> CompiledBundle:
        """Return the bundle merged with these orders, or the same object if there are none."""
        if self == NO_ORDERS:
            return bundle
        return replace(
            bundle,
            kill_switches=bundle.kill_switches.with_more(self.switches) if self.switches else bundle.kill_switches,
            shadow_until=max(bundle.shadow_until, self.shadow_until),
            kill_override_until=max(bundle.kill_override_until, self.kill_override_until),
            snoozed=dict(self.snoozed),
            agents=bundle.agents_with(dict(self.agents)) if self.agents else bundle.agents,
        )


NO_ORDERS: Final = Orders()


def checked_switch(data: dict[str, Any], expires_at: float) -> dict[str, Any]:
    """Return the validated fields of a kill switch, normalized as in the bundle. Raises `OrderError`."""
    given = {name: value for name, value in data.items() if value}
    made = _checked(schema.KillSwitch, given | _ending(expires_at))
    reason = made.reason or ""
    checked_text("reason", reason, required=False)
    if made.scope_key in SECRET_DESCRIPTORS:
        # Orders are stored, listed and logged.
        raise OrderError([f"scope_key: {made.scope_key} is a secret (use caller:key, the digest of a key, instead)"])
    return {"scope_key": made.scope_key, "scope_value": made.scope_value, "route": made.route or "", "reason": reason}


def check_override(name: str, reason: str, expires_at: float | None) -> None:
    """Raise `OrderError` unless an override may be enabled with these values."""
    if name not in OVERRIDES:
        raise OrderError([f"name: must be one of {', '.join(OVERRIDES)}"])
    _checked(
        schema.Override, {"enabled": True, "reason": reason, **_ending(math.inf if expires_at is None else expires_at)}
    )


def checked_agent(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid settings of an agent, without those that are None. Raises `OrderError`."""
    known = schema.Agent.model_fields
    made = _checked(
        schema.Agent, {name: value for name, value in data.items() if value is not None or name not in known}
    )
    return made.model_dump(mode="json", exclude_unset=True)


def checked_text(name: str, text: str, *, required: bool = True) -> str:
    """Return the text, or raise `OrderError` if it is empty although required, or too long."""
    if required and not text.strip():
        raise OrderError([f"{name}: must not be empty"])
    if len(text) > REASON_MAX:
        raise OrderError([f"{name}: must be at most {REASON_MAX} characters, got {len(text)}"])
    return text


def _ending(expires_at: float) -> dict[str, str]:
    """Return a time in the format of the bundle; an empty dict if it never expires."""
    if expires_at == math.inf:
        return {}
    try:
        return {"expires_at": datetime.fromtimestamp(expires_at, tz=UTC).isoformat(timespec="microseconds")}
    except (ValueError, OverflowError, OSError):
        raise OrderError(["expires_at: is not a time"]) from None


def _checked(model: type[Block], data: dict[str, Any]) -> Block:
    made, errors = validate(model, data)
    if made is None:
        found = findings(errors, data, model)
        raise OrderError(
            [
                readable(f"{path_text(one.path)}: {one.message}" + (f" ({one.hint})" if one.hint else ""))
                for one in found
            ]
        )
    return made
