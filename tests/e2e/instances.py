"""Two real instances on one Redis, with a real nginx and the shipped configuration in front, which gives each the next
request in turn."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deadlines import DEADLINE_S
from tests.deploy.shipped_nginx import shipped_nginx
from tests.e2e.served import Served, serving


@dataclass
class Instances:
    """Instances, and the port of nginx in front of them."""

    served: list[Served]
    port: int

    def ask(self, path: str, body: bytes | str = b"", **headers: str) -> tuple[int, dict[str, str], str]:
        """One request through nginx, on a connection of its own: each goes to the next instance."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()


@contextmanager
def instances(folder: Path, state: str, *arguments: str) -> Iterator[Instances]:
    """Run them."""
    with ExitStack() as stack:
        made = []
        for number in range(2):
            own = folder / f"instance{number}"
            own.mkdir()
            made.append(stack.enter_context(serving(own, "--state", state, *arguments)))
        port = stack.enter_context(shipped_nginx(folder, [one.port for one in made]))
        yield Instances(made, port)
