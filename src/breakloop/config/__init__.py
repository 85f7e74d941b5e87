"""Settings, load_settings."""
