"""How long tests wait for what must happen."""

from __future__ import annotations

from typing import Final

DEADLINE_S: Final = 90.0  # only a test that hangs reaches it, on a busy machine too
