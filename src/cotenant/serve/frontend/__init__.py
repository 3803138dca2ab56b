"""Front end of the server: listeners, engine, statistics, traces and shared memory around the state machine."""
