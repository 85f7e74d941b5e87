"""The `breakloop` command, and `python -m breakloop`.

Claude Code waits for a new process of `breakloop hook claude-code` before and after each tool call. Without options, as
`breakloop init` writes it, that command needs no parser of options, whose import takes a quarter of the time before a
call, and nothing has to be taken apart at its end, which takes a tenth.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from breakloop.sdk.context import configured_url


def main() -> NoReturn:
    if sys.argv[1:2] == ["hook"]:
        gc.disable()  # the process ends before a collection would pay
    if sys.argv[1:] == ["hook", "claude-code"]:
        from breakloop.integrations import claude_code  # noqa: PLC0415 - other commands do not need it

        claude_code.handle(claude_code.HookOptions(configured_url()))
        sys.stdout.flush()
        os._exit(0)
    from breakloop.cli.main import run  # noqa: PLC0415 - see above

    sys.exit(run())


if __name__ == "__main__":
    main()
