"""A worker's source of bundles: what the control process has fetched, verified and validated is delivered here, put in
force, and acknowledged. Keeping a copy and telling about it are done there, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from breakloop.errors import Problem
from breakloop.fleet.messages import Applied, Policy
from breakloop.policy.load import LoadedBundle, load_text

_NEVER_S: Final = 3600.0


def bundle_text(loaded: LoadedBundle) -> bytes:
    """Return a bundle as JSON: every worker reads it, and YAML takes ten times as long."""
    plain = loaded.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(plain, separators=(",", ":")).encode()


class Delivered:
    """Has the newest that was delivered. `use` puts a bundle in force, `acknowledge` is told; both in any thread."""

    def __init__(self, acknowledge: Callable[[Applied], None]) -> None:
        self._acknowledge = acknowledge
        self._next: Policy | None = None
        self._name = ""
        self.use: Callable[[LoadedBundle], None] | None = None
        self.current: LoadedBundle | None = None
        self.origin = ""
        self.problems: list[Problem] = []
        self.rejected = 0

    @property
    def name(self) -> str:
        """Where the bundle comes from, as people know it."""
        return self._name

    @property
    def wait_s(self) -> float:
        """Nothing is looked for: it comes."""
        return _NEVER_S

    def put(self, policy: Policy) -> None:
        """This was delivered; `reload` acts on it."""
        self._next = policy

    def start(self) -> bool:
        """Put in force what was delivered so far; tells whether a bundle is in force."""
        self.reload()
        return self.current is not None

    def poll(self) -> None:
        """Act on what was delivered, if that was missed."""
        self.reload()

    def reload(self) -> None:
        """Act on what was delivered."""
        policy, self._next = self._next, None
        if policy is None:
            return
        problem = ""
        if policy.text is not None:
            try:
                self._take(policy, policy.text)
            except Exception as error:  # noqa: BLE001 - the edge: whatever is wrong, the bundle in force stays so
                problem = f"{type(error).__name__}: {error}"
        self._name, self.problems, self.rejected = policy.name, policy.problems, policy.rejected
        self._acknowledge(Applied(policy.number, problem))

    def _take(self, policy: Policy, text: bytes) -> None:
        if self.current is None or policy.digest != self.current.digest:
            loaded = replace(load_text(text, policy.name + ".json"), digest=policy.digest, notes=[])
            if self.use is not None:
                self.use(loaded)
            self.current = loaded
        self.origin = policy.origin
