"""Who harms whom, and what is done about it? Health of a device, errors, hangs, who gives way under pressure."""
