"""Runs the Python blocks of pages: a list of pages as JSON on standard input, what went wrong as JSON on standard output.
Each page has a namespace of its own, in which its blocks follow each other, and a stand-in LLM at the address of OpenAI.
It is a program because frameworks have environments of their own."""

from __future__ import annotations

import io
import json
import linecache
import os
import sys
import traceback
from contextlib import redirect_stdout
from typing import Any

from breakloop.testing import StandInLLM


def run(parts: list[tuple[str, str]]) -> str:
    """Run the parts of one page; returns what went wrong."""
    printed = io.StringIO()
    with StandInLLM.in_thread() as llm, redirect_stdout(printed):
        os.environ["OPENAI_BASE_URL"] = f"{llm.url}/v1"
        names: dict[str, Any] = {"llm": llm, "printed": printed.getvalue}
        for where, code in parts:
            try:
                linecache.cache[where] = len(code), None, code.splitlines(keepends=True), where  # tools may read it
                exec(compile(code, where, "exec", dont_inherit=True), names)
                assert getattr(names.get("guard"), "faults", 0) == 0, f"{where}: the guard failed"
            except Exception:  # noqa: BLE001 - whatever it is, the test shows it
                return f"{where}\n{traceback.format_exc()}\nprinted:\n{printed.getvalue()}"
    return ""


if __name__ == "__main__":
    wrong = {page: run(parts) for page, parts in json.load(sys.stdin).items()}
    sys.stdout.write("\n" + json.dumps(wrong) + "\n")
