"""From records to what templates show: pure functions, without a server, a clock or a database."""
