"""A cluster in simulated time: nodes, loads, jobs and faults."""
