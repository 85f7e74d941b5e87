"""One module per agent framework or HTTP client: `breakloop.integrations.<framework>`."""
