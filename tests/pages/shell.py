"""Runs the commands of one page in one shell, as a reader types them, and compares what they print with what the page
shows. The ports of the page are replaced by free ones, and servers that stay in the foreground run beside the rest, as in
another terminal."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.redis_servers import free_port

# How pages spell a port: in an address, an option, a variable or a configuration file.
_PORT = re.compile(r"((?::|port |port=|PORT=|PORT = |port_value: |listen |stand_in\.py |http\.server ))(\d{4})\b")
# Programs that do not return, and the port on which each listens unless its command names another.
_SERVERS = {
    r"(?:breakloop|make) serve\b": "8787",
    r"(?:caddy run|haproxy|nginx|envoy|traefik)\b": "8080",
    r"(?:uvicorn|redis-server)\b": "",
    r"python3? (?:stand_in\.py|llm\.py|-m http\.server)": "9000",
}
_OWN_PORT = re.compile(r"(?:--port |stand_in\.py |http\.server )(\d{4,5})")
# What differs from run to run. Whatever else differs is written as `...` on the page.
_MASKS = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)": "TIME",
    r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT": "TIME",
    r"\b[0-9a-f]{8}-[0-9a-f]+\b": "REQUEST-ID",
    r"(?<=pushed by )\S+": "USER@HOST",
}
_WITHIN_S = 280  # frameworks take a minute to start on a busy machine
_WIDE = 120  # characters: pages wrap lines that are longer
_PROLOGUE = """\
set -m
declare -A job
mkfifo "$OUT/stdin" && exec 9<>"$OUT/stdin"   # an open terminal, in which nobody types
finish() {
    for pid in "${job[@]}"; do kill -- "-$pid"; done
    SECONDS=0
    while [ -n "$(jobs -pr)" ] && [ $SECONDS -lt 20 ]; do read -rt 0.1 -u 9; done
    for pid in "${job[@]}"; do kill -KILL -- "-$pid"; done
    wait
} 2>/dev/null
trap finish EXIT
pip() { :; }  # installs nothing: tests/test_pages.py checks what it is told to install
ls() { command ls -C -T 0 "$@"; }  # columns, as on a terminal
start() {
    if [ -n "${job[$1]}" ]; then kill -- "-${job[$1]}"; wait "${job[$1]}"; fi 2>/dev/null
    eval "$3" <&9 >"$OUT/$2" 2>&1 &
    job[$1]=$!
    opened "$1" $! "$4" "$OUT/$2"
}
opened() {  # a port, a process, and what the process prints to a file when it is ready
    until : <>"/dev/tcp/127.0.0.1/$1" && { [ -z "$3" ] || grep -qs "$3" "$4"; }; do
        if ! kill -0 "$2" || [ $SECONDS -gt 240 ]; then return 1; fi
        read -rt 0.1 -u 9  # waits without another process
    done 2>/dev/null
    return 0
}
"""


@dataclass(frozen=True, slots=True)
class Typed:
    """One command, or one file to save; `fails` where the page shows a failure."""

    where: str
    command: str
    shown: str = ""
    fails: bool = False
    text: str = ""  # of the file that `command` names
    is_file: bool = False


@dataclass(slots=True)
class Shell:
    """One page in one directory."""

    folder: Path
    environment: Mapping[str, str]
    replaced: Mapping[str, str] = field(default_factory=dict)  # texts of the page, by what they stand for here
    _ports: dict[str, str] = field(default_factory=dict)

    def port(self, documented: str, real: int | None = None) -> str:
        """The free port that stands for one of the page."""
        return self._ports.setdefault(documented, str(real or free_port()))

    def here(self, text: str) -> str:
        """A text of a page or of a file that it uses, as it can be run here."""
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return _PORT.sub(lambda found: found[1] + self.port(found[2]), text)

    def there(self, text: str) -> str:
        """What was printed here, as the page would show it."""
        for documented, real in self._ports.items():
            text = re.sub(rf"\b{real}\b", documented, text)
        for old, new in self.replaced.items():
            text = text.replace(new, old)
        return text

    def run(self, steps: list[Typed]) -> list[str]:
        """Run them one after the other; returns what is not as the page says."""
        out = self.folder / ".printed"
        out.mkdir()
        script = [_PROLOGUE, *(self._lines(number, one) for number, one in enumerate(steps))]
        (out / "script").write_text("\n".join(script), encoding="utf-8")
        environment = {
            **{name: self.here(value) for name, value in self.environment.items()},
            "OUT": str(out),
            "BREAKLOOP_PORT": self.port("8787"),
            "BREAKLOOP_ADMIN_PORT": self.port("8788"),
        }
        with subprocess.Popen(
            ["bash", str(out / "script")],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as shell:
            try:
                shell.wait(_WITHIN_S)
            finally:
                shell.terminate()  # it ends the servers
        return [wrong for number, one in enumerate(steps) for wrong in self._wrong(out, number, one)]

    def _lines(self, number: int, one: Typed) -> str:
        text = self.here(one.command)
        if one.is_file:
            content = self.here(one.text)
            return f"cat >{shlex.quote(text)} <<'END-OF-FILE'\n{content}END-OF-FILE\necho 0 >$OUT/{number}.code"
        documented = server_port(one.command)
        if not documented:
            return f"{{ {text}\n}} >$OUT/{number} 2>&1 </dev/null; echo $? >$OUT/{number}.code"
        port = self.port(documented)
        ready = r"^breakloop \(ready\|listening\) on" if re.search(r"\bserve\b", text) else ""
        if text.endswith("&"):
            return f"{text}\njob[{port}]=$!; opened {port} $! '{ready}' breakloop.log; echo $? >$OUT/{number}.code"
        return f"start {port} {number} {shlex.quote(text)} '{ready}'; echo $? >$OUT/{number}.code"

    def _wrong(self, out: Path, number: int, one: Typed) -> list[str]:
        printed = out / str(number)
        text = self.there(printed.read_text(encoding="utf-8", errors="replace")) if printed.is_file() else ""
        code = out / f"{number}.code"
        if not code.is_file():
            return [f"{one.where}: not reached: {one.command}\n{text}"]
        if (code.read_text().strip() != "0") is not one.fails:
            return [f"{one.where}: exit code {code.read_text().strip()}: {one.command}\n{text}"]
        if server_port(one.command):  # what it logs goes to standard error, which people redirect
            text = re.sub(r'^\{"time": .*\n', "", text, flags=re.MULTILINE)
        if one.shown and not same(one.shown, text):
            return [f"{one.where}: {one.command}\n--- the page shows\n{one.shown}--- printed\n{text}"]
        return []


def server_port(command: str) -> str:
    """The port on which a command that does not return listens; empty for other commands."""
    bare = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", command)
    for pattern, port in _SERVERS.items():
        if re.match(pattern, bare):
            named = _OWN_PORT.search(bare)
            return named[1] if named else port
    return ""


def same(shown: str, printed: str) -> bool:
    """Whether the page shows what was printed: `...` stands for anything, masked texts are alike, and a line that is too
    wide for a page may be wrapped."""
    want, got = masked(shown), masked(printed)
    if re.fullmatch(_pattern(want), got, re.DOTALL):
        return True
    if max(map(len, got.splitlines()), default=0) <= _WIDE:
        return False
    return re.fullmatch(_pattern(" ".join(want.split())), " ".join(got.split()), re.DOTALL) is not None


def masked(text: str) -> str:
    for pattern, mask in _MASKS.items():
        text = re.sub(pattern, mask, text)
    return text.replace("\r", "").rstrip()


def _pattern(shown: str) -> str:
    return ".*".join(map(re.escape, re.split(r" ?\.\.\. ?", shown)))
