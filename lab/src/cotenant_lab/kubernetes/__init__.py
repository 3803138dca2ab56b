"""A real Kubernetes cluster on this machine, for tests, the demo and benches."""
