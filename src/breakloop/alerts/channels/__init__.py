"""Alert channels: webhook, email, Slack, PagerDuty and apprise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Union

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from breakloop.alerts.channels.base import SECRET, ChannelSettings, names_secret
from breakloop.alerts.channels.email import EmailAlerts
from breakloop.alerts.channels.services import AppriseAlerts, PagerDutyAlerts, SlackAlerts, WebhookAlerts
from breakloop.policy.schema.types import Model, Text, fault

# By the value of `type`, in the order of the reference page.
CHANNELS: Final[dict[str, type[ChannelSettings]]] = {
    "email": EmailAlerts,
    "slack": SlackAlerts,
    "pagerduty": PagerDutyAlerts,
    "webhook": WebhookAlerts,
    "apprise": AppriseAlerts,
}


class _ByType:
    """Validates against the model that `type` selects, so that an error names the field instead of every model."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def _read(self, value: Any, _whole: Callable[[Any], Any]) -> ChannelSettings:
        if isinstance(value, ChannelSettings):
            return value
        kind = value.get("type") if isinstance(value, dict) else None
        model = CHANNELS.get(kind) if isinstance(kind, str) else None
        if model is None:
            raise fault("must be a map with a known type", f"type is one of {', '.join(CHANNELS)}")
        return model.model_validate(value)


if TYPE_CHECKING:
    AnyChannel = ChannelSettings
else:
    AnyChannel = Union[tuple(CHANNELS.values())]  # noqa: UP007 - built from the registry
AlertTargets = dict[Annotated[Text, Field(max_length=64)], Annotated[AnyChannel, _ByType()]]


def secret_references(targets: Mapping[str, Model]) -> Iterator[tuple[str, str]]:
    """Yield every secret that targets refer to: the name of the setting, and the reference."""
    for name, target in targets.items():
        for field, info in type(target).model_fields.items():
            value = getattr(target, field)
            if SECRET in info.metadata:
                if value:
                    yield f"alert_targets.{name}.{field}", value
            elif names_secret(info):  # a list of references
                for number, reference in enumerate(value):
                    yield f"alert_targets.{name}.{field}[{number}]", reference
