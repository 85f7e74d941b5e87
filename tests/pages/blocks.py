"""The fenced blocks of all pages, and the commands in those that people type into a shell."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"( *)(`{3,}|~{3,})(.*)")
_SAVED = re.compile(r"(?:^|[Ss]ave this as )`([\w.-]+\.(?:py|yaml|json))`(?: and run it with `([^`]+)`)?:$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    file: str = ""  # that the line above tells people to save it as
    then: str = ""  # the command that the line above tells people to run it with

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed after a prompt, and what the page shows below it."""

    text: str
    shown: str = ""


@cache
def pages() -> tuple[Path, ...]:
    """Every page that readers of the repository see."""
    own = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return tuple(sorted([*own, ROOT / "bench" / "README.md", ROOT / "deploy" / "README.md"]))


@cache
def blocks() -> tuple[Block, ...]:
    """Every fenced block of every page, in order."""
    return tuple(block for page in pages() for block in blocks_of(page))


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of one page; those in lists are indented."""
    name, above = page.relative_to(ROOT).as_posix(), ""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            above = line.strip() or above
            continue
        inner = []
        for _, text in lines:
            if text.strip() == fence[2]:
                break
            inner.append(text)
        else:
            raise AssertionError(f"{name}:{number}: the block does not end")
        saved = _SAVED.search(above)
        file, then = (saved[1], saved[2] or "") if saved else ("", "")
        yield Block(name, number, fence[3].strip(), dedent("\n".join(inner)) + "\n", file, then)
        above = ""


@cache
def commands(block: Block) -> tuple[Command, ...]:
    """The commands of a block: after prompts, or each line of a block without prompts."""
    lines = block.text.splitlines()
    prompt = next((one for one in ("$ ", "# ") if lines and lines[0].startswith(one)), "")
    found: list[Command] = []
    while lines:
        line = lines.pop(0)
        if not line.startswith(prompt):
            last = found.pop()
            found.append(Command(last.text, f"{last.shown}{line}\n"))
            continue
        text = line.removeprefix(prompt)
        while lines and not _complete(text):
            text += "\n" + lines.pop(0)
        if text.strip() and not text.startswith("#"):
            found.append(Command(text))
    return tuple(found)


@cache
def _complete(text: str) -> bool:
    """Whether the shell would run it, or wait for another line."""
    if text.endswith("\\"):
        return False
    if not re.search(r"""['"({]|\bdo\b|\bif\b""", text):
        return True
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0
