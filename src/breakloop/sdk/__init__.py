"""The implementation of the Python library. Nothing here is public.

Programs import `breakloop`, `breakloop.openai`, `breakloop.anthropic`, `breakloop.testing` and
`breakloop.integrations.<framework>`. Modules and names of this package may change in any release."""
