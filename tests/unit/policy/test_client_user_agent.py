"""User-Agent classification."""

from __future__ import annotations

from breakloop.policy.client import bot_category, classify
from tests.each import each


@each(
    "user_agent, category",
    [
        (
            "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)",
            "ai_crawler",
        ),
        ("Mozilla/5.0 (compatible; ClaudeBot/1.0; +claudebot@anthropic.com)", "ai_crawler"),
        ("CCBot/2.0 (https://commoncrawl.org/faq/)", "ai_crawler"),
        ("Mozilla/5.0 (compatible; ChatGPT-User/1.0; +https://openai.com/bot)", "ai_assistant_user"),
        ("Mozilla/5.0 (compatible; Claude-User/1.0)", "ai_assistant_user"),
        ("Mozilla/5.0 (compatible; Perplexity-User/1.0)", "ai_assistant_user"),
        ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", "search_engine"),
        ("Mozilla/5.0 (compatible; bingbot/2.0)", "search_engine"),
        ("Mozilla/5.0 (compatible; AhrefsBot/7.0)", "other_bot"),
        ("my-price-crawler/0.1", "other_bot"),
        ("SomeBot", "other_bot"),
        ("Mozilla/5.0 (Linux; Android 10; CUBOT X30) Chrome/90", ""),
        ("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", ""),
        ("OpenAI/Python 2.1.0", ""),
        ("curl/8.5.0", ""),
    ],
)
def test_categories(user_agent: str, category: str) -> None:
    """Bots by the name they give themselves (C-5)."""
    assert classify(user_agent) == category
    assert bot_category(user_agent.encode()) == category
    assert bot_category(user_agent.encode()) == category


def test_the_longest_name_decides() -> None:
    """Applebot crawls for search; a text that names two bots goes by the longer name (C-5)."""
    assert classify("Applebot/0.1 (like Googlebot)") == "search_engine"
    assert classify("Mozilla/5.0 (compatible; ChatGPT-User/1.0; like bingbot)") == "ai_assistant_user"


def test_a_100_kb_user_agent_is_looked_at_in_part() -> None:
    """A name beyond the first kilobyte is not looked for, and the whole is not kept (C-5)."""
    assert bot_category(b"x" * 100_000 + b" GPTBot") == ""
