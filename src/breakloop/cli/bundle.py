"""`breakloop bundle`: bundles on their way to other machines (SPEC B-3, B-4). Its commands are in `bundle_push` and
`bundle_sign`; whether a bundle is right is `validate`'s."""

from __future__ import annotations

import click

from breakloop.cli.bundle_push import push, show
from breakloop.cli.bundle_sign import keygen, sign, verify


@click.group(name="bundle", commands=[push, show, keygen, sign, verify])
def command() -> None:
    """Push a bundle to every instance, see which one is there, sign bundles and verify them."""
