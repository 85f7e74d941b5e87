"""Stand-ins for the objects that plan operations. Stores never read them."""

from __future__ import annotations

from typing import Any, Final

NO_OWNER: Final[Any] = None
NO_LIMITER: Final[Any] = None
NO_RULE: Final[Any] = None
