"""The real `breakloop demo` in a process of its own: in a pipe, on terminals of several sizes, interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_S
from tests.e2e.served import SRC

pytestmark = pytest.mark.e2e

# A proxy and settings that a person may have: the demonstration cares for neither.
ELSEWHERE = {
    "HTTP_PROXY": "http://192.0.2.1:3128",
    "HTTPS_PROXY": "http://192.0.2.1:3128",
    "BREAKLOOP_UPSTREAM": "openai=https://192.0.2.1",
    "LOOP_GUARD_MAX_HITS": "0",
}
COMMAND = (sys.executable, "-m", "breakloop", "demo")
WATCHED = """
import json, sys

heard = []

def hear(event, arguments):
    if event in {"socket.connect", "socket.bind", "socket.sendto"} and isinstance(arguments[1], tuple):
        heard.append([event, arguments[1][0]])
    elif event in {"socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.exec", "os.posix_spawn"}:
        heard.append([event, str(arguments[0])])

sys.addaudithook(hear)
from breakloop.cli.main import run
code = run(["demo", "--plain"])
print(json.dumps(heard), file=sys.stderr)
sys.exit(code)
"""


def _environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "LANG", "LC_", "COVERAGE"))}
    return {**kept, "HOME": str(folder), "PYTHONPATH": str(SRC), **ELSEWHERE, **more}


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_plain(tmp_path: Path) -> None:
    """One command; whatever the environment says, and without a file being written (X-4)."""
    done = _run(tmp_path, *COMMAND, "--plain")
    assert (done.returncode, done.stderr) == (0, "")
    assert "looping: 4 requests passed, 61 blocked; cooldowns of 30 s\n" in done.stdout
    assert "healthy: 28 requests passed, 0 blocked; finished its task\n" in done.stdout
    assert "export OPENAI_BASE_URL=http://127.0.0.1:8787/v1" in done.stdout
    assert "\x1b" not in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != ".cache"] == []  # that one is coverage's


def test_nothing_leaves_this_machine(tmp_path: Path) -> None:
    """Every address that the whole process binds, connects to or looks up is loopback, and it starts no program
    (X-4)."""
    done = _run(tmp_path, sys.executable, "-c", WATCHED)
    assert done.returncode == 0
    heard = json.loads(done.stderr)
    assert {where for _, where in heard} == {"127.0.0.1"}
    assert [event for event, _ in heard].count("socket.bind") == 2  # the stand-in and the gateway
    assert [event for event, _ in heard].count("socket.connect") >= 3  # two agents, and the gateway to the stand-in


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    """`breakloop demo | head -1` leaves no traceback (X-4)."""
    done = _run(tmp_path, "/bin/sh", "-c", f"{shlex.join(COMMAND)} --plain | head -1")
    assert done.stdout.startswith("breakloop demo: ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


# -- terminals -----------------------------------------------------------------------------------------------------


class Terminal:
    """As much of a terminal as the show needs: text, colours (dropped), line ends, one line up, erasing a line."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.lines: list[str] = [""]  # everything, also what has scrolled out
        self.lost = 0  # how often it was to go up to where it had scrolled away from
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for found in re.finditer(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)", text):
            amount, control, start, end, words = found.groups()
            if control == "A":
                self._up(int(amount or 1))
            elif control == "K":
                self.lines[self._row] = ""
            elif start:
                self._column = 0
            elif end:
                self._down()
            elif words:
                self._write(words)

    def _up(self, rows: int) -> None:
        first = max(0, len(self.lines) - self.height)
        self.lost += self._row - rows < first
        self._row = max(first, self._row - rows)

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")

    def _write(self, words: str) -> None:
        for letter in words:
            if self._column == self.width:
                self._column = 0
                self._down()
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + letter + line[self._column + 1 :]
            self._column += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


def _shown(
    folder: Path, size: tuple[int, int], *arguments: str, interrupt_at: str = "", **more: str
) -> tuple[str, int]:
    """Run the show on a terminal of that size; returns everything it wrote, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=_environment(folder, TERM="xterm-256color", **more),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a shell's background job ignores it
    )
    os.close(theirs)
    written = b""
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so at the end
                break
            if not part:
                break
            written += part
            if interrupt_at and interrupt_at.encode() in written:
                process.send_signal(signal.SIGINT)
                interrupt_at = ""
        return written.decode(), process.wait(DEADLINE_S)
    finally:
        os.close(ours)
        process.kill()
        process.wait()


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
def test_the_live_show(tmp_path: Path, size: tuple[int, int]) -> None:
    """Both agents beside (or above) each other, drawn in place; the picture and the summary stay at the end (X-4)."""
    written, code = _shown(tmp_path, size, "--speed", "500")
    terminal = Terminal(*size)
    terminal.feed(written)
    assert code == 0
    assert terminal.lost == 0  # no picture was higher than the terminal
    text = terminal.text
    assert text.count("looping agent: BLOCKED") == 1  # one picture, drawn over and over in the same place
    assert text.count("healthy agent: done") == 1
    assert "130 of 130 s, simulated" in text
    assert "looping: 4 requests passed, 61 blocked" in text
    assert text.rstrip().splitlines()[-1].startswith("  breakloop init ")
    assert "…" not in text
    assert written.rstrip().count("\x1b[?25h") == 1  # the cursor is back
    beside = any("looping agent" in line and "healthy agent" in line for line in terminal.lines)
    assert beside == (size[0] >= 80)


def test_colours(tmp_path: Path) -> None:
    """Red and green, which show on light and dark backgrounds alike; none of them with NO_COLOR (X-4)."""
    coloured, _ = _shown(tmp_path, (80, 24), "--speed", "500", "--seconds", "18")
    numbers = {number for found in re.findall(r"\x1b\[([\d;]*)m", coloured) for number in found.split(";")}
    assert numbers == {"0", "1", "2", "31", "32"}
    plain, _ = _shown(tmp_path, (80, 24), "--speed", "500", "--seconds", "18", NO_COLOR="1")
    numbers = {number for found in re.findall(r"\x1b\[([\d;]*)m", plain) for number in found.split(";")}
    assert numbers <= {"0", "1", "2"}
    assert "BLOCKED" in plain


def test_ctrl_c(tmp_path: Path) -> None:
    """It ends at once, politely, with the summary of what was seen (X-4)."""
    # Long enough to be under way still when the signal comes.
    written, code = _shown(tmp_path, (80, 24), "--speed", "5", "--seconds", "500", interrupt_at="BLOCKED")
    terminal = Terminal(80, 24)
    terminal.feed(written)
    assert code == 0
    found = re.search(r"After (\d+) of 500 simulated seconds", terminal.text)
    assert found is not None
    assert 5 <= int(found[1]) < 500
    assert "breakloop serve" in terminal.text
    assert "Traceback" not in written
    assert "Aborted" not in written
    assert "\x1b[?25h" in written
