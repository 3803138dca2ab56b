"""Study `baselines`: whether a baseline reproduces what its own paper reports, on workloads as in that paper."""
