"""What is valid in a bundle but may surprise its author: overrides that have expired, kill switches that can never
fire, blocks that do nothing; and whatever a version does not enforce yet, which at present is nothing. Notes never stop
a bundle from loading."""

from __future__ import annotations

from collections.abc import Iterator

from breakloop.policy import schema
from breakloop.policy.places import Finding


def notes_for(bundle: schema.Bundle, now: float | None = None) -> list[Finding]:
    """Return the notes on a bundle, one of a kind; what has expired is only known when `now` is given."""
    notes = [*_doubtful(bundle)]
    if now is not None:
        notes += _expired(bundle, now)
    return _one_of_a_kind(notes)


def _one_of_a_kind(notes: list[Finding]) -> list[Finding]:
    """Thousands of policies with the same feature make one note that says how many there are."""
    groups: dict[tuple[str, object], list[Finding]] = {}
    for note in notes:
        groups.setdefault((note.message, note.path[-1] if note.path else ""), []).append(note)
    return [_with_count(group) for group in groups.values()]


def _with_count(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    hint = f"{first.hint}; " if first.hint else ""
    return Finding(first.path, first.message, f"{hint}and {len(group) - 1} more like it", first.at_key, first.place)


def _doubtful(bundle: schema.Bundle) -> Iterator[Finding]:
    if bundle.defaults.loop_detection is not None:
        for name, project in bundle.projects.items():
            if project.loop_guard is not None:
                message = "does nothing: defaults.loop_detection takes the place of the built-in block that it is for"
                yield Finding(("projects", name, "loop_guard"), message, at_key=True)
    for index, policy in enumerate(bundle.policies):
        if not policy.spec.selector.model_fields_set:
            path = ("policies", index, "spec", "selector")
            yield Finding(path, "is empty, so the policy is for every request", at_key=True)
    seen: dict[tuple[str, str], list[tuple[int, schema.KillSwitch]]] = {}
    for index, switch in enumerate(bundle.kill_switches):
        earlier = seen.setdefault((switch.scope_key, switch.scope_value), [])
        covering = next((other for other, before in earlier if _covers(before, switch)), None)
        if covering is not None:
            yield Finding(
                ("kill_switches", index), f"can never fire: kill_switches[{covering}] already stops all of it"
            )
        earlier.append((index, switch))


def _covers(first: schema.KillSwitch, second: schema.KillSwitch) -> bool:
    if first.expires_at is not None and (second.expires_at is None or first.expires_at < second.expires_at):
        return False
    if first.route is None or first.route == second.route:
        return True
    return first.route.endswith("*") and (second.route or "").startswith(first.route[:-1])


def _expired(bundle: schema.Bundle, now: float) -> Iterator[Finding]:
    if bundle.expires_at is not None and bundle.expires_at.timestamp() <= now:
        yield Finding(("expires_at",), "has passed; the bundle goes on being enforced")
    overrides = {"global_shadow": bundle.global_shadow, "kill_switch_override": bundle.kill_switch_override}
    for name, override in overrides.items():
        if override and override.enabled and override.expires_at and override.expires_at.timestamp() <= now:
            yield Finding((name, "expires_at"), f"has passed, so {name} is not active")
    for index, switch in enumerate(bundle.kill_switches):
        if switch.expires_at is not None and switch.expires_at.timestamp() <= now:
            yield Finding(("kill_switches", index, "expires_at"), "has passed, so the kill switch is not active")
