"""Software GPUs: management, device servers, MPS and the simulated device."""
