"""`breakloop schema`: print the JSON Schemas of bundles and settings, the built-in detectors, and the sensitivity
presets.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from breakloop.app.build import loop_guard
from breakloop.cli.output import config_option, json_option, print_json, settings_of
from breakloop.config.loader import LoadedSettings, settings_json_schema
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.detect.steps.kinds import BY_NAME, LEVELS, PRESETS, as_json, number
from breakloop.detect.steps.kinds import presets as preset_thresholds
from breakloop.policy.compile import builtin_blocks
from breakloop.policy.schema.bundle import bundle_json_schema
from breakloop.policy.schema.loops import AnyLoop, StepsLoop

_COOLDOWN = ("cooldown_seconds", "cooldown_growth", "cooldown_max_seconds")
_SHOWN = {
    "tail": ("similarity", "tail_messages", "max_hits", "window_seconds", *_COOLDOWN),
    "steps": ("similarity", "sensitivity", *_COOLDOWN, "stream_guard"),
}
_COLUMN = 17
_KIND_COLUMN = 14

Block = dict[str, object]


@click.command(name="schema")
@click.option("--settings", "of_settings", is_flag=True, help="The schema of breakloop.yaml.")
@click.option("--builtin", is_flag=True, help="The built-in loop protection as YAML, with the values in effect.")
@click.option("--presets", is_flag=True, help="The thresholds behind each sensitivity of steps, kind by kind.")
@config_option
@json_option
def command(*, of_settings: bool, builtin: bool, presets: bool, config: str, as_json: bool) -> None:
    """Print the JSON Schema of policy bundles, for editors and other tools."""
    if of_settings + builtin + presets > 1:
        raise click.UsageError("--settings, --builtin and --presets exclude each other")
    if presets:
        print_json(_presets()) if as_json else click.echo("\n".join(_preset_lines()))
    elif builtin:
        loaded = settings_of(config)
        block = builtin_block(loop_guard(loaded.settings))
        if as_json:
            print_json({"defaults": {"loop_detection": block}})
        else:
            click.echo(_as_yaml(block, loaded))
    else:
        print_json(settings_json_schema() if of_settings else bundle_json_schema())


def builtin_block(guard: BuiltinLoopGuard) -> str | Block | list[Block]:
    """Return the detectors that apply where no policy configures loop detection, in the form of a bundle."""
    blocks = [_shown(block) for block in builtin_blocks(guard)]
    if not blocks:
        return "off"
    return blocks[0] if len(blocks) == 1 else blocks


def _shown(block: AnyLoop) -> Block:
    """Return a block with its defaults filled in."""
    shown: Block = {name: getattr(block, name) for name in _SHOWN[block.similarity]}
    if not isinstance(block, StepsLoop):
        return {**shown, "action": block.action_for("block")}
    if block.thresholds:
        shown["thresholds"] = {kind: as_json(levels) for kind, levels in block.thresholds.items()}
    return {**shown, "ladder": {name: block.action_for(name) for name in LEVELS}}


def _as_yaml(block: str | Block | list[Block], loaded: LoadedSettings) -> str:
    found = loaded.settings.origins.items()
    origins = {name.partition(".")[2]: origin for name, origin in found if name.startswith("loop_guard.")}
    lines = [
        "# The built-in loop protection: it applies to every LLM call that no policy's own loop_detection covers.",
        "# To change it, set LOOP_GUARD_* (or loop_guard in breakloop.yaml), or put your own into the bundle:",
        "defaults:",
    ]
    if isinstance(block, str):
        return "\n".join([*lines, f"  loop_detection: {block}  # {origins['max_hits']}: max_hits is 0"])
    lines.append("  loop_detection:")
    if isinstance(block, dict):
        return "\n".join([*lines, *(f"    {line}" for line in _fields(block, origins))])
    for one in block:
        lines += [f"    {'  ' if at else '- '}{line}" for at, line in enumerate(_fields(one, origins))]
    return "\n".join(lines)


def _fields(block: Block, origins: dict[str, str]) -> Iterator[str]:
    """Format one field per line; a value that a setting defines names the setting."""
    for name, value in block.items():
        text = f"{name}: {_flow(value)}"
        yield text if name not in origins else f"{text}  # {origins[name]}"


def _flow(value: object) -> str:
    """Format a value as one line of YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_flow(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_flow(one) for one in value)}]"
    if value is None:
        return "never"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def _presets() -> dict[str, object]:
    kinds = {kind: {"meaning": BY_NAME[kind].meaning, "counts": BY_NAME[kind].counted} for kind in BY_NAME}
    return {"levels": list(LEVELS), "kinds": kinds, "presets": preset_thresholds()}


def _preset_lines() -> Iterator[str]:
    def row(*cells: str) -> str:
        return cells[0].ljust(_KIND_COLUMN) + "".join(cell.ljust(_COLUMN) for cell in cells[1:]).rstrip()

    yield "Counts at which a kind of loop is notice, block, stop. Set `thresholds` in a block to change single ones."
    yield ""
    yield row("kind", *PRESETS, "counts")
    for kind in BY_NAME:
        levels = [", ".join(number(one) for one in thresholds[kind]) for thresholds in PRESETS.values()]
        yield row(kind, *levels, BY_NAME[kind].counted)
        yield row("", BY_NAME[kind].meaning)
