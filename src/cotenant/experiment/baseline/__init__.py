"""How do others share a device? One file for each way, in the harness in which the product's own controller runs."""
