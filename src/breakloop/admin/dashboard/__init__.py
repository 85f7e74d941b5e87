"""The dashboard: pages for people, rendered here, on the admin port."""
