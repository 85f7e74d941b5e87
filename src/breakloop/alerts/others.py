"""Every other service, by the library apprise (`pip install breakloop[alerts]`): its URLs name services and hold their
secrets, so they come from the environment or a file, and are in no message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.alerts import words
from breakloop.alerts.means import Means
from breakloop.alerts.target import Outcome, Parcel
from breakloop.errors import AlertError

_TIMEOUT_S: Final = 60.0
_TYPES: Final = {words.CRITICAL: "failure", words.ERROR: "failure", words.WARNING: "warning", words.INFO: "info"}


@dataclass(frozen=True, slots=True)
class AppriseTarget:
    """One or several services."""

    means: Means = field(repr=False)
    services: Any = field(repr=False)
    dashboard_url: str = ""

    async def send(self, parcel: Parcel) -> Outcome:
        """Notify all of them. The library tells only whether all took it."""
        message = words.message(parcel.body, self.dashboard_url)
        kind = "success" if message.recovered else _TYPES[message.severity]
        text = message.plain().partition("\n\n")[2]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                done = await self.means.aside(
                    lambda: self.services.notify(title=message.title, body=text, notify_type=kind, body_format="text")
                )
        except TimeoutError:
            return Outcome(delivered=False, error=f"no answer within {_TIMEOUT_S:g} s")
        return Outcome(delivered=bool(done), error="" if done else "a service did not take it")


def apprise_target(means: Means, urls: Sequence[str], dashboard_url: str = "") -> AppriseTarget:
    """Make one; raises `AlertError` where the library is missing or does not know a URL, which is not repeated."""
    try:
        import apprise  # noqa: PLC0415 - an extra: only those who name such a target need it
    except ImportError:
        raise AlertError("this target needs the library apprise: pip install 'breakloop[alerts]'") from None
    # It logs URLs and answers of services, and with them secrets.
    logger = logging.getLogger("apprise")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    services = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not services.add(url):
            raise AlertError(f"apprise does not know URL {number}")
    if not urls:
        raise AlertError("there is no URL")
    return AppriseTarget(means, services, dashboard_url)
