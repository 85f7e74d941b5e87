"""State in Redis or Valkey: the store, its connections, and the bundle that instances share."""
