"""Any other service, through the library apprise (`pip install breakloop[alerts]`).

The URLs of apprise contain the credentials of the services, so they are secrets and never part of a message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from breakloop.alerts.channels.base import ChannelSettings, Delivery, DeliveryResult, Secret, Target
from breakloop.alerts.messages import CRITICAL, ERROR, INFO, WARNING, message_of
from breakloop.errors import AlertError

if TYPE_CHECKING:
    from breakloop.alerts.transport import DeliveryContext

_TIMEOUT_S: Final = 60.0
_TYPES: Final = {CRITICAL: "failure", ERROR: "failure", WARNING: "warning", INFO: "info"}


class AppriseAlerts(ChannelSettings):
    """Any service that the library apprise supports; needs the extra `alerts`."""

    type: Literal["apprise"] = Field(description="`apprise`: one or several services of apprise.")
    urls: Annotated[list[Secret], Field(min_length=1)] = Field(
        description="URLs of apprise, each as env:VARIABLE or file:/PATH."
    )

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> AppriseTarget:
        return apprise_target(context, [secrets[url] for url in self.urls], dashboard_url)


@dataclass(frozen=True, slots=True)
class AppriseTarget(Target):
    """One or several services, notified together."""

    context: DeliveryContext = field(repr=False)
    services: Any = field(repr=False)
    dashboard_url: str = ""

    async def send(self, delivery: Delivery) -> DeliveryResult:
        """Notify all services. The library only reports whether all of them accepted the message."""
        message = message_of(delivery.body, self.dashboard_url)
        kind = "success" if message.recovered else _TYPES[message.severity]
        text = message.plain().partition("\n\n")[2]
        try:
            done = await self.context.run_in_thread(
                lambda: self.services.notify(title=message.title, body=text, notify_type=kind, body_format="text"),
                timeout_s=_TIMEOUT_S,
            )
        except TimeoutError:
            return DeliveryResult(delivered=False, error=f"no response within {_TIMEOUT_S:g} s")
        return DeliveryResult(delivered=bool(done), error="" if done else "a service did not accept it")


def apprise_target(context: DeliveryContext, urls: Sequence[str], dashboard_url: str = "") -> AppriseTarget:
    """Return a target. Raises `AlertError`, without any URL, if apprise is missing or does not know a URL."""
    try:
        import apprise  # noqa: PLC0415 - an extra
    except ImportError:
        raise AlertError("this target needs the library apprise: pip install 'breakloop[alerts]'") from None
    # apprise logs URLs and responses of services, and with them secrets.
    logger = logging.getLogger("apprise")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    services = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not services.add(url):
            raise AlertError(f"apprise does not know URL {number}")
    if not urls:
        raise AlertError("there is no URL")
    return AppriseTarget(context, services, dashboard_url)
