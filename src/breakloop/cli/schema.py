"""`breakloop schema`: the JSON Schemas of bundle and settings (SPEC T-1), and the built-in loop protection (B-6)."""

from __future__ import annotations

import click

from breakloop.cli.output import config_option, json_option, print_json, settings_of
from breakloop.parts import loop_guard
from breakloop.policy.compile_loops import LoopGuard, builtin_blocks
from breakloop.policy.schema_json import bundle_json_schema
from breakloop.settings import Loaded, settings_json_schema

_SHOWN = (
    "similarity",
    "tail_messages",
    "max_hits",
    "window_seconds",
    "cooldown_seconds",
    "cooldown_growth",
    "cooldown_max_seconds",
)


@click.command(name="schema")
@click.option("--settings", "of_settings", is_flag=True, help="The schema of breakloop.yaml.")
@click.option("--builtin", is_flag=True, help="The built-in loop protection as YAML, with the numbers in effect here.")
@config_option
@json_option
def command(*, of_settings: bool, builtin: bool, config: str, as_json: bool) -> None:
    """Print the JSON Schema of policy bundles, for editors and other tools."""
    if of_settings and builtin:
        raise click.UsageError("--settings and --builtin exclude each other")
    if builtin:
        loaded = settings_of(config, as_json=as_json)
        block = builtin_block(loop_guard(loaded.settings))
        if as_json:
            print_json({"defaults": {"loop_detection": block}})
        else:
            click.echo(_as_yaml(block, loaded))
    else:
        print_json(settings_json_schema() if of_settings else bundle_json_schema())


def builtin_block(guard: LoopGuard) -> str | dict[str, object]:
    """Return the block that judges LLM calls which no policy's own loop detection covers, as a bundle would say it."""
    blocks = builtin_blocks(guard)
    if not blocks:
        return "off"
    (block,) = blocks
    return {**{name: getattr(block, name) for name in _SHOWN}, "action": block.action_for("block")}


def _as_yaml(block: str | dict[str, object], loaded: Loaded) -> str:
    said = {name.partition(".")[2]: origin for name, origin in loaded.origins.items() if name.startswith("loop_guard.")}
    lines = [
        "# The built-in loop protection: it judges every LLM call that no policy's own loop_detection covers.",
        "# To change it, set LOOP_GUARD_* (or loop_guard in breakloop.yaml), or put your own into the bundle:",
        "defaults:",
    ]
    if isinstance(block, str):
        return "\n".join([*lines, f"  loop_detection: {block}  # {said['max_hits']}: max_hits is 0"])
    lines.append("  loop_detection:")
    for name, value in block.items():
        text = f"    {name}: {value:g}" if isinstance(value, float) else f"    {name}: {value}"
        lines.append(text if name not in said else f"{text}  # {said[name]}")
    return "\n".join(lines)
