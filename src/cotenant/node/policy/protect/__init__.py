"""Protection policies: health of devices, errors, hangs, and memory pressure."""
