"""The policy bundle that an operator writes: schema, loading, descriptors, matching and compilation."""
