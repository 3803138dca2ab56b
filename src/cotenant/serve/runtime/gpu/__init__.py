"""GPU runtime: a pool of worker processes, each limited to a part of the SMs by MPS."""
