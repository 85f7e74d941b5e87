"""How a mail looks: an HTML part made of tables and inline styles, which is what mail programs understand, in light and
dark. Everything that comes from outside is escaped. The text part is `words.Message.plain`."""

from __future__ import annotations

from html import escape
from typing import Final

from breakloop.alerts import words
from breakloop.alerts.words import Message

_TONES: Final = {words.CRITICAL: "#b42318", words.ERROR: "#b54708", words.WARNING: "#a15c07", words.INFO: "#175cd3"}
_OVER: Final = "#067647"
_LABELS: Final = {words.CRITICAL: "Critical", words.ERROR: "Error", words.WARNING: "Warning", words.INFO: "Notice"}
_FONT: Final = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_STYLE: Final = (
    ":root{color-scheme:light dark;supported-color-schemes:light dark}"
    "@media (prefers-color-scheme:dark){.page{background:#101418!important}.card{background:#1a2027!important;"
    "border-color:#2c353f!important}.ink{color:#e6eaee!important}.soft{color:#9aa7b4!important}"
    ".line{border-color:#2c353f!important}}"
)


def html(message: Message) -> str:
    """Return the HTML part."""
    tone = _OVER if message.recovered else _TONES[message.severity]
    label = "Recovered" if message.recovered else _LABELS[message.severity]
    inner = _badge(label, tone) + _headline(message) + _facts(message) + _button(message, tone) + _foot(message)
    card = (
        '<table role="presentation" class="card" width="600" cellpadding="0" cellspacing="0" style="width:100%;'
        "max-width:600px;background:#ffffff;border:1px solid #e4e7ec;border-radius:10px;"
        f'border-top:4px solid {tone};border-collapse:separate"><tr><td style="padding:28px 32px;{_FONT}">'
        f"{inner}</td></tr></table>"
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(message.title)}</title><style>{_STYLE}</style></head>"
        '<body class="page" style="margin:0;padding:0;background:#f4f6f8">'
        f'<div style="display:none;max-height:0;overflow:hidden">{escape(message.text)}</div>'
        '<table role="presentation" class="page" width="100%" cellpadding="0" cellspacing="0" '
        f'style="background:#f4f6f8"><tr><td align="center" style="padding:24px 12px">{card}</td></tr></table>'
        "</body></html>\n"
    )


def _badge(label: str, tone: str) -> str:
    return (
        f'<span style="display:inline-block;padding:3px 10px;border-radius:999px;background:{tone};color:#ffffff;'
        f'font-size:12px;font-weight:600;letter-spacing:.02em">{escape(label)}</span>'
    )


def _headline(message: Message) -> str:
    text = (
        f'<p class="soft" style="margin:0 0 20px;font-size:15px;line-height:22px;color:#475467">'
        f"{escape(message.text)}</p>"
    )
    return (
        '<h1 class="ink" style="margin:14px 0 8px;font-size:20px;line-height:27px;font-weight:650;color:#101828">'
        f"{escape(message.title)}</h1>{text if message.text else ''}"
    )


def _facts(message: Message) -> str:
    cell = "padding:8px 0;border-top:1px solid #eaecf0;font-size:14px;line-height:20px;vertical-align:top"
    rows = "".join(
        f'<tr><th class="soft line" scope="row" align="left" style="{cell};width:34%;font-weight:500;color:#667085">'
        f'{escape(name)}</th><td class="ink line" style="{cell};color:#101828;word-break:break-word">'
        f"{escape(value)}</td></tr>"
        for name, value in message.facts
    )
    return f'<table width="100%" cellpadding="0" cellspacing="0" style="border-collapse:collapse">{rows}</table>'


def _button(message: Message, tone: str) -> str:
    if not message.link:
        return ""
    return (
        f'<p style="margin:24px 0 0"><a href="{escape(message.link)}" style="display:inline-block;padding:10px 18px;'
        f'border-radius:8px;background:{tone};color:#ffffff;font-size:14px;font-weight:600;text-decoration:none">'
        "Open the dashboard</a></p>"
    )


def _foot(message: Message) -> str:
    return (
        '<p class="soft" style="margin:22px 0 0;font-size:12px;line-height:18px;color:#667085">'
        f"Sent by breakloop, alert rule “{escape(message.rule)}”.</p>"
    )
