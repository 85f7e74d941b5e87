"""Tells bots from their User-Agent (SPEC C-5). A declared name and no more: whoever lies is not found here."""

from __future__ import annotations

import re
from typing import Final

from breakloop.policy.recent import Recent

# Names as their operators publish them, lower case. The longest that occurs decides.
_CATEGORIES: Final = {
    "ai_crawler": (
        "ai2bot", "amazonbot", "anthropic-ai", "bedrockbot", "bytespider", "ccbot", "claudebot", "claude-searchbot",
        "claude-web", "cohere-ai", "cohere-training-data-crawler", "deepseekbot", "diffbot", "facebookbot",
        "google-cloudvertexbot", "gptbot", "iaskspider", "imagesiftbot", "kangaroo bot", "meta-externalagent",
        "oai-searchbot", "omgili", "omgilibot", "pangubot", "perplexitybot", "petalbot", "sbintuitionsbot",
        "timpibot", "velenpublicwebcrawler", "youbot",
    ),
    "ai_assistant_user": (
        "amzn-user", "chatgpt-user", "claude-user", "duckassistbot", "gemini-deep-research", "google-notebooklm",
        "meta-externalfetcher", "mistralai-user", "novaact", "perplexity-user", "phindbot",
    ),
    "search_engine": (
        "adsbot-google", "applebot", "baiduspider", "bingbot", "bingpreview", "duckduckbot", "googlebot", "googleother",
        "mediapartners-google", "mojeekbot", "msnbot", "naverbot", "qwantbot", "seznambot", "slurp", "sogou",
        "storebot-google", "yandexbot", "yeti/", "yisouspider",
    ),
    "other_bot": (
        "ahrefsbot", "archive.org_bot", "blexbot", "censysinspect", "dataforseobot", "discordbot", "dotbot",
        "facebookexternalhit", "ia_archiver", "linkedinbot", "mj12bot", "pingdom", "pinterestbot", "rogerbot",
        "semrushbot", "slackbot", "telegrambot", "twitterbot", "uptimerobot", "whatsapp/",
    ),
}  # fmt: skip
_NAMES: Final = {name: category for category, names in _CATEGORIES.items() for name in names}
_KNOWN: Final = re.compile("|".join(re.escape(name) for name in sorted(_NAMES, key=len, reverse=True)))
# Any other program that calls itself one; a word that merely ends so (the phone maker Cubot) is left alone.
_SELF_DECLARED: Final = re.compile(r"(?<!cu)bot(?![a-z])|crawler|spider|scraper")
_LOOKED_AT_MAX: Final = 1024


def classify(user_agent: str) -> str:
    """Return the category of a User-Agent, or "" for one that names no bot."""
    text = user_agent[:_LOOKED_AT_MAX].lower()
    found = _KNOWN.findall(text)
    if found:
        return _NAMES[max(found, key=len)]
    return "other_bot" if _SELF_DECLARED.search(text) else ""


class UserAgents:
    """Remembers what recent User-Agents were: the few clients of a gateway send the same ones all day."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: Recent[bytes, str] = Recent(1024)

    def category(self, raw: bytes) -> str:
        """Return the category of a raw header value, "" for none."""
        raw = raw[:_LOOKED_AT_MAX]
        category = self._seen.get(raw)
        if category is None:
            category = classify(raw.decode("latin-1"))
            self._seen.put(raw, category)
        return category
