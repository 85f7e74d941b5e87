"""What a shell script runs in place of `breakloop`: asks `forking` for a fork with its arguments, files and process group,
and ends as the fork does. It imports little, because scripts start it often."""

import json
import os
import signal
import socket
import sys

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to the group, and so to the fork too
        signal.signal(number, signal.SIG_IGN)
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(sys.argv[1])
    here = os.getcwd()  # noqa: PTH109 - importing pathlib takes as long as all the rest
    start = {"arguments": sys.argv[2:], "cwd": here, "env": dict(os.environ), "group": os.getpgrp()}
    socket.send_fds(asked, [json.dumps(start).encode()], [0, 1, 2])
    asked.recv(64)  # its pid
    ended = int(asked.recv(64) or b"-9")
    sys.exit(ended if ended >= 0 else 128 - ended)
