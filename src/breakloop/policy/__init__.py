"""What an operator writes (the policy bundle) and what is made of it: schema, loading, descriptors, routes, compile."""
