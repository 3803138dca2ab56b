"""MPS of software GPUs: the control daemon, its servers and the front end."""
