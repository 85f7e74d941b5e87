"""What `doctor` looks at around the traffic port: who can reach it, which keys it holds, where requests go, and whether
certificates can be used (SPEC D-2, Y-6). Looks only: nothing is connected to. Everything else is `doctor_checks`'."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from breakloop.cli.doctor_findings import Finding
from breakloop.errors import SettingsError
from breakloop.gateway.targets import Upstream, upstreams
from breakloop.settings import Settings, provider_keys


def examine_proxy(settings: Settings) -> Iterator[Finding]:
    """Look at everything."""
    yield from _reach(settings)
    yield from _keys(settings)
    yield from _upstreams(settings)
    yield from _certificates(settings)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches that host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reach(settings: Settings) -> Iterator[Finding]:
    host = settings.host
    if is_loopback(host):
        return
    if settings.callers and settings.mode == "all":
        message = (
            "guards what is forwarded; whoever reaches /v1/decision may still ask and report (mode: proxy closes it)"
        )
        yield Finding("warning", "callers", message)
    if settings.callers:
        if not settings.tls.cert_file:
            message = f"{host} can be reached from other machines, and their keys travel in the clear (set tls)"
            yield Finding("warning", "tls", message)
    elif settings.upstream_keys:
        names = ", ".join(entry.partition("=")[0] for entry in settings.upstream_keys)
        message = f"whoever reaches {host} spends the provider keys held here ({names}): set callers, or listen on"
        yield Finding("warning", "callers", f"{message} 127.0.0.1")
    else:
        yield Finding(
            "warning",
            "host",
            f"{host} can be reached from other machines, and nobody is asked for a key: set callers, or keep it behind "
            "a firewall or the gateway that asks it",
        )


def _keys(settings: Settings) -> Iterator[Finding]:
    try:
        keys = provider_keys(settings)
    except SettingsError as error:
        about, _, message = str(error).partition(": ")
        yield Finding("problem", about, message)
        return
    for upstream in upstreams(settings.upstream):
        if upstream.name in keys and not upstream.tls and not is_loopback(upstream.host):
            message = f"the key of {upstream.name} is sent to {upstream.url} without TLS"
            yield Finding("warning", "upstream_keys", message)
    for entry in settings.upstream_keys:
        name, _, file = entry.partition("=file:")
        if file and Path(file).stat().st_mode & 0o077:
            message = f"the key of {name} can be read by others than its owner (chmod 600 {file})"
            yield Finding("warning", "upstream_keys", message)


def _upstreams(settings: Settings) -> Iterator[Finding]:
    if settings.mode == "decision":
        for name in ("upstream", "upstream_keys"):
            if getattr(settings, name):
                yield Finding("note", name, "is not used: mode decision forwards nothing")
        return
    for upstream in upstreams(settings.upstream):
        if _is_ourselves(upstream, settings):
            message = f"{upstream.name} points back at this port: requests for it are answered 508"
            yield Finding("problem", "upstream", message)


def _is_ourselves(upstream: Upstream, settings: Settings) -> bool:
    everywhere = settings.host in {"0.0.0.0", "::"}  # noqa: S104 - compared with, not listened on
    same = upstream.host == settings.host or (is_loopback(upstream.host) and (everywhere or is_loopback(settings.host)))
    return same and upstream.port == settings.port


def _certificates(settings: Settings) -> Iterator[Finding]:
    tls = settings.tls
    if tls.cert_file:
        try:
            # Without a question for a passphrase: there is nobody to ask when a service starts.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert_file, tls.key_file, lambda: "")
        except (OSError, ValueError) as error:
            yield Finding("problem", "tls", f"{tls.cert_file} and {tls.key_file} cannot be used: {_why(error)}")
        else:
            if Path(tls.key_file).stat().st_mode & 0o077:
                message = f"{tls.key_file} can be read by others than its owner (chmod 600 {tls.key_file})"
                yield Finding("warning", "tls.key_file", message)
    if settings.upstream_ca_file:
        try:
            ssl.create_default_context(cafile=settings.upstream_ca_file)
        except (OSError, ValueError) as error:
            message = f"{settings.upstream_ca_file} cannot be used: {_why(error)}"
            yield Finding("problem", "upstream_ca_file", message)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or "it is not understood"
