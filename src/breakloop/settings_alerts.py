"""Alert rules and their targets as settings say them (SPEC G-4). Secrets are named, never written: `env:VARIABLE` or
`file:/PATH`. Where these blocks stand is `settings_fields`' business; `alerts.configured` makes rules and targets of
them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.errors import MessageError
from email.headerregistry import Address
from typing import Annotated, Any, Final, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from breakloop.policy.schema_types import Fault, Model, Shorthand, Text, fault, refuse
from breakloop.policy.suggest import did_you_mean

TYPES: Final = ("kill_switch", "loop", "budget", "breaker", "limit", "store", "bundle", "shadow", "any")
_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")
_HERE: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}


def _reference(value: str) -> str:
    if value and not _REFERENCE.fullmatch(value):
        raise fault("is not env:VARIABLE or file:/PATH", "the secret itself does not stand here: write env:MY_SECRET")
    return value


def _address(value: str) -> str:
    name, bracket, rest = value.rpartition("<")
    plain = rest.removesuffix(">").strip() if bracket else value
    try:
        found = Address(display_name=name.strip().strip('"'), addr_spec=plain)
        usable = value.isprintable() and "," not in value and bool(found.username and found.domain)
    except (MessageError, ValueError, IndexError):
        usable = False
    if not usable:
        raise fault("is no mail address", "write name@example.com, or Words <name@example.com>")
    return value


def _url(value: str) -> str:
    parts = urlsplit("")
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", value):
        raise fault("is no URL", "write https://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise fault("has a credential in it", "take it out of the URL")
    return value


def _type(value: str) -> str:
    if value not in TYPES and not re.fullmatch(r"[a-z_]+\.[a-z_]+", value):
        hint = f"write one of {', '.join(TYPES)}, or the name of an event such as loop.detected"
        raise fault("is no type of alert" + did_you_mean(value, TYPES), hint)
    return value


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


SECRET: Final = "secret"  # marks fields that name a secret; `secrets_of` finds them by it
Secret = Annotated[str, SECRET, AfterValidator(_reference)]
MailAddress = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, AfterValidator(_url)]
Span = Annotated[float, Field(ge=0, le=31 * 86_400)]

_PRIVATE: Final = "Also send to addresses of this machine and of private networks."


class EmailAlerts(Model):
    """Mail."""

    type: Literal["email"] = Field(description="`email`: a mail with a text and an HTML part.")
    host: Text = Field(description="The mail server.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="Its port; 0 is automatic: 587 for starttls, 465 for tls, 25 for none."
    )
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="How it is spoken to; `none` only where the server is on this machine."
    )
    user: str = Field(default="", description="Name to log in with, if it asks for one.")
    password: Secret = Field(default="", description="Password, as env:VARIABLE or file:/PATH.")
    sender: MailAddress = Field(description="Whom mails are from.")
    to: Annotated[list[MailAddress], Field(min_length=1, max_length=100)] = Field(description="Whom they are for.")

    @model_validator(mode="after")
    def _safe(self) -> Self:
        faults = []
        if self.security == "none" and self.host not in _HERE:
            faults.append(Fault(("security",), "none is for a server on this machine only", "use starttls or tls"))
        if bool(self.user) != bool(self.password):
            faults.append(Fault(("user",), "a login needs user and password", "set both, or neither"))
        refuse(faults)
        return self

    @property
    def real_port(self) -> int:
        """The port, also where it is automatic."""
        return self.port or _PORTS[self.security]


class SlackAlerts(Model):
    """A channel of Slack, or of what takes the same messages (Mattermost)."""

    type: Literal["slack"] = Field(description="`slack`: an incoming webhook.")
    url: Secret = Field(min_length=1, description="URL of the incoming webhook, as env:VARIABLE or file:/PATH.")
    allow_private: bool = Field(default=False, description=_PRIVATE)


class PagerDutyAlerts(Model):
    """A service of PagerDuty: alerts are triggered, and resolved when what they are about is over."""

    type: Literal["pagerduty"] = Field(description="`pagerduty`: Events API v2.")
    routing_key: Secret = Field(min_length=1, description="Integration key, as env:VARIABLE or file:/PATH.")
    url: Url = Field(default="https://events.pagerduty.com", description="Where; the EU region has its own.")
    allow_private: bool = Field(default=False, description=_PRIVATE)


class WebhookAlerts(Model):
    """A webhook that gets what rules tell. (Those that get every event are made in the dashboard or by the API.)"""

    type: Literal["webhook"] = Field(description="`webhook`: a signed POST of JSON.")
    url: Url = Field(description="Where.")
    secret: Secret = Field(min_length=1, description="Its secret (whsec_...), as env:VARIABLE or file:/PATH.")
    allow_private: bool = Field(default=False, description=_PRIVATE)


class AppriseAlerts(Model):
    """Any service that the library apprise knows; needs the extra `alerts`."""

    type: Literal["apprise"] = Field(description="`apprise`: one or several of its services.")
    urls: Annotated[list[Secret], Field(min_length=1)] = Field(
        description="URLs of apprise, each as env:VARIABLE or file:/PATH."
    )


AlertTarget = EmailAlerts | SlackAlerts | PagerDutyAlerts | WebhookAlerts | AppriseAlerts
_BLOCKS: Final[dict[str, type[AlertTarget]]] = {
    "email": EmailAlerts,
    "slack": SlackAlerts,
    "pagerduty": PagerDutyAlerts,
    "webhook": WebhookAlerts,
    "apprise": AppriseAlerts,
}


class _ByType:
    """Reads the block that `type` names, so that a message is about the field that is wrong, not about all blocks."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def _read(self, value: Any, _whole: Callable[[Any], Any]) -> AlertTarget:
        if isinstance(value, Model):
            return value  # type: ignore[return-value]  # read already
        kind = value.get("type") if isinstance(value, dict) else None
        block = _BLOCKS.get(kind) if isinstance(kind, str) else None
        if block is None:
            raise fault("must be a map with a known type", f"type is one of {', '.join(_BLOCKS)}")
        return block.model_validate(value)


