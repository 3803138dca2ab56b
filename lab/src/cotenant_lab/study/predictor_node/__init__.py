"""Study `predictor-node`: predicted latencies, slowdowns and loads compared with measurements."""
