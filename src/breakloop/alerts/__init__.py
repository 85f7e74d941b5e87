"""Telling people and programs: rules, targets, and deliveries that survive a restart."""