class AlertRule(Model):
    """Who is told of what, and how often."""

    name: Text = Field(description="Its name, in messages and on the dashboard.")
    type: Annotated[list[Annotated[str, AfterValidator(_type)]], Field(min_length=1), Shorthand(_one_as_list)] = Field(
        description="What it is about: `kill_switch` (an agent is held), `loop`, `budget`, `breaker`, `limit`, "
        "`store`, `bundle`, `shadow`, `any`, or names of events; one or a list."
    )
    targets: Annotated[list[Text], Field(min_length=1)] = Field(description="Names of `alert_targets`.")
    agent: Text = Field(default="*", description="Only agents whose name is like this; `*` stands for anything.")
    project: Text = Field(default="*", description="Only projects whose name is like this.")
    min_action: Literal["", "warn", "steer", "throttle", "reject", "kill"] = Field(
        default="", description="Of loops: only what was at least done about them."
    )
    cooldown_seconds: Span = Field(
        default=300.0, description="How long nothing more is told of the same, after it was told."
    )
    repeat_seconds: Span = Field(
        default=0.0, description="How often to tell again of what goes on; 0: once, until it is over."
    )
    recovery: bool = Field(default=False, description="Tell too when it is over. (PagerDuty is always told.)")
    shadow: bool = Field(default=False, description="Tell too of what was only counted, in shadow mode.")


AlertTargets = dict[Annotated[Text, Field(max_length=64)], Annotated[AlertTarget, _ByType()]]


def check_alerts(rules: Sequence[AlertRule], targets: AlertTargets) -> None:
    """Refuse rules with the same name, and rules whose targets are not there."""
    names = [rule.name for rule in rules]
    faults = [
        Fault(("alerts", at, "name"), f'"{name}" is named twice', "keep one")
        for at, name in enumerate(names)
        if name in names[:at]
    ]
    for at, rule in enumerate(rules):
        for number, target in enumerate(rule.targets):
            if target not in targets:
                known = f"known are {', '.join(sorted(targets))}" if targets else "there are none"
                faults.append(Fault(("alerts", at, "targets", number), "names no target of alert_targets", known))
    refuse(faults)


def secrets_of(targets: Mapping[str, Model]) -> Iterator[tuple[str, str]]:
    """Return every secret that targets name, each with the name of its setting."""
    for name, target in targets.items():
        for field, info in type(target).model_fields.items():
            value = getattr(target, field)
            if SECRET in info.metadata:
                if value:
                    yield f"alert_targets.{name}.{field}", value
            elif names_secret(info):  # a list of them
                for number, one in enumerate(value):
                    yield f"alert_targets.{name}.{field}[{number}]", one


def names_secret(field: FieldInfo) -> bool:
    """Tell whether a field names a secret, or a list of secrets."""
    return SECRET in field.metadata or any(
        SECRET in getattr(item, "__metadata__", ()) for item in get_args(field.annotation)
    )
