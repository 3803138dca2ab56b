"""Study `muxflow-node`: effect of sharing on one node, simulated and with real processes."""
