"""Whether a command line is one that `breakloop` understands. Nothing is run."""

from __future__ import annotations

import click

from breakloop.cli.main import cli


def wrong_with(words: list[str]) -> str:
    """What is wrong with the words after `breakloop`, or an empty text."""
    command: click.Command = cli
    context = click.Context(cli, info_name="breakloop", **cli.context_settings)
    rest = list(words)
    try:
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            found = command.get_command(context, name)
            if found is None:
                return f"there is no command {name}"
            command, context = found, click.Context(found, parent=context, info_name=name)
        command.make_parser(context).parse_args(rest)
    except click.UsageError as error:
        return error.format_message()
    return ""
