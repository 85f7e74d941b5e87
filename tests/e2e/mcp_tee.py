"""Carries bytes between a client and a server, and keeps a copy of both directions: `mcp_tee.py FOLDER COMMAND...`
writes FOLDER/sent (what the client sent) and FOLDER/answered."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path


def carry(source: int, target: int, copy: Path) -> None:
    with copy.open("wb", buffering=0) as kept:
        while data := os.read(source, 65536):
            kept.write(data)
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    os.close(target)


def main() -> int:
    folder, *command = sys.argv[1:]
    Path(folder).mkdir(exist_ok=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        sends = (0, server.stdin.fileno(), Path(folder, "sent"))
        threading.Thread(target=carry, args=sends, daemon=True).start()
        carry(server.stdout.fileno(), 1, Path(folder, "answered"))
        os._exit(server.wait())


if __name__ == "__main__":
    main()
