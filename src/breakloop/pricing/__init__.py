"""What calls cost: prices of models, and estimates of tokens where none were counted."""
