"""The admin API and the dashboard, on their own port."""
