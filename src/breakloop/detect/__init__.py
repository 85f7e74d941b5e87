"""Loop detectors: what makes two requests the same (`exact`, `tail`), and what follows (`loop`)."""
