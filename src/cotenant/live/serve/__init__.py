"""How are models served? Sockets, threads, model files and shared memory around the server's machine."""
