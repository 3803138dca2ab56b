"""Units and plain values: instants, durations, sizes, shares, histograms, estimates, and their text forms."""
