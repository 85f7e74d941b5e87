"""Open_redis(url)."""
