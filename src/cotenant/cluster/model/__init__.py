"""Values of the cluster: nodes, GPUs, jobs, events and actions."""
