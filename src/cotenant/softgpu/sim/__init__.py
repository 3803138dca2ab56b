"""The device model in simulated time, and hosts that launch kernel streams on it."""
