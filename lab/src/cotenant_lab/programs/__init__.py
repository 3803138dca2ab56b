"""CUDA client programs for the benches: programs that serve, train, allocate and misbehave."""
