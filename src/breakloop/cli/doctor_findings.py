"""What a check of `doctor` says. Checking is `doctor_checks`' and `doctor_proxy`'s, printing `doctor`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say: a `problem` keeps breakloop from working, a `warning` is unsafe, a `note` is good to know."""

    level: Level
    about: str
    message: str
